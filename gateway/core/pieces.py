"""Large JSON texts: parsed piece by piece, with the raw text of their parts.

msgspec (extra `fast`) finds the text of a value at twenty times the speed of a parser, without making it. Without
the extra a text is parsed in one step.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from itertools import islice
from types import GenericAlias
from typing import Any, TypeAlias

import orjson

from gateway.core.joining import joined_str
from gateway.core.plain import without_escapes, without_spaces
from gateway.core.slices import Steps
from gateway.core.values import SAMPLES, sampled
from policies.types import value

PIECE_BYTES = 256 * 1024
"""Parsed in one step, but for a single text that is longer."""
MAX_DEPTH = 32
"""A longer value lies no deeper: each level is one more pass over its text. Schemas of tools have about ten."""
MOST_KEYS = 1_024
"""Of the object of a body; one that is repeated counts each time. An API has about fifty."""
MOST_KEY_BYTES = 4_096
"""Of each of them, and of the space beside it."""
MOST_ENTRIES = 300_000
"""Of any other object: a larger one takes 30 ms to grow. The largest vocabularies have 262,144 tokens to bias."""
MOST_DIGITS = 256 * 1024
"""Of a number: it is parsed in one step."""
_SAMPLE_BYTES = 1024
_DENSE_BYTES = {b"[": 64, b"{": 400}
"""A list or an object with more than one comma per so many bytes may hold a million values: their texts would take
more time and memory than they do. A key takes five times the time of an item."""
_SHORT_BYTES = 64 * 1024
_STEP_ITEMS = 8_192
_MOST_BRACKETS = 2_048
"""Lists and objects that are made in one step, unless they are in one short item."""
_NOWHERE = -1
_TRIES = 8
"""Commas at which a list or an object may be cut."""
_TEXT_TRIES = 12
"""Ends of a piece of a text: an escaped surrogate pair has twelve bytes."""

Raw: TypeAlias = Any
"""The text of one value, `msgspec.Raw`: a buffer without a copy."""
Member: TypeAlias = tuple[str, int, int, int]
"""Key, start of the key, start of the value and end of the value."""


class NotJson(ValueError):
    """Says what is wrong with a text, and where."""


class OutOfBounds(NotJson):
    """A body has more than MOST_KEYS keys, or a longer one than MOST_KEY_BYTES; an object has more than
    MOST_ENTRIES; or a long value lies deeper than MAX_DEPTH."""

    def __init__(self, what: str, code: str = "too_many_keys") -> None:
        super().__init__(what)
        self.code = code


@dataclass(slots=True)
class Cut:
    """The raw texts in the object of a body."""

    members: dict[str, Raw]
    """Each value, by its key. Of a repeated key the last."""
    places: Sequence[Member]
    """Of all members, each time that it is there. Empty: they were cut from a copy of the body."""
    lists: dict[str, Sequence[Raw]] = field(default_factory=dict)
    """The items of the large ones that are lists."""

    def items(self, key: str) -> Sequence[Raw]:
        """Return the items of a list; nothing where there is none."""
        if key not in self.lists:
            self.lists[key] = _codecs()[1](self.members[key]) if key in self.members else ()
        return self.lists[key]


@value
class RawParts:
    """Fingerprints of raw texts in a body. Two are equal only where the texts are, byte for byte."""

    tools: int
    """0: it has none."""
    items: Sequence[int]
    """One for each item of the conversation."""


@cache
def _codecs() -> tuple[
    Callable[[Raw], dict[str, Raw]], Callable[[Raw], list[Raw]], Callable[[Raw], Raw], tuple[type[Exception], ...]
]:
    """Return what cuts an object, what cuts a list, what finds a value, and their errors. Raises ImportError."""
    msgspec: Any = import_module("msgspec")
    members = msgspec.json.Decoder(GenericAlias(dict, (str, msgspec.Raw))).decode
    items = msgspec.json.Decoder(GenericAlias(list, (msgspec.Raw,))).decode
    return members, items, msgspec.json.Decoder(msgspec.Raw).decode, (msgspec.MsgspecError, RecursionError)


# ---- the members of an object, one after the other


def value_end(raw: bytes, start: int) -> int | None:
    """Return where the value at a place ends. None: there is no msgspec. Raises NotJson.

    Nothing behind the value is read.
    """
    try:
        _, _, found, errors = _codecs()
    except ImportError:
        return None
    try:
        found(memoryview(raw)[start:])
    except errors as error:
        if isinstance(error, RecursionError):
            raise OutOfBounds("its values are nested too deep", "too_deep") from None
        trailing = _TRAILING.search(str(error))
        if trailing is None:
            raise _misshapen(raw, str(error), start) from None
        end = start + int(trailing[1]) - 1  # it has read one byte behind
        space = raw[max(start, end - MOST_KEY_BYTES) : end]
        return end - len(space) + len(space.rstrip())
    return len(raw.rstrip())


def members_of(raw: bytes, end_of: Callable[[bytes, int], int], start: int = 0) -> Iterator[Member]:
    """Yield the members of the object at `start`. Raises NotJson."""
    begin = _OBJECT.match(raw, start, start + MOST_KEY_BYTES)
    if begin is None:
        raise _fault(raw, start, "an object begins elsewhere")
    at = begin.end()
    if _END.match(raw, at, at + MOST_KEY_BYTES):
        return
    for _ in range(MOST_KEYS):
        key = _KEY.match(raw, at, at + MOST_KEY_BYTES)
        if key is None or raw[key.end() : key.end() + 1].isspace():
            if len(raw) - at < MOST_KEY_BYTES:
                raise _fault(raw, at, "object keys must be strings")
            raise OutOfBounds(f"a key, with the space beside it, has more than {MOST_KEY_BYTES} bytes")
        end = end_of(raw, key.end())
        yield _loaded(key[1], ""), key.start(1), key.end(), end
        behind = _BEHIND.match(raw, end, end + MOST_KEY_BYTES)
        if behind is None:
            raise _fault(raw, end, "expected ',' or '}'")
        if behind[1] == b"}":
            return
        at = behind.end()
    raise OutOfBounds(f"it has more than {MOST_KEYS} keys")


def _fault(raw: bytes, at: int, what: str) -> NotJson:
    return _misshapen(raw, f"{what} (byte {at})")


def cut(raw: bytes) -> Steps[Cut | None]:
    """Return the texts in an object, found one in a step; None for another value, and without msgspec. Raises
    NotJson."""
    return (yield from _cut(raw, (yield from without_escapes(raw))))


def _cut(raw: bytes, plain: bytes) -> Steps[Cut | None]:
    """As `cut`. `plain`: the text without escapes."""
    if not _OBJECT.match(raw, 0, MOST_KEY_BYTES):
        return None
    places, end = list[Member](), 0
    try:
        for place in members_of(raw, lambda _, start: _end_of(plain, start)):
            places.append(place)
            end = place[-1]
            yield
    except _NotCut:
        return None
    rest = raw[end : end + MOST_KEY_BYTES].split(b"}", 1)[1]
    if rest.strip() or len(raw) - end > MOST_KEY_BYTES:
        raise _fault(raw, end, "trailing characters")
    view = memoryview(raw)
    return Cut({key: view[start:end] for key, _, start, end in places}, places)


class _NotCut(Exception):
    """There is no msgspec."""


def _end_of(raw: bytes, start: int) -> int:
    end = value_end(raw, start)
    if end is None:
        raise _NotCut
    return end


# ---- a text, parsed


def outline(raw: Raw, keys: tuple[str, ...], depth: int = 1) -> Steps[dict[str, Any]]:
    """Return those members of an object that have these keys and are short; of a long one that is an object, its
    outline, so many levels deep. A step is one pass over a text, however many values that has. The outline of a
    text that is nested too deep is empty. Raises NotJson."""
    if not _OBJECT.match(memoryview(raw)):
        raise NotJson("it is no object")
    try:
        texts, errors = _outliner(keys), _codecs()[3]
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

    Each step parses at most twice PIECE_BYTES; the passes that cut are steps of their own.
    """
    text = yield from without_spaces(raw)
    try:
        value, found = yield from _parsed(text)
        if found is not None and text is not raw:
            found.places = ()
        return value, found
    except NotJson as error:
        if text is raw:
            raise
        error.args = (_PLACE.sub("", str(error)),)  # it is a place in the copy
        raise


def _parsed(raw: bytes) -> Steps[tuple[Any, Cut | None]]:
    plain = yield from without_escapes(raw)
    found = yield from _cut(raw, plain)
    if found is None:
        return _loaded(raw, ""), None
    document, body = _Document(raw, plain), dict[str, Any]()
    starts = {key: start for key, _, start, _ in found.places}
    for key, text in found.members.items():
        body[key] = yield from document.value(text, starts[key], MAX_DEPTH, key, found.lists)
    return body, found


@dataclass(frozen=True, slots=True)
class _Document:
    """A text whose values are parsed. Each text in it is given with its start, or _NOWHERE."""

    raw: bytes
    plain: bytes
    """It without escapes."""

    def value(
        self, text: Raw, start: int, depth: int, place: str, lists: dict[str, Sequence[Raw]] | None = None
    ) -> Steps[Any]:
        """`lists`: to put the items of a long list in, by its place."""
        if len(text) > PIECE_BYTES:
            first = bytes(memoryview(text)[:1])
            if first == b'"':
                return (yield from _text(text, place))
            if first not in _DENSE_BYTES:
                return _number(text, place)
            if not depth:
                what = f"a value of {len(text)} bytes lies deeper than {MAX_DEPTH} levels ({_shown(place)})"
                raise OutOfBounds(what, "too_deep")
            if _is_dense(text, _DENSE_BYTES[first]):
                dense = yield from _dense(memoryview(text), place)
                if dense is not None:
                    return dense
            if first == b"[":
                items, starts = yield from self._items(text, start)
                if lists is not None:
                    lists[place] = items
                return (yield from self._list(items, starts, depth - 1, place))
            keys, inner, starts = yield from self._members(text, start)
            values = yield from self._list(inner, starts, depth - 1, place)
            return dict(zip(keys, values, strict=True))
        value = _loaded(text, place)
        yield
        return value

    def _items(self, text: Raw, start: int) -> Steps[tuple[list[Raw], list[int]]]:
        """Return the items of a list, and their starts; no starts where they are not known."""
        items = _codecs()[1]
        if start == _NOWHERE or self.plain is self.raw:
            found = items(text)
            yield
            return found, []
        found = items(memoryview(self.plain)[start : start + len(text)])
        yield
        view, at, located, starts = memoryview(self.raw), start + 1, list[Raw](), list[int]()
        for one in found:
            at = _BETWEEN.match(self.raw, at).end()  # type: ignore[union-attr]  # it always matches
            located.append(view[at : at + len(one)])
            starts.append(at)
            at += len(one)
            if len(located) % _STEP_ITEMS == 0:
                yield
        return located, starts

    def _members(self, text: Raw, start: int) -> Steps[tuple[list[str], list[Raw], list[int]]]:
        """Return the keys and the values of an object, and the starts of these; as `_items`."""
        if start != _NOWHERE and self.plain is not self.raw:
            view, located = memoryview(self.raw), dict[str, tuple[int, int]]()
            try:
                for key, _, at, end in members_of(self.raw, lambda _, at: _end_of(self.plain, at), start):
                    located[key] = at, end
                    yield
                spans = located.values()
                return list(located), [view[at:end] for at, end in spans], [at for at, _ in spans]
            except (OutOfBounds, _NotCut):
                pass  # its keys are of no API
        keyed = _codecs()[0](text)
        yield
        return list(keyed), list(keyed.values()), []

    def _list(self, texts: Sequence[Raw], starts: Sequence[int], depth: int, place: str) -> Steps[list[Any]]:
        values: list[Any] = []
        begun = num_bytes = 0
        for at, text in enumerate(texts):
            num_bytes += len(text)
            if num_bytes <= PIECE_BYTES:
                continue
            if begun < at:
                values += yield from _group(texts[begun:at], begun, place)
            begun, num_bytes = at, len(text)
            if num_bytes > PIECE_BYTES:
                start = starts[at] if starts else _NOWHERE
                values.append((yield from self.value(text, start, depth, f"{place}[{at}]")))
                begun, num_bytes = at + 1, 0
        values += yield from _group(texts[begun:], begun, place)
        return values


def _number(text: Raw, place: str) -> Any:
    if len(text) > MOST_DIGITS:
        raise NotJson(f"a number has more than {MOST_DIGITS} digits ({_shown(place)})")
    return _loaded(text, place)


def _text(text: Raw, place: str) -> Steps[str]:
    """Return a long text. A piece of it is a text if no escape and no character is cut, as each JSON text has one
    reading."""
    view = memoryview(text)
    found, at, end = [], 1, len(view) - 1
    while at < end:
        stop = min(at + PIECE_BYTES, end)
        for tried in range(stop, max(at, stop - _TEXT_TRIES), -1):
            try:
                found.append(orjson.loads(b'"%b"' % bytes(view[at:tried])))
            except orjson.JSONDecodeError:
                continue
            at = tried
            break
        else:
            return _loaded(text, place)  # type: ignore[no-any-return]  # it is a text
        yield
    return (yield from joined_str(found))


def _is_dense(text: Raw, comma_bytes: int) -> bool:
    """Return whether a text has more than one comma per so many bytes, by a sample."""
    return sampled(memoryview(text), _SAMPLE_BYTES).count(b",") * comma_bytes > SAMPLES * _SAMPLE_BYTES


def _group(texts: Sequence[Raw], first: int, place: str) -> Steps[list[Any]]:
    """Return the values of some items, of which the first has this index."""
    joined = b"[%b]" % b",".join(texts)
    if len(texts) > 1 and joined.count(b"{") + joined.count(b"[") > _MOST_BRACKETS:
        middle = len(texts) // 2
        values = yield from _group(texts[:middle], first, place)
        return values + (yield from _group(texts[middle:], first + middle, place))
    try:
        values = orjson.loads(joined)
    except orjson.JSONDecodeError:
        values = [_loaded(text, f"{place}[{first + at}]") for at, text in enumerate(texts)]
    yield
    return values


def _dense(text: memoryview, place: str) -> Steps[Any]:
    """Return the value of a list or an object with many commas. It is cut at commas: if both halves are lists or
    objects, their values are those of the whole, as each JSON text has one reading. None: no comma near a place is
    between two values."""
    is_list = text[0] == ord("[")
    values: Any = [] if is_list else {}
    around, add = (b"[%b]", values.extend) if is_list else (b"{%b}", values.update)
    at, end = 1, len(text) - 1
    while end - at > PIECE_BYTES:
        for comma in _commas(text, at + PIECE_BYTES, at + 2 * PIECE_BYTES):
            try:
                add(orjson.loads(around % text[at:comma]))
            except orjson.JSONDecodeError:
                yield
                continue
            at = comma + 1
            break
        else:
            return None
        if len(values) > MOST_ENTRIES and not is_list:
            raise OutOfBounds(f"an object has more than {MOST_ENTRIES} keys ({_shown(place)})")
        yield
    try:
        add(orjson.loads(around % text[at:end]))
    except orjson.JSONDecodeError:
        return _loaded(text, place)
    yield
    return values


def _commas(text: memoryview, start: int, stop: int) -> Iterator[int]:
    return (found.start() for found in islice(_COMMA.finditer(text, start + 1, stop), _TRIES))


def _loaded(text: Raw, place: str) -> Any:
    try:
        return orjson.loads(memoryview(text))
    except orjson.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise NotJson(f"{error.msg} ({_shown(place) if place else where})") from None


def _shown(place: str) -> str:
    return f"in {place[:_MAX_PLACE_CHARS]}"


def _misshapen(raw: bytes, message: str, start: int = 0) -> NotJson:
    """Return the fault that msgspec finds in the shape of a text that begins at `start`."""
    found = _BYTE.search(message)
    at = start + int(found[1]) if found is not None else len(raw)
    line_start = raw.rfind(b"\n", 0, at) + 1
    what = message[: found.start()] if found is not None else message
    line = raw.count(b"\n", 0, at) + 1
    return NotJson(f"{what} (line {line}, column {at - line_start + 1})")


_OBJECT = re.compile(rb"\s*\{")
_COMMA = re.compile(b",")
_END = re.compile(rb"\s*\}")
_BETWEEN = re.compile(rb"[\s,]*")
_KEY = re.compile(rb'\s*("[^"\\]*(?:\\.[^"\\]*)*")\s*:\s*', re.DOTALL)
_BEHIND = re.compile(rb"\s*([,}])")
_TRAILING = re.compile(r"trailing characters \(byte (\d+)\)$")
_BYTE = re.compile(r" \(byte (\d+)\)")
_PLACE = re.compile(r" \(line \d+, column \d+\)$")
_MAX_PLACE_CHARS = 100
