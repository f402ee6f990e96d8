from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tool_runtime.arguments import MAX_CHARS, InvalidArguments, Schema, canonical_text
from tool_runtime.runtime import ToolRuntime
from tool_runtime.types import Call, Context, Json, Tool

SEARCH: Json = {
    "type": "object",
    "properties": {
        "query": {"type": "string"},
        "limit": {"type": "integer", "minimum": 1},
        "tags": {"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}]},
    },
    "required": ["query"],
    "additionalProperties": False,
}

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"query": "a"}', {"query": "a"}),
        ('{"query": "a", "limit": "5"}', {"query": "a", "limit": 5}),
        ('{"query": "a", "tags": "[\\"x\\"]"}', {"query": "a", "tags": ["x"]}),
        ('{"query": "5"}', {"query": "5"}),
    ],
    ids=["as it is", "a number in quotes", "a list in quotes", "a text that looks like a number"],
)
def test_what_a_model_means_is_read(text: str, value: Json) -> None:
    assert Schema(SEARCH).read(text).value == value


@pytest.mark.parametrize("text", ["", "  ", "null", "{}"])
def test_a_tool_without_parameters_is_called_in_any_way(text: str) -> None:
    assert Schema({"type": "object"}).read(text).value == {}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"query": "a"', "not JSON: Expecting ',' delimiter at character 13, near"),
        ("[1]", "a JSON object is needed, not [1]"),
        ("{}", "- $: 'query' is a required property"),
        ('{"query": 5}', "- $.query: 5 is not of type 'string'"),
        ('{"query": "a", "limit": "many"}', "- $.limit: 'many' is not of type 'integer'"),
        ('{"query": "a", "limit": 0}', "- $.limit: 0 is less than the minimum of 1"),
        ('{"query": "a", "tags": [1]}', "- $.tags[0]: 1 is not of type 'string'"),
        ('{"query": "a", "page": 2}', "Additional properties are not allowed ('page' was unexpected)"),
        ('{"query": NaN}', "NaN is not JSON"),
        ('{"query": "a", "limit": 1e999}', "Invalid arguments"),
        ('{"query": "\\ud800"}', "surrogates not allowed"),
        ('{"query": "a", "limit": ' + "9" * 5_000 + "}", "Invalid arguments: Exceeds the limit"),
        ('{"query": ' + "[" * 100_000 + "]" * 100_000 + "}", "nested too deeply"),
        (" " * (MAX_CHARS + 1), "at most 1000000 are read"),
    ],
)
def test_an_error_says_what_to_repair(text: str, said: str) -> None:
    with pytest.raises(InvalidArguments) as error:
        Schema(SEARCH).read(text)
    assert said in str(error.value)


def test_an_error_does_not_repeat_a_long_value() -> None:
    with pytest.raises(InvalidArguments) as error:
        Schema(SEARCH).read(json.dumps({"query": ["x" * 10_000]}))
    assert len(str(error.value)) < 400


@pytest.mark.parametrize(
    "schema", [{"type": "objekt"}, {"type": "array"}, {"properties": []}, {"required": "query"}], ids=str
)
def test_a_bad_schema_is_found_before_any_call(schema: Json) -> None:
    with pytest.raises(ValueError, match=r"not a JSON Schema|describes an object"):
        Schema(schema)


@pytest.mark.parametrize("reference", ["http://127.0.0.1:1/schema", "file:///etc/passwd", "#/$defs/none"])
def test_a_schema_that_refers_elsewhere_is_not_followed(reference: str) -> None:
    schema = Schema({"type": "object", "properties": {"a": {"$ref": reference}}})
    with pytest.raises(InvalidArguments, match="which it lacks"):
        schema.read('{"a": 1}')


@given(st.dictionaries(st.text(), JSON_VALUES, max_size=5), st.randoms())
def test_equal_arguments_have_one_canonical_text(value: dict[str, Any], random: Any) -> None:
    items = list(value.items())
    random.shuffle(items)
    schema = Schema({"type": "object"})
    one = schema.read(json.dumps(value))
    other = schema.read(json.dumps(dict(items), indent=2, ensure_ascii=False))
    assert one.canonical == other.canonical
    assert json.loads(one.canonical) == one.value == value


def test_raw_text_that_is_not_json_is_its_own_canonical_text() -> None:
    assert [canonical_text(text) for text in ('{"b":1, "a":2}', "{oops")] == ['{"a":2,"b":1}', "{oops"]


class Looked(dict[str, int]):
    """An object that counts how often it is looked into."""

    num = 0

    def items(self) -> Any:
        Looked.num += 1
        return super().items()


def test_items_that_must_differ_are_not_compared_each_with_each() -> None:
    """3,000 objects, 30 kB that a model may write, took 11 s; ten times as many take a hundred times as long."""
    unique = Schema({"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}})
    validator: Any = unique._validator
    assert list(validator.iter_errors({"a": [Looked(k=number) for number in range(300)]})) == []
    assert Looked.num <= 1_000
    with pytest.raises(InvalidArguments, match="non-unique"):
        unique.read('{"a": [{"x": 1, "y": 2}, {"y": 2, "x": 1}]}')
    assert unique.read('{"a": [1, true, "1", [1], {"1": 1}]}').value


async def test_long_arguments_are_checked_beside_the_loop() -> None:
    """A megabyte of them takes seconds, in which others are served."""
    ticks, at_start = [0], []

    async def run(arguments: Json, context: Context) -> str:
        at_start.append(ticks[0])
        return str(len(arguments["a"]))

    async def tick() -> None:
        while True:
            ticks[0] += 1
            await asyncio.sleep(0)

    schema = {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "integer"}}}}
    runtime = ToolRuntime([Tool(name="t", description="", parameters=schema, run=run)], clock=time.monotonic)
    ticking = asyncio.create_task(tick())
    text = f'{{"a": [{",".join("1" * 300_000)}]}}'
    assert (await runtime.run(Call("1", "t", text), Context("acme"))).text == "300000"
    ticking.cancel()
    assert at_start[0] > 20
    await runtime.close()
