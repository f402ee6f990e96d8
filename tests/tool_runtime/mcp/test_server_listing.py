from __future__ import annotations

from typing import Any

import pytest
from mcp_types import (
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
    ToolAnnotations,
)
from mcp_types import Tool as Listed

from tool_runtime.mcp.server import MAX_SCHEMA_CHARS, MAX_TOOLS, Listing, McpOptions, listing, result_text
from tool_runtime.types import Effect, Json, Run


def listed(name: str = "search", schema: Json | None = None, hints: Json | None = None) -> Listed:
    annotations = ToolAnnotations(**hints) if hints else None
    return Listed(name=name, input_schema=schema or {"type": "object"}, annotations=annotations)


def offered(*tools: Listed, **options: Any) -> Listing:
    def run(name: str) -> Run:
        async def call(*_: object) -> str:
            return name

        return call

    return listing(tools, McpOptions(name="it", command="server", **options), run)


@pytest.mark.parametrize(
    ("hints", "effect"),
    [
        ({}, Effect.DESTRUCTIVE),
        ({"read_only_hint": True}, Effect.READ_ONLY),
        ({"read_only_hint": True, "idempotent_hint": True}, Effect.READ_ONLY),
        ({"idempotent_hint": True}, Effect.IDEMPOTENT),
        ({"idempotent_hint": True, "destructive_hint": True}, Effect.IDEMPOTENT),
        ({"read_only_hint": False, "destructive_hint": False}, Effect.DESTRUCTIVE),
        ({"read_only_hint": True, "destructive_hint": True}, Effect.DESTRUCTIVE),
    ],
)
def test_hints_that_are_missing_or_contradict_each_other_mean_destructive(
    hints: dict[str, bool], effect: Effect
) -> None:
    assert offered(listed(hints=hints)).tools[0].effect is effect


def test_the_operator_knows_better_than_the_hints() -> None:
    found = offered(
        listed(),
        listed("write", hints={"read_only_hint": True}),
        effects={"search": "read_only", "write": "destructive"},
    )
    assert [tool.effect for tool in found.tools] == [Effect.READ_ONLY, Effect.DESTRUCTIVE]


def test_names_get_the_prefix_and_only_letters_that_models_can_write() -> None:
    found = offered(listed("repo.search/all"), listed("x" * 70), listed("repo_search.all"), prefix="git_")
    assert [tool.name for tool in found.tools] == ["git_repo_search_all"]
    assert [reason.partition(" ")[0] for reason in found.left_out.values()] == [f"'git_{'x' * 70}'", "another"]


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array"},
        {"type": "object", "properties": {"a": {"type": "texts"}}},
        {"type": "object", "properties": {"a": {"$ref": "https://example.com/a"}}},
        {"type": "object", "allOf": [{"items": [{"$ref": "other.json#/a"}]}]},
        {"type": "object", "required": "a"},
        {"type": "object", "description": "x" * MAX_SCHEMA_CHARS},
    ],
)
def test_a_bad_schema_costs_that_tool_only(schema: dict[str, Any]) -> None:
    found = offered(
        listed("bad", schema), listed("good", {"type": "object", "$defs": {"a": {}}, "$ref": "#/$defs/a"})
    )
    assert ([tool.name for tool in found.tools], [*found.left_out]) == (["it_good"], ["bad"])


def test_regular_expressions_of_a_server_are_not_run_here() -> None:
    named = {"pattern": {"type": "string"}, "properties": {"type": "string"}, "a": {"enum": [{"pattern": "x"}]}}
    slow = {"pattern": {"type": "string", "pattern": "^(a+)+$"}, "properties": {"pattern": "x", "type": "string"}}
    given = {"properties": {**named, **slow}, "allOf": [{"patternProperties": {"(a+)+$": {}}}]}
    (tool,) = offered(listed("a", {"type": "object", **given})).tools
    assert tool.parameters == {"type": "object", "properties": named, "allOf": [{}]}


def test_a_server_has_a_largest_number_of_tools() -> None:
    found = offered(*(listed(f"t{number}") for number in range(MAX_TOOLS + 2)))
    assert (len(found.tools), len(found.left_out)) == (MAX_TOOLS, 2)


def test_all_content_is_text_or_told() -> None:
    result = CallToolResult(
        content=[
            TextContent(type="text", text="a"),
            ImageContent(type="image", data="", mime_type="image/png"),
            AudioContent(type="audio", data="", mime_type="audio/wav"),
            ResourceLink(type="resource_link", name="b", uri="file:///b"),
            EmbeddedResource(type="resource", resource=TextResourceContents(uri="x:c", text="c")),
            EmbeddedResource(type="resource", resource=BlobResourceContents(uri="x:d", blob="")),
        ]
    )
    assert result_text(result).split("\n") == [
        *("a", "[image/png, not shown]", "[audio/wav, not shown]", "[b: file:///b]", "c", "[x:d: data, not shown]")
    ]


def test_a_result_that_is_only_structured_is_its_json() -> None:
    assert result_text(CallToolResult(content=[], structured_content={"a": ["é"]})) == '{"a": ["é"]}'
