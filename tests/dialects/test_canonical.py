"""Laws of canonical texts."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.slices import finished
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


@given(JSON, st.sampled_from([1, 20, 60]))
def test_what_is_written_in_steps_is_written_as_at_once(value: Any, step_chars: int) -> None:
    members = {"content": value, "name": "a text that is longer", "z": [[1, 2] * 40, {"b": 1, "a": None}]}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(canonical, "STEP_CHARS", step_chars)
        patch.setattr(canonical, "_STEP_ITEMS", 3)
        assert finished(canonical.message_in_steps("user", members)) == canonical.message("user", members)
        assert finished(canonical.content_in_steps(value)) == canonical.content(value)
        parts = [{"text": "a"}, value, "b", "c", {"text": 3, "id": 4}, {"text": "d"}]
        assert finished(canonical.content_in_steps(parts)) == canonical.content(parts)
        assert finished(canonical.system_in_steps([value, parts])) == canonical.system([value, parts])


@pytest.mark.parametrize(
    "value",
    [
        "a\n" * 50_000,
        [{"type": "text", "text": "a"}, {"type": "image", "url": "b" * 90}] * 1_000,
        {f"property {n}": {"type": "string", "description": "a"} for n in range(2_000)},
        {"a": {"b": ["c" * 20_000, *range(5_000)], "d": ["e"] * 5_000}},
    ],
    ids=["a text", "parts", "properties", "texts in lists"],
)
def test_no_step_writes_much_of_a_message(value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """30 MB of line ends took 110 ms."""
    most, written = 2_000, [0]

    class Counting:
        OPT_SORT_KEYS, JSONEncodeError = orjson.OPT_SORT_KEYS, orjson.JSONEncodeError

        @staticmethod
        def dumps(given: Any, option: int | None = None) -> bytes:
            text = orjson.dumps(given, option=option)
            written[-1] += len(text)
            return text

    monkeypatch.setattr(canonical, "STEP_CHARS", most)
    monkeypatch.setattr(canonical, "orjson", Counting)
    for _ in canonical.message_in_steps("user", {"content": value}):
        written.append(0)
    assert max(written) <= 4 * most
    assert sum(written) >= len(orjson.dumps(value)) - 10 * len(written)


def test_long_arguments_of_a_call_are_compared_as_they_are_written() -> None:
    for size, is_parsed in ((10, True), (canonical.MOST_ARGUMENT_CHARS, False)):
        text = '{"a": "' + "b" * size + '"}'
        assert isinstance(canonical.arguments(text), dict) is is_parsed


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
