"""Large JSON texts: parsed piece by piece, with the raw text of their parts.

msgspec (extra `fast`) finds the text of a value at twenty times the speed of a parser, without making it. Without
the extra a text is parsed in one step.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from types import GenericAlias
from typing import Any, TypeAlias

import orjson

from gateway.core.slices import Steps

PIECE_BYTES = 256 * 1024
"""Parsed in one step, but for a single text that is longer."""
MAX_DEPTH = 8
"""A value that lies deeper is parsed in one step: each level is one more pass over its text."""
_SAMPLES, _SAMPLE_BYTES, _DENSE_BYTES = 32, 1024, 24
"""A list with more than one comma per _DENSE_BYTES may hold millions of numbers: its texts would take more memory
than its values."""
_TRIES = 8
_SHORT_BYTES = 64 * 1024

Raw: TypeAlias = Any
"""The text of one value, `msgspec.Raw`: a buffer without a copy."""


class NotJson(ValueError):
    """Says what is wrong with a text, and where."""


@dataclass(slots=True)
class Cut:
    """The raw texts in the object of a body."""

    members: dict[str, Raw]
    """Each value, by its key. Of a repeated key the last."""
    lists: dict[str, Sequence[Raw]] = field(default_factory=dict)
    """The items of the large ones that are lists."""

    def items(self, key: str) -> Sequence[Raw]:
        """Return the items of a list; nothing where there is none."""
        if key not in self.lists:
            self.lists[key] = _codecs()[1](self.members[key]) if key in self.members else ()
        return self.lists[key]


@cache
def _codecs() -> tuple[Callable[[Raw], dict[str, Raw]], Callable[[Raw], list[Raw]], tuple[type[Exception], ...]]:
    """Return what cuts an object, what cuts a list, and their errors. Raises ImportError."""
    msgspec: Any = import_module("msgspec")
    members = msgspec.json.Decoder(GenericAlias(dict, (str, msgspec.Raw))).decode
    items = msgspec.json.Decoder(GenericAlias(list, (msgspec.Raw,))).decode
    return members, items, (msgspec.MsgspecError, RecursionError)


def cut(raw: bytes) -> Cut | None:
    """Return the texts in an object; None for another value, for one that is nested too deep, and without
    msgspec. Raises NotJson."""
    try:
        members, _, errors = _codecs()
    except ImportError:
        return None
    if not _OBJECT.match(raw):
        return None
    try:
        return Cut(members(raw))
    except errors as error:
        if isinstance(error, RecursionError):
            return None
        raise _misshapen(raw, str(error)) from None


def outline(raw: Raw, keys: tuple[str, ...], depth: int = 1) -> Steps[dict[str, Any]]:
    """Return those members of an object that have these keys and are short; of a long one that is an object, its
    outline, so many levels deep. A step is one pass over a text, however many values that has. The outline of a
    text that is nested too deep is empty. Raises NotJson."""
    if not _OBJECT.match(memoryview(raw)):
        raise NotJson("it is no object")
    try:
        texts, errors = _outliner(keys), _codecs()[2]
    except ImportError:
        return {key: value for key, value in _loaded(raw, "").items() if key in keys}
    try:
        found = texts(raw)
    except errors as error:
        if isinstance(error, RecursionError):
            return {}
        raise NotJson(str(error)) from None
    values = {}
    for key in keys:
        text = getattr(found, key)
        if len(text) <= _SHORT_BYTES:
            if text:
                values[key] = _loaded(text, key)
        elif depth and _OBJECT.match(memoryview(text)):
            yield
            values[key] = yield from outline(text, keys, depth - 1)
    return values


@cache
def _outliner(keys: tuple[str, ...]) -> Callable[[Raw], Any]:
    """Return what finds the texts of some members of an object; empty ones where there are none. It makes nothing
    of the other members. Raises ImportError."""
    msgspec: Any = import_module("msgspec")
    fields = [(key, msgspec.Raw, msgspec.Raw(b"")) for key in keys]
    decode: Callable[[Raw], Any] = msgspec.json.Decoder(msgspec.defstruct("Outline", fields)).decode
    return decode


def parsed(raw: bytes) -> Steps[tuple[Any, Cut | None]]:
    """Return the value of a text, and its cut if it is an object. Raises NotJson.

    Each step parses about PIECE_BYTES, or one text; the passes that cut are steps of their own.
    """
    found = cut(raw)
    yield
    if found is None:
        return _loaded(raw, ""), None
    body: dict[str, Any] = {}
    for key, text in found.members.items():
        if len(text) > PIECE_BYTES and (inner := _items(text)) is not None:
            found.lists[key] = inner
            yield
            body[key] = yield from _list(inner, MAX_DEPTH, key)
        else:
            body[key] = yield from _value(text, MAX_DEPTH, key)
    return body, found


def _value(text: Raw, depth: int, place: str) -> Steps[Any]:
    if len(text) > PIECE_BYTES and depth:
        start = bytes(memoryview(text)[:1])
        if start == b"[":
            inner = _items(text)
            yield
            if inner is not None:
                return (yield from _list(inner, depth - 1, place))
            return (yield from _dense(bytes(text), place))
        if start == b"{":
            members = _codecs()[0](text)
            yield
            values = yield from _list(list(members.values()), depth - 1, place)
            return dict(zip(members, values, strict=True))
    value = _loaded(text, place)
    yield
    return value


def _items(text: Raw) -> list[Raw] | None:
    """Return the texts of a list; None where it is no list or where they would be too many."""
    view = memoryview(text)
    if bytes(view[:1]) != b"[":
        return None
    starts = (random.randrange(len(view)) for _ in range(_SAMPLES))  # noqa: S311  # no secret
    num_commas = sum(bytes(view[start : start + _SAMPLE_BYTES]).count(b",") for start in starts)
    return None if num_commas * _DENSE_BYTES > _SAMPLES * _SAMPLE_BYTES else _codecs()[1](text)


def _list(texts: Sequence[Raw], depth: int, place: str) -> Steps[list[Any]]:
    values: list[Any] = []
    begun = num_bytes = 0
    for at, text in enumerate(texts):
        num_bytes += len(text)
        if num_bytes <= PIECE_BYTES:
            continue
        if begun < at:
            values += _group(texts[begun:at], begun, place)
            yield
        begun, num_bytes = at, len(text)
        if num_bytes > PIECE_BYTES:
            values.append((yield from _value(text, depth, f"{place}[{at}]")))
            begun, num_bytes = at + 1, 0
    values += _group(texts[begun:], begun, place)
    yield
    return values


def _group(texts: Sequence[Raw], first: int, place: str) -> Sequence[Any]:
    """Return the values of some items, of which the first has this index."""
    try:
        return orjson.loads(b"[%b]" % b",".join(texts))  # type: ignore[no-any-return]  # it is a list
    except orjson.JSONDecodeError:
        return [_loaded(text, f"{place}[{first + at}]") for at, text in enumerate(texts)]


def _dense(text: bytes, place: str) -> Steps[list[Any]]:
    """Return the values of a list with many commas. It is cut at commas: if both halves are lists of values, their
    values are those of the whole, as each JSON text has one reading. Where no comma near a place is between two
    values, all is parsed at once."""
    values: list[Any] = []
    at, end = 1, len(text) - 1
    while end - at > PIECE_BYTES:
        for comma in _commas(text, at + PIECE_BYTES):
            try:
                values += orjson.loads(b"[%b]" % text[at:comma])
            except orjson.JSONDecodeError:
                continue
            at = comma + 1
            break
        else:
            return _loaded(text, place)  # type: ignore[no-any-return]  # it is a list
        yield
    try:
        values += orjson.loads(b"[%b]" % text[at:end])
    except orjson.JSONDecodeError:
        return _loaded(text, place)  # type: ignore[no-any-return]  # it is a list
    return values


def _commas(text: bytes, start: int) -> Iterator[int]:
    for _ in range(_TRIES):
        start = text.find(b",", start + 1)
        if start < 0:
            return
        yield start


def _loaded(text: Raw, place: str) -> Any:
    try:
        return orjson.loads(memoryview(text))
    except orjson.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise NotJson(f"{error.msg} ({f'in {place[:_MAX_PLACE_CHARS]}' if place else where})") from None


def _misshapen(raw: bytes, message: str) -> NotJson:
    """Return the fault that msgspec finds in the shape of a text."""
    found = _BYTE.search(message)
    at = int(found[1]) if found is not None else len(raw)
    line_start = raw.rfind(b"\n", 0, at) + 1
    what = message[: found.start()] if found is not None else message
    line = raw.count(b"\n", 0, at) + 1
    return NotJson(f"{what} (line {line}, column {at - line_start + 1})")


_OBJECT = re.compile(rb"\s*\{")
_BYTE = re.compile(r" \(byte (\d+)\)")
_MAX_PLACE_CHARS = 100
