"""Edits of a list in a request's text."""

from __future__ import annotations

from typing import Any

import orjson
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.json_edit import Edit, edited

ITEMS = st.lists(
    st.dictionaries(st.text(max_size=3), st.integers(0, 9) | st.text(max_size=4), max_size=2), max_size=6
)


@st.composite
def edits(draw: st.DrawFn, length: int) -> list[Edit]:
    edges = sorted(draw(st.lists(st.integers(0, length), max_size=6)))
    pairs = list(zip(edges[::2], edges[1::2], strict=False))
    return [Edit(start, end, draw(ITEMS)) for start, end in pairs]


@given(st.data(), ITEMS, st.booleans())
def test_the_text_says_what_the_value_is(data: st.DataObject, items: list[Any], is_spaced: bool) -> None:
    body = {"model": "m", "messages": items, "z": [1, {"messages": 2}]}
    raw = orjson.dumps(body, option=orjson.OPT_INDENT_2 if is_spaced else 0)
    text, value = edited(raw, body, "messages", data.draw(edits(len(items))))
    assert orjson.loads(text) == value
    assert (value["model"], value["z"]) == (body["model"], body["z"])


def test_every_byte_of_what_stays_is_as_it_came() -> None:
    raw = b'{ "messages" :[ {"a" : 1.0} , {"b":2 },\n{"c": 3}] ,"x":1e3}'
    text, _ = edited(raw, orjson.loads(raw), "messages", [Edit(1, 2, [{"new": 1}]), Edit(3, 3, [{"end": 1}])])
    assert text == b'{ "messages" :[{"a" : 1.0},{"new":1},{"c": 3},{"end":1}] ,"x":1e3}'


def test_a_list_that_is_not_there_is_made() -> None:
    text, value = edited(b'{"model":"m"}', {"model": "m"}, "tools", [Edit(0, 0, [{"name": "a"}])])
    assert orjson.loads(text) == value == {"model": "m", "tools": [{"name": "a"}]}
    text, value = edited(b'{"tools":null}', {"tools": None}, "tools", [Edit(0, 0, [{"name": "a"}])])
    assert orjson.loads(text) == value


def test_no_edit_leaves_the_same_objects() -> None:
    raw, body = b'{"messages": []}', {"messages": list[Any]()}
    assert edited(raw, body, "messages", []) == (raw, body)
