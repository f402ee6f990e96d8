"""What an MCP server says, in our terms: its list of tools, and what a call gave."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from mcp_types import (
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    ResourceLink,
    TextContent,
    TextResourceContents,
    ToolAnnotations,
)
from mcp_types import Tool as Listed

from tool_runtime.arguments import Schema
from tool_runtime.types import Effect, Run, Tool

MAX_TOOLS = 256
MAX_SCHEMA_CHARS = 64_000
MAX_DESCRIPTION_CHARS = 8_000
_BY_NAME = ("properties", "$defs", "definitions", "dependentSchemas")
"""Keywords that hold schemas by names, which may be those of keywords."""
_VALUES = ("const", "enum", "default", "examples")
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True, slots=True)
class Listing:
    """The tools of one server, and why others of it are left out."""

    tools: tuple[Tool, ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """How a server's tools are offered."""

    source: str
    prefix: str
    effects: Mapping[str, str]
    """What the operator knows better than the server's hints, by the server's name of the tool."""


def listing(listed: Iterable[Listed], terms: Terms, run: Callable[[str], Run]) -> Listing:
    """`run` gives what calls the tool of a name."""
    tools: dict[str, Tool] = {}
    left_out: dict[str, str] = {}
    for tool in listed:
        name = terms.prefix + re.sub(r"[^A-Za-z0-9_-]", "_", tool.name)
        if reason := _fault(tool, name, tools):
            left_out[tool.name] = reason
            continue
        tools[name] = Tool(
            name=name,
            description=(tool.description or tool.title or "")[:MAX_DESCRIPTION_CHARS],
            parameters=_without_patterns(tool.input_schema),
            run=run(tool.name),
            effect=_effect(tool, terms),
            source=terms.source,
        )
    return Listing(tuple(tools.values()), left_out)


def _fault(tool: Listed, name: str, tools: Mapping[str, Tool]) -> str:
    """Why a tool cannot be offered; empty if it can."""
    if not _NAME.fullmatch(name):
        return f"{name!r} is no name that models can call: at most 64 letters, digits, _ and -"
    if name in tools:
        return f"another tool is named {name!r}"
    if len(tools) >= MAX_TOOLS:
        return f"the server has more than {MAX_TOOLS} tools"
    if len(json.dumps(tool.input_schema)) > MAX_SCHEMA_CHARS:
        return f"its schema is longer than {MAX_SCHEMA_CHARS} characters"
    try:
        Schema(tool.input_schema)
    except ValueError as error:
        return str(error)
    if foreign := next(_foreign_references(tool.input_schema), ""):
        return f"its schema refers to {foreign}, which lies outside it"
    return ""


def _foreign_references(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        reference = schema.get("$ref")
        if isinstance(reference, str) and not reference.startswith("#"):
            yield reference
    for part in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        yield from _foreign_references(part)


def _without_patterns(schema: Any, is_schema: bool = True) -> Any:
    """A server's regular expressions would run here, where one can take forever. The server itself checks them."""
    if isinstance(schema, list):
        return [_without_patterns(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: part
        if is_schema and key in _VALUES
        else _without_patterns(part, not is_schema or key not in _BY_NAME)
        for key, part in schema.items()
        if not is_schema or key not in ("pattern", "patternProperties")
    }


def _effect(tool: Listed, terms: Terms) -> Effect:
    """Hints that contradict each other count as none."""
    if tool.name in terms.effects:
        return Effect(terms.effects[tool.name])
    hints = tool.annotations or ToolAnnotations()
    if hints.read_only_hint and not hints.destructive_hint:
        return Effect.READ_ONLY
    return Effect.IDEMPOTENT if hints.idempotent_hint and not hints.read_only_hint else Effect.DESTRUCTIVE


def text_of(result: CallToolResult) -> str:
    """What the model reads: texts as they are, of pictures and sounds that they are there."""
    if not result.content and result.structured_content is not None:
        return json.dumps(result.structured_content, ensure_ascii=False)
    return "\n".join(map(_block, result.content))


def _block(block: ContentBlock) -> str:
    match block:
        case TextContent():
            return block.text
        case ResourceLink():
            return f"[{block.name}: {block.uri}]"
        case EmbeddedResource(resource=TextResourceContents() as resource):
            return resource.text
        case EmbeddedResource():
            return f"[{block.resource.uri}: {block.resource.mime_type or 'data'}, not shown]"
        case _:
            return f"[{block.mime_type}, not shown]"
