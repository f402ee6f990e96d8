"""Calls as they come in pieces."""

from __future__ import annotations

from itertools import pairwise

import orjson
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.reply import TextBuffer
from gateway.dialects.rounds import Calls, ObjectEnd, Spoken

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-1000, 1000) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.text(), JSON, max_size=4)


def cut(text: str, places: list[int]) -> list[str]:
    edges = sorted({0, len(text), *(place % (len(text) + 1) for place in places)})
    return [text[start:end] for start, end in pairwise(edges)]


@given(OBJECTS, st.lists(st.integers(0, 10_000), max_size=8))
def test_an_object_is_over_at_its_last_byte_however_it_is_cut(value: dict[str, object], places: list[int]) -> None:
    end = ObjectEnd()
    pieces = cut(orjson.dumps(value).decode(), places)
    assert [end.feed(piece) for piece in pieces] == [False] * (len(pieces) - 1) + [True]


@given(st.lists(OBJECTS, min_size=1, max_size=4), st.lists(st.integers(0, 10_000), max_size=8))
def test_each_call_of_ours_is_told_of_once_and_whole(objects: list[dict[str, object]], places: list[int]) -> None:
    told: list[Spoken] = []
    calls = Calls(lambda name: name == "ours", told.append)
    texts = [orjson.dumps(value).decode() for value in objects]
    for index, text in enumerate(texts):
        calls.heard(index, f"id{index}", "theirs" if index % 2 else "ours", "")
        for piece in cut(text, places):
            calls.heard(index, None, None, piece)
    calls.ended()
    assert [call.arguments for call in told] == texts[::2]
    assert [call.place for call in calls.clients] == list(range(len(calls.clients)))


def test_a_call_is_complete_before_the_model_has_said_all() -> None:
    told: list[Spoken] = []
    calls = Calls(bool, told.append)
    calls.heard(0, "a", "search", '{"q": "}"')
    assert not told
    calls.heard(0, None, None, "}")
    assert [call.arguments for call in told] == ['{"q": "}"}']


def test_a_call_without_arguments_is_complete_when_the_next_one_begins() -> None:
    told: list[Spoken] = []
    calls = Calls(bool, told.append)
    calls.heard(0, "a", "now", "")
    calls.heard(1, "b", "now", "")
    assert [call.id for call in told] == ["a"]


def test_arguments_that_are_no_object_go_into_the_history_as_an_empty_one() -> None:
    for arguments in ("", "{torn", "[1]", "null"):
        assert Spoken(written=TextBuffer(arguments)).for_history() == "{}"
    assert Spoken(written=TextBuffer('{"a": 1.0}')).for_history() == '{"a": 1.0}'


def test_a_call_without_an_id_is_given_one() -> None:
    calls = Calls(bool, lambda call: None)
    assert calls.heard(0, None, "search", "{}").id.startswith("call_")
