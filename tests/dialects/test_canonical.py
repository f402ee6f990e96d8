"""Laws of canonical texts."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.dialects import canonical

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=3), JSON, max_size=4))
def test_key_order_makes_no_difference(value: dict[str, Any]) -> None:
    assert canonical.dump(dict(reversed(value.items()))) == canonical.dump(value)


@given(JSON)
def test_any_content_has_a_canonical_text(value: Any) -> None:
    orjson.loads(canonical.message("user", {"content": canonical.content(value)}))


def test_a_value_deeper_than_can_be_written_has_one_too() -> None:
    deep = orjson.loads(b"[" * 900 + b"]" * 900)
    assert orjson.loads(canonical.message("user", {"content": deep}))


@pytest.mark.parametrize(
    "value", ["ab", [{"type": "text", "text": "ab"}], [{"text": "a"}, {"type": "text", "text": "b"}]]
)
def test_text_is_the_same_text_in_one_part_or_several(value: Any) -> None:
    assert canonical.content(value) == "ab"


def test_parts_that_are_no_text_stay_in_order() -> None:
    image = {"type": "image_url", "image_url": {"url": "u"}}
    parts = [{"type": "text", "text": "a"}, image | {"cache_control": {}}, {"type": "text", "text": "b"}]
    assert canonical.content(parts) == ["a", image, "b"]


def test_arguments_are_parsed_where_they_are_json() -> None:
    assert canonical.arguments('{"a": 1}') == canonical.arguments('{"a":1}') == {"a": 1}
    assert canonical.arguments('{"a": ') == '{"a": '


def test_the_role_comes_first() -> None:
    assert canonical.message("user", {"content": "x", "name": None}) == b'["user",{"content":"x"}]'


def test_tool_names_are_those_that_calls_carry() -> None:
    tools: list[dict[str, Any]] = [
        {"type": "function", "function": {"name": "chat_style"}},
        {"type": "function", "name": "responses_style"},
        {"name": "anthropic_style", "input_schema": {}},
        {"type": "namespace", "name": "agents", "tools": [{"type": "function", "name": "spawn_agent"}]},
        {"type": "web_search"},
        {},
    ]
    assert canonical.tool_names(tools) == (
        "chat_style",
        "responses_style",
        "anthropic_style",
        "spawn_agent",
        "web_search",
    )
