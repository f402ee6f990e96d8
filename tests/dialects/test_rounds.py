"""Laws of tool rounds: calls that come in pieces."""

from __future__ import annotations

from itertools import pairwise

import orjson
from hypothesis import given
from hypothesis import strategies as st

from gateway.dialects.rounds import ObjectEnd, RoundCall, RoundCalls, added

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-1000, 1000) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.text(), JSON, max_size=4)


def call_of(arguments: str) -> RoundCall:
    return RoundCalls(bool, lambda call: None).put_piece(0, None, "search", arguments)


def cut(text: str, places: list[int]) -> list[str]:
    edges = sorted({0, len(text), *(place % (len(text) + 1) for place in places)})
    return [text[start:end] for start, end in pairwise(edges)]


@given(OBJECTS, st.lists(st.integers(0, 10_000), max_size=8))
def test_an_object_is_over_at_its_last_byte_however_it_is_cut(value: dict[str, object], places: list[int]) -> None:
    end = ObjectEnd()
    pieces = cut(orjson.dumps(value).decode(), places)
    assert [end.feed(piece) for piece in pieces] == [False] * (len(pieces) - 1) + [True]


@given(st.lists(OBJECTS, min_size=1, max_size=4), st.lists(st.integers(0, 10_000), max_size=8))
def test_each_hidden_call_is_completed_once_and_whole(objects: list[dict[str, object]], places: list[int]) -> None:
    completed: list[RoundCall] = []
    calls = RoundCalls(lambda name: name == "write", completed.append)
    texts = [orjson.dumps(value).decode() for value in objects]
    for index, text in enumerate(texts):
        calls.put_piece(index, f"id{index}", "search" if index % 2 else "write", "")
        for piece in cut(text, places):
            calls.put_piece(index, None, None, piece)
    calls.close_all()
    assert [call.arguments for call in completed] == texts[::2]
    assert [call.place for call in calls.shown] == list(range(len(calls.shown)))


def test_a_call_is_complete_before_the_model_has_said_all() -> None:
    completed: list[RoundCall] = []
    calls = RoundCalls(bool, completed.append)
    calls.put_piece(0, "a", "search", '{"q": "}"')
    assert not completed
    calls.put_piece(0, None, None, "}")
    assert [call.arguments for call in completed] == ['{"q": "}"}']


def test_a_call_without_arguments_is_complete_when_the_next_one_begins() -> None:
    completed: list[RoundCall] = []
    calls = RoundCalls(bool, completed.append)
    calls.put_piece(0, "a", "now", "")
    calls.put_piece(1, "b", "now", "")
    assert [call.id for call in completed] == ["a"]


def test_arguments_that_are_no_object_go_into_the_history_as_an_empty_one() -> None:
    for arguments in ("", "{torn", "[1]", "null"):
        assert call_of(arguments).for_history() == "{}"
    assert call_of('{"a": 1.0}').for_history() == '{"a": 1.0}'


def test_a_call_without_an_id_is_given_one() -> None:
    calls = RoundCalls(bool, lambda call: None)
    assert calls.put_piece(0, None, "search", "{}").id.startswith("call_")


def test_usage_is_summed_at_every_depth() -> None:
    a = {"prompt_tokens": 3, "details": {"cached_tokens": None, "x": 1}, "name": "a"}
    b = {"prompt_tokens": 4, "details": {"cached_tokens": 2, "y": 5}, "name": "b"}
    assert added(b, a) == {
        "prompt_tokens": 7,
        "details": {"cached_tokens": 2, "x": 1, "y": 5},
        "name": "a",
    }
