import random
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from gateway.embedded.sampler import MOST_VALUES, SchemaNotServed, sampled, text_of_pattern

REVIEW = {
    "type": "object",
    "properties": {"file": {"type": "string"}, "bugs": {"type": "array", "items": {"type": "string"}}},
    "required": ["file", "bugs"],
}
TREE = {
    "$ref": "#/$defs/Node",
    "$defs": {
        "Node": {
            "type": "object",
            "properties": {
                "value": {"type": "integer", "minimum": 3, "maximum": 5},
                "next": {"anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}]},
                "children": {"type": "array", "items": {"$ref": "#/$defs/Node"}, "maxItems": 2},
            },
            "required": ["value", "next", "children"],
            "additionalProperties": False,
        }
    },
}
SERVED: list[Any] = [
    REVIEW,
    TREE,
    {},
    True,
    {"const": {"x": 1}},
    {"enum": ["a", 1, None]},
    {"type": "string", "enum": ["a", 1]},
    {"type": ["string", "null"]},
    {"type": "string", "pattern": r"^[A-Z]{2}-\d{4}$"},
    {"type": "string", "pattern": r"^(foo|bar)+\.py$", "minLength": 10, "maxLength": 30},
    {"type": "string", "pattern": "[^/]+/x", "minLength": 40},
    {"type": "string", "minLength": 20, "maxLength": 22},
    {"type": "string", "maxLength": 2},
    {"type": "string", "maxLength": 0},
    *({"type": "string", "format": name} for name in ("date-time", "email", "uuid", "uri", "ipv4", "unknown")),
    {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
    {"type": "number", "minimum": 0.5, "maximum": 0.5},
    {"type": "number", "maximum": -3.5},
    {"type": "integer", "multipleOf": 7, "minimum": 15},
    {"type": "integer", "exclusiveMinimum": 4, "exclusiveMaximum": 6},
    {"type": "array", "items": {"enum": [1, 2, 3]}, "uniqueItems": True, "minItems": 3},
    {"type": "array", "prefixItems": [{"type": "string"}, {"type": "integer"}], "items": False, "minItems": 2},
    {"type": "array", "items": REVIEW, "minItems": 4, "maxItems": 6},
    {"type": "object", "additionalProperties": {"type": "integer"}, "minProperties": 3},
    {"type": "object", "properties": {"a": {}, "b": {}, "c": {}}, "minProperties": 2, "maxProperties": 2},
    {"type": "object", "required": ["free"]},
    {"allOf": [REVIEW, {"properties": {"line": {"type": "number"}}, "required": ["line"]}]},
    {"oneOf": [{"type": "integer", "maximum": 3}, {"type": "string", "maxLength": 3}]},
    {"properties": {"kind": {"const": "a"}}, "required": ["kind"]},
    {"type": "object", "properties": {"a": {"type": "string"}}, "not": {"required": ["z"]}},
]


@pytest.mark.parametrize("schema", SERVED, ids=range(len(SERVED)))
def test_a_sample_keeps_to_its_schema_whatever_the_seed(schema: Any) -> None:
    for seed in range(30):
        assert Draft202012Validator(schema).is_valid(sampled(schema, seed))


def test_a_sample_depends_on_the_schema_and_the_seed_alone() -> None:
    assert sampled(REVIEW, 7) == sampled(REVIEW, 7)
    assert len({str(sampled(REVIEW, seed)) for seed in range(20)}) > 10


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        (False, "false"),
        ({"type": "text"}, "type 'text'"),
        ({"type": 5}, "type '5'"),
        ({"type": "string", "pattern": "(?=a)b"}, "assert"),
        ({"type": "string", "pattern": r"\p{L}"}, "cannot be read"),
        ({"type": "string", "pattern": "^ab$", "minLength": 9}, "fitting length"),
        ({"type": "string", "minLength": 10**9}, "longer"),
        ({"minLength": "x"}, "no valid JSON schema"),
        ({"$ref": "https://example.com/schema"}, "not loaded"),
        ({"$ref": "#/$defs/None"}, "leads nowhere"),
        ({"$ref": "#"}, "without an end"),
        ({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}, "endless depth"),
        ({"type": "array", "minItems": MOST_VALUES + 1}, str(MOST_VALUES)),
        ({"type": "array", "items": {"enum": [1]}, "uniqueItems": True, "minItems": 2}, "different values"),
        ({"type": "integer", "minimum": 3, "maximum": 2}, "no number"),
        ({"enum": []}, "enum"),
        ({"anyOf": []}, "no branch"),
        ({"allOf": [{"type": "string"}, {"type": "null"}]}, "different types"),
        ({"not": {}}, "it uses not"),
    ],
)
def test_a_schema_that_cannot_be_served_is_refused_with_the_reason(schema: Any, says: str) -> None:
    with pytest.raises(SchemaNotServed, match=re.escape(says)):
        sampled(schema, 1)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text("ab", max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", max_size=2), inner, max_size=3),
    max_leaves=6,
)
KEYWORDS = st.sampled_from(
    ["type", "enum", "properties", "items", "required", "anyOf", "minimum", "maxLength", "minItems", "pattern"]
)


@given(st.recursive(JSON, lambda inner: st.dictionaries(KEYWORDS, inner, max_size=4), max_leaves=8), st.integers())
def test_whatever_a_client_calls_a_schema_it_is_served_or_refused(schema: Any, seed: int) -> None:
    try:
        value = sampled(schema, seed)
    except SchemaNotServed:
        return
    assert Draft202012Validator(schema).is_valid(value)


@pytest.mark.parametrize("pattern", [r"\d{3}-\w+", "(a|b)*c?", "[^a-z]{4}", r"^\S+@\S+\.com$", "x{2,}", ".*"])
def test_a_text_of_a_pattern_matches_it(pattern: str) -> None:
    for seed in range(20):
        assert re.search(pattern, text_of_pattern(pattern, random.Random(seed)))
