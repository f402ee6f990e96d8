"""Laws of changing top-level keys in raw JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core import json_edit, pieces
from gateway.core.errors import Refused
from gateway.core.fields import Json
from gateway.core.json_edit import splice, spliced
from gateway.core.slices import finished

TEXT = st.text(st.sampled_from('abc"\\{}[],: \n\té\u2028'), max_size=6)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats(-1e9, 1e9) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(TEXT, JSON, max_size=5)
SPACE = st.sampled_from(["", " ", "\n\t ", "\r\n"])


@st.composite
def texts(draw: st.DrawFn) -> tuple[str, list[tuple[str, str]]]:
    """The text of an object with odd spacing, escapes and repeated keys; and its members as key and text."""
    members = draw(st.lists(st.tuples(TEXT, JSON), max_size=6))
    written = []
    for key, value in members:
        name = json.dumps(key, ensure_ascii=draw(st.booleans()))
        if key and draw(st.booleans()):
            name = f'"\\u{ord(key[0]):04x}' + json.dumps(key[1:])[1:]
        separators = draw(st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", " : ")]))
        value_text = json.dumps(value, separators=separators, ensure_ascii=draw(st.booleans()))
        written.append((key, f"{name}{draw(SPACE)}:{draw(SPACE)}{value_text}"))
    gaps = [(draw(SPACE), draw(SPACE)) for _ in written]
    inner = ",".join(before + text + after for (_, text), (before, after) in zip(written, gaps, strict=True))
    return f"{draw(SPACE)}{{{inner}{draw(SPACE)}}}{draw(SPACE)}", written


@contextmanager
def as_large() -> Iterator[None]:
    """Texts of a few bytes are edited as large ones are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_edit, "LARGE_BYTES", 0)
        yield


@pytest.mark.parametrize("size", [nullcontext, as_large])
@given(texts(), OBJECTS, st.lists(TEXT, max_size=3), st.data())
def test_the_result_is_the_object_with_the_keys_set_and_removed(
    size: Callable[[], AbstractContextManager[None]],
    source: tuple[str, list[tuple[str, str]]],
    put: Json,
    drop: list[str],
    data: st.DataObject,
) -> None:
    text, members = source
    body = json.loads(text)
    if members:
        put = put | data.draw(st.dictionaries(st.sampled_from(sorted(body)), JSON, max_size=2))
        drop = drop + data.draw(st.lists(st.sampled_from(sorted(body)), max_size=3))
    with size():
        result = splice(text.encode(), body, put, drop)
        cut = finished(pieces.cut(text.encode()))
    assert cut is not None
    assert b"".join(spliced(text.encode(), body, put, drop, cut.places)) == result
    expected = {key: value for key, value in body.items() if key not in drop} | put
    assert orjson.loads(result) == expected
    # Every member that was not asked about is there byte by byte, and in the same order.
    at = 0
    for key, member in members:
        if key not in put and key not in drop:
            at = result.index(member.encode(), at) + len(member.encode())


@given(texts(), OBJECTS)
def test_new_keys_only_insert_bytes_before_the_last_brace(
    source: tuple[str, list[tuple[str, str]]], put: Json
) -> None:
    text, _ = source
    raw, body = text.encode(), json.loads(text)
    put = {key: value for key, value in put.items() if key not in body}
    end = raw.rindex(b"}")
    result = splice(raw, body, put, ())
    assert result.startswith(raw[:end])
    assert result.endswith(raw[end:])


def test_nothing_to_do_returns_the_same_object() -> None:
    raw = b'{"a":1}'
    assert splice(raw, {"a": 1}, {}, ["b"]) is raw


@pytest.mark.parametrize(
    ("raw", "put", "drop", "expected"),
    [
        (b"{}", {"a": 1}, [], b'{"a":1}'),
        (b"{ }", {"a": 1}, [], b'{ "a":1}'),
        (b'{"a":1}', {}, ["a"], b"{}"),
        (b'{"a":1}', {"b": 2}, ["a"], b'{"b":2}'),
        (b'{"a":1, "b": 2, "c":3}\n', {}, ["a"], b'{"b": 2, "c":3}\n'),
        (b'{"a":1, "b": 2, "c":3}', {}, ["b"], b'{"a":1, "c":3}'),
        (b'{"a":1, "b": 2, "c":3 }', {}, ["c"], b'{"a":1, "b": 2 }'),
        (b'{"a":1,"b":2,"a":3}', {}, ["a"], b'{"b":2}'),
        (b'{"a":1,"b":2,"a":3}', {"a": 9}, [], b'{"a":9,"b":2,"a":9}'),
        (b'{"a" : {"b":"}"} ,"b":[1]}', {"b": {}}, ["b"], b'{"a" : {"b":"}"} ,"b":{}}'),
        (
            b'{"id":18446744073709551615}',
            {"x": 18446744073709551615},
            [],
            b'{"id":18446744073709551615,"x":18446744073709551615}',
        ),
    ],
)
def test_examples(raw: bytes, put: Json, drop: list[str], expected: bytes) -> None:
    assert splice(raw, orjson.loads(raw), put, drop) == expected


def test_the_brackets_of_a_large_value_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """32 MB took two seconds."""
    messages = [{"role": "user", "content": [{"type": "text", "text": "a"}]}] * 10_000
    raw = orjson.dumps({"messages": messages, "model": "m", "tools": [{}] * 9})
    ends: list[int] = []
    scanned_end = json_edit.scanned_end

    def counted(raw: bytes, start: int) -> int:
        ends.append(start)
        return scanned_end(raw, start)

    monkeypatch.setattr(json_edit, "scanned_end", counted)
    changed = splice(raw, orjson.loads(raw), {"model": "other"}, ("tools",))
    assert orjson.loads(changed) == {"messages": messages, "model": "other"}
    assert not ends


def test_no_more_members_of_an_object_are_looked_at_than_a_body_may_have(monkeypatch: pytest.MonkeyPatch) -> None:
    """8 MB of one key again and again took three seconds."""
    looked_at = []
    members_of = pieces.members_of

    def counted(raw: bytes, end_of: Callable[[bytes, int], int], start: int = 0) -> Iterator[Any]:
        for member in members_of(raw, end_of, start):
            looked_at.append(member)
            yield member

    monkeypatch.setattr(pieces, "members_of", counted)
    for num, is_allowed in ((pieces.MOST_KEYS - 1, True), (pieces.MOST_KEYS, False), (100_000, False)):
        raw = b'{"model":"a",' * num + b'"user":"b"}'
        raw = b"{" + raw.replace(b"{", b"")
        with nullcontext() if is_allowed else pytest.raises(Refused, match="more than 1024 keys"):
            splice(raw, {"model": "a", "user": "b"}, {"model": "c"}, ())
        assert len(looked_at) <= pieces.MOST_KEYS
        looked_at.clear()


def test_a_key_that_is_longer_than_any_is_not_read() -> None:
    for key in (b'"' + b"k" * 10_000 + b'":1', b" " * 10_000 + b'"k":1', b'"k":' + b" " * 10_000 + b"1"):
        with pytest.raises(Refused, match="more than 4096 bytes"):
            splice(b'{"model":"a",%b}' % key, {"model": "a"}, {"model": "c"}, ())


def test_a_repeated_key_is_not_taken_for_its_last_value() -> None:
    """Else a key that is dropped could hide between two values of another one."""
    for first, last in (("[1]", json.dumps(["a" * 5_000] * 60)), ("1" * 300_001, "1" * 300_000)):
        raw = f'{{"a":{first},"priority":1,"a":{last},"priority":2}}'.encode()
        changed = splice(raw, {"a": 0, "priority": 2}, {}, ("priority",))
        assert changed == f'{{"a":{first},"a":{last}}}'.encode()
