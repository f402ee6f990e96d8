"""Laws of cutting strings in raw JSON."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gateway.core.json_edit import locate, without

TEXT = st.text(st.sampled_from('ab"\\/{}[],: \n\té\u2028\U0001f600'), max_size=12)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)


def places(value: Any, at: tuple[str | int, ...] = ()) -> dict[tuple[str | int, ...], Any]:
    found = {at: value}
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        found |= places(item, (*at, key))
    return found


@given(VALUES, st.booleans(), st.sampled_from([None, 1]), st.sampled_from(["", " ", "\n"]))
def test_all_values_are_found_where_they_are(value: Any, is_ascii: bool, indent: int | None, space: str) -> None:
    raw = (space + json.dumps(value, ensure_ascii=is_ascii, indent=indent) + space).encode()
    expected = {place: item for place, item in places(value).items() if place}
    found = {place: json.loads(raw[start:end]) for place, (start, end) in locate(raw, [*expected]).items()}
    assert found == expected


def test_of_a_repeated_key_the_last_is_meant() -> None:
    raw = b'{"a": "one", "a": "two"}'
    start, end = locate(raw, [("a",)])[("a",)]
    assert raw[start:end] == b'"two"'


@given(TEXT, st.booleans(), st.sets(st.integers(0, 12), max_size=6))
def test_cutting_the_text_cuts_the_string(value: str, is_ascii: bool, ends: set[int]) -> None:
    edges = sorted({len(value[:end].encode()) for end in ends})
    cuts = list(zip(edges[::2], edges[1::2], strict=False))
    literal = json.dumps(value, ensure_ascii=is_ascii).encode()
    expected = value.encode()
    for start, end in reversed(cuts):
        expected = expected[:start] + expected[end:]
    left = without(literal, cuts)
    assert json.loads(left) == expected.decode()
    assert left == json.dumps(expected.decode(), ensure_ascii=is_ascii).encode()


def test_escapes_that_stay_stay_as_they_were_written() -> None:
    assert without(rb'"\u0061\/b c\u00e9d"', [(3, 5)]) == rb'"\u0061\/b\u00e9d"'
