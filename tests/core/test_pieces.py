"""A text that is parsed piece by piece has the value that it has at once, and no step of it is long."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core import pieces, plain
from gateway.core.pieces import NotJson, OutOfBounds, parsed
from gateway.core.slices import finished
from tests.core.test_json_edit import JSON, texts


@pytest.fixture(autouse=True, scope="module", params=[0, 2], ids=["in plain copies", "as they are"])
def small_pieces(request: pytest.FixtureRequest) -> Any:
    """So that texts of some bytes have many. They are read as they are, and in plain copies."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (pieces, plain):
            patch.setattr(module, "PIECE_BYTES", 12)
        patch.setattr(plain, "FEW_ESCAPES", request.param)
        patch.setattr(plain, "MUCH_SPACE", request.param - 1)
        yield


def in_pieces(raw: bytes) -> Any:
    return finished(parsed(raw))[0]


@given(texts())
def test_an_object_in_pieces_is_the_object(source: tuple[str, list[tuple[str, str]]]) -> None:
    raw = source[0].encode()
    body = in_pieces(raw)
    assert body == orjson.loads(raw)
    assert list(body) == list(orjson.loads(raw)), "the keys are in their order"


@given(JSON)
def test_any_value_in_pieces_is_the_value(value: Any) -> None:
    for raw in (orjson.dumps(value), orjson.dumps(value, option=orjson.OPT_INDENT_2), orjson.dumps({"a": value})):
        assert in_pieces(raw) == value if not raw.startswith(b'{"a"') else in_pieces(raw) == orjson.loads(raw)


@given(st.binary(max_size=40) | st.text(st.sampled_from('{}[]",:\\u1ae0.- tn'), max_size=40).map(str.encode))
def test_what_is_no_json_in_pieces_is_none_at_once(raw: bytes) -> None:
    raw = b'{"messages":[[' + raw + b'],"a long text"]}'
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError:
        with pytest.raises(NotJson):
            in_pieces(raw)
    else:
        assert in_pieces(raw) == value


@pytest.mark.parametrize(
    ("raw", "fault"),
    [
        (b'{"messages":[1,2,]}', "line 1, column 18"),
        (b'{\n"messages":\n[1,2 3]}', "line 3, column 6"),
        (b'{"messages":["a text", {"n": 1e999, "b": "a text"}]}', "in messages[1]"),
        (b'{"messages":[{"role": "user", "content": "\xff and more of it"}]}', "in messages[0][1]"),
        (b'{"messages":', "truncated"),
    ],
)
def test_a_fault_is_named_with_its_place(raw: bytes, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain, "MUCH_SPACE", 1)  # a copy without its spaces has other places
    with pytest.raises(NotJson, match=fault.replace("[", r"\[").replace("]", r"\]")):
        in_pieces(raw)


@pytest.mark.parametrize("value", [list(range(500)), ["a", 'x,"y', "[,]"] * 100, [1.5, None, True, "a"] * 99])
def test_a_list_of_many_numbers_or_short_texts_is_cut_at_commas(value: list[Any]) -> None:
    for raw in (orjson.dumps({"prompt": value}), json.dumps({"prompt": value}).encode()):
        assert in_pieces(raw) == {"prompt": value}


@pytest.mark.parametrize("value", [{"a": 1, "b": [1, 2], "a,": {"c": 3}}, {f'k",{n}': n for n in range(300)}])
def test_an_object_of_many_keys_is_cut_at_commas(value: dict[str, Any]) -> None:
    for raw in (orjson.dumps({"metadata": value}), json.dumps({"metadata": value}, indent=1).encode()):
        assert in_pieces(raw) == {"metadata": value}
        assert list(in_pieces(raw)["metadata"]) == list(value)


@given(st.text(st.sampled_from('ab"\\\n/\u00e9\u4e00\u2028\U0001f600'), max_size=60), st.booleans())
def test_a_text_is_cut_at_no_escape_and_no_character(value: str, is_ascii: bool) -> None:
    for written in (value, value * 7):
        assert in_pieces(json.dumps({"prompt": written}, ensure_ascii=is_ascii).encode()) == {"prompt": written}


def test_a_number_of_more_digits_than_any_has_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "MOST_DIGITS", 20)
    assert in_pieces(b'{"a":[%b]}' % (b"1" * 20)) == orjson.loads(b'{"a":[%b]}' % (b"1" * 20))
    with pytest.raises(NotJson, match="digits"):
        in_pieces(b'{"a":[%b]}' % (b"1" * 21))


def test_a_body_of_more_keys_than_any_has_is_refused_before_it_is_parsed() -> None:
    for keys in ([f"k{n}" for n in range(pieces.MOST_KEYS)], ["k"] * pieces.MOST_KEYS, ["k" * 5_000]):
        raw = b"{" + b"".join(b'"%b":1,' % key.encode() for key in keys) + b'"model":"m"}'
        with pytest.raises(OutOfBounds):
            in_pieces(raw)


def test_an_object_of_more_keys_than_a_vocabulary_has_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "MOST_ENTRIES", 100)
    for num in (90, 400):
        raw = orjson.dumps({"logit_bias": {str(n): 1 for n in range(num)}, "stop": list(range(500))})
        with pytest.raises(OutOfBounds, match="logit_bias") if num > 100 else nullcontext():
            assert in_pieces(raw) == orjson.loads(raw)


@pytest.mark.parametrize("spelled", [(b"[", b"]"), (b'{"a":', b"}")])
def test_a_long_value_is_read_or_refused_by_how_deep_it_lies(spelled: tuple[bytes, bytes]) -> None:
    begin, end = spelled
    for depth in (1, pieces.MAX_DEPTH, pieces.MAX_DEPTH + 1, 900, 1_015):
        raw = b'{"messages":' + begin * depth + b'["a long text"]' + end * depth + b"}"
        if depth < pieces.MAX_DEPTH:
            assert in_pieces(raw) == orjson.loads(raw)
            continue
        with pytest.raises(OutOfBounds, match=r"deeper than 32 levels \(in messages\[|nested too deep") as refused:
            in_pieces(raw)
        assert refused.value.code == "too_deep"


def test_a_short_value_is_read_although_it_is_nested_deeper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "PIECE_BYTES", 1_100)
    raw = b'{"messages":' + b"[" * 500 + b"0" + b"]" * 500 + b"}"
    assert in_pieces(raw) == orjson.loads(raw)


def test_the_raw_texts_are_those_of_the_body() -> None:
    raw = b' {"messages" : [ {"a":1} ,{"b": [2]} ], "model":"m", "messages":[{"c": 3}, {"d":"4"}]} '
    body, cut = finished(parsed(raw))
    assert cut is not None
    assert {key: bytes(text) for key, text in cut.members.items()} == {
        "messages": b'[{"c": 3}, {"d":"4"}]',
        "model": b'"m"',
    }
    assert [bytes(text) for text in cut.items("messages")] == [b'{"c": 3}', b'{"d":"4"}']
    assert cut.items("tools") == ()
    assert body == orjson.loads(raw)


def shapes() -> dict[str, Any]:
    text = "word " * 20
    return {
        "messages": [{"role": "user", "content": text} for _ in range(200)],
        "parts": [{"role": "user", "content": [{"type": "text", "text": text} for _ in range(200)]}],
        "tools": [{"function": {"parameters": {"properties": {f"p{n}": {"type": text} for n in range(200)}}}}],
        "prompt": list(range(5_000)),
        "metadata": {f"k{n}": n for n in range(2_000)},
        "input": "a long text of the user\n" * 500,
    }


def test_no_step_parses_more_than_a_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    most_bytes = 512
    parsed_bytes = [0]

    class Counting:
        JSONDecodeError = orjson.JSONDecodeError

        @staticmethod
        def loads(text: Any) -> Any:
            parsed_bytes[-1] += len(text)
            return orjson.loads(text)

    monkeypatch.setattr(pieces, "PIECE_BYTES", most_bytes)
    monkeypatch.setattr(pieces, "orjson", Counting)
    raw = orjson.dumps(shapes())
    for _ in parsed(raw):
        parsed_bytes.append(0)
    assert max(parsed_bytes) <= 2 * most_bytes + len("[0,]")
    assert len(parsed_bytes) > len(raw) / most_bytes


KEYS = ("id", "usage", "response", "never")
LONG = b'"' + b"a" * 70_000 + b'"'


@pytest.mark.parametrize(
    ("raw", "outline"),
    [
        (b' {"id": "a", "x": [1, 2], "usage": {"n": [1]}}', {"id": "a", "usage": {"n": [1]}}),
        (b'{"id":1,"id":"b"}', {"id": "b"}),
        (b'{"id":%b,"usage":1}' % LONG, {"usage": 1}),
        (b'{"response":{"id":"r","x":%b,"never":null}}' % LONG, {"response": {"id": "r", "never": None}}),
        (b'{"response":{"usage":{"id":%b},"id":1}}' % LONG, {"response": {"id": 1}}),
        (b'{"id":1,"x":' + b"[" * 2_000 + b"]" * 2_000 + b"}", {}),
        (b"{}", {}),
    ],
)
def test_an_outline_has_the_short_members_that_are_asked_for(raw: bytes, outline: Any) -> None:
    assert finished(pieces.outline(raw, KEYS)) == outline


@pytest.mark.parametrize("raw", [b"", b"[1]", b"1", b'{"x":[1,2}', b'{"id":1', b'{"id":"\xff"}'])
def test_what_is_no_object_has_no_outline(raw: bytes) -> None:
    with pytest.raises(NotJson):
        finished(pieces.outline(raw, KEYS))


def test_without_msgspec_an_outline_is_parsed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    pieces._outliner.cache_clear()
    monkeypatch.setitem(sys.modules, "msgspec", None)
    assert finished(pieces.outline(b'{"id":1,"x":[2],"usage":{"x":3}}', KEYS)) == {"id": 1, "usage": {"x": 3}}
