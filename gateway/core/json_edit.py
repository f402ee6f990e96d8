"""Set and remove top-level keys in the text of a JSON object; every other byte stays as it came."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeAlias

import orjson

from gateway.core import pieces
from gateway.core.errors import Failure, Outcome, Refused
from gateway.core.fields import Json, written
from gateway.core.pieces import Member
from gateway.core.slices import LARGE_BYTES

_STRING = rb'"[^"\\]*(?:\\.[^"\\]*)*"'
_SCALAR = re.compile(_STRING + rb"|[^\s,{}\[\]]+", re.DOTALL)
# Everything up to the next bracket that is not inside a string: one match per bracket, at C speed.
_BRACKET = re.compile(rb'[^"{}\[\]]*(?:' + _STRING + rb'[^"{}\[\]]*)*[{}\[\]]', re.DOTALL)


def splice(
    raw: bytes,
    body: Mapping[str, Any],
    put: Mapping[str, Any],
    drop: Collection[str],
    places: Sequence[Member] = (),
) -> bytes:
    """Return `raw` with the keys of `put` set and those of `drop` removed. `body` is `raw` parsed.

    A key that exists keeps its place, and a new key goes to the end. `put` wins over `drop`. All occurrences of a
    repeated key change. `places`: of all members. Where they are not known, the text is scanned when a key that
    exists changes.
    """
    return b"".join(spliced(raw, body, put, drop, places))


def spliced(
    raw: bytes,
    body: Mapping[str, Any],
    put: Mapping[str, Any],
    drop: Collection[str],
    places: Sequence[Member] = (),
) -> list[bytes | memoryview]:
    """As `splice`, in parts: what stays is not copied."""
    dropped = {key for key in drop if key in body and key not in put}
    replaced = {key: value for key, value in put.items() if key in body}
    added = [orjson.dumps(key) + b":" + written(value) for key, value in put.items() if key not in body]
    if not (dropped or replaced):
        return _with_end(raw, [], 0, bool(body), added) if added else [raw]
    out, end = _changed(raw, places or list(members_of(raw)), replaced, dropped)
    return _with_end(raw, out, end, len(body) > len(dropped), added)


def _with_end(
    raw: bytes, out: list[bytes | memoryview], start: int, has_members: bool, added: Sequence[bytes]
) -> list[bytes | memoryview]:
    """Return all parts with the rest of the text from `start` on, and with what is added before its end."""
    view = memoryview(raw)
    if not added:
        return [*out, view[start:]]
    end = raw.rindex(b"}")
    return [*out, view[start:end], (b"," if has_members else b"") + b",".join(added), view[end:]]


def _changed(
    raw: bytes, members: Sequence[Member], replaced: Mapping[str, Any], dropped: Collection[str]
) -> tuple[list[bytes | memoryview], int]:
    """Return the parts up to the end of the last member, and that end. Keep the separator before each member that
    stays, except the first."""
    view = memoryview(raw)
    out: list[bytes | memoryview] = [view[: members[0][1]]]
    end_before = 0
    is_first = True
    for key, start, value_start, end in members:
        if key not in dropped:
            if not is_first:
                out.append(view[end_before:start])
            if key in replaced:
                out += view[start:value_start], written(replaced[key])
            else:
                out.append(view[start:end])
            is_first = False
        end_before = end
    return out, end_before


def members_of(raw: bytes, start: int = 0) -> Iterator[Member]:
    """Yield the members of the object at `start`. Raises Refused where they are too many."""
    try:
        yield from pieces.members_of(raw, value_end, start)
    except pieces.OutOfBounds as error:
        raise out_of_bounds(error) from None


def out_of_bounds(error: pieces.OutOfBounds) -> Refused:
    failure = Failure(400, "invalid_request_error", f"The body is refused: {error}.", code=error.code)
    return Refused(Outcome.BAD_REQUEST, failure)


def value_end(raw: bytes, start: int) -> int:
    """Return the end of the JSON value that starts at `start`."""
    end = None
    if len(raw) >= LARGE_BYTES:
        with suppress(pieces.OutOfBounds):
            end = pieces.value_end(raw, start)
    return scanned_end(raw, start) if end is None else end


def scanned_end(raw: bytes, start: int) -> int:
    """As `value_end`, bracket by bracket, without msgspec and however deep it is nested."""
    if raw[start] not in b"{[":
        scalar = _SCALAR.match(raw, start)
        assert scalar is not None, "raw is not the text of body"
        return scalar.end()
    at, depth = start, 0
    while True:
        bracket = _BRACKET.match(raw, at)
        assert bracket is not None, "raw is not the text of body"
        at = bracket.end()
        depth += 1 if raw[at - 1] in b"{[" else -1
        if depth == 0:
            return at


# ---- find values in the text of a JSON value, and cut pieces out of a string

Path: TypeAlias = tuple[str | int, ...]
"""Keys and indices of a value, from the outside in."""
Span: TypeAlias = tuple[int, int]

_SPACE = re.compile(rb"\s*")
# Text without escapes, or one escaped character; a surrogate pair is one.
_PIECE = re.compile(rb"[^\\]+|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[0-9a-fA-F]{4}|\\u[0-9a-fA-F]{4}|\\.", re.DOTALL)


def locate(raw: bytes, paths: Collection[Path]) -> dict[Path, Span]:
    """Return start and end of the value at each path. All paths must exist. The text is read once for all."""
    start = _SPACE.match(raw).end()  # type: ignore[union-attr]  # it always matches
    return dict(_located(raw, (start, len(raw)), paths, 0))


def _located(raw: bytes, span: Span, paths: Collection[Path], depth: int) -> Iterator[tuple[Path, Span]]:
    """Yield the values below the value at `span`, to which the first `depth` steps of all these paths lead."""
    below: dict[str | int, list[Path]] = {}
    for path in paths:
        if len(path) == depth:
            yield path, span
        else:
            below.setdefault(path[depth], []).append(path)
    if below:
        for step, inner in _children(raw, span[0], below).items():
            yield from _located(raw, inner, below[step], depth + 1)


def _children(raw: bytes, start: int, steps: Mapping[str | int, object]) -> dict[str | int, Span]:
    """Return the values to which these steps lead from the value at `start`."""
    if raw[start] == ord("{"):
        # The last occurrence of a repeated key counts, as for every parser.
        return {key: (begun, ended) for key, _, begun, ended in members_of(raw, start) if key in steps}
    last = max(step for step in steps if isinstance(step, int))
    elements = enumerate(islice(_elements(raw, start), last + 1))
    return {index: span for index, span in elements if index in steps}


def without(literal: bytes, cuts: Iterable[tuple[int, int]]) -> bytes:
    """Return a string's text, quotes included, without the parts between the given UTF-8 offsets of the string.

    `cuts`: in order, apart from each other, at the ends of characters.
    """
    offsets = _Offsets(literal)
    kept, done = [], 0
    for start, end in cuts:
        kept.append(literal[done : offsets.raw(start)])
        done = offsets.raw(end)
    return b"".join((*kept, literal[done:]))


class _Offsets:
    """Maps UTF-8 offsets of a string to offsets in its JSON text. They are looked up in rising order."""

    def __init__(self, literal: bytes) -> None:
        self._pieces = _PIECE.finditer(literal, 1, len(literal) - 1)
        self._start, self._size = 0, 0
        self._raw_start, self._raw_size = 1, 0

    def raw(self, offset: int) -> int:
        while offset > self._start + self._size:
            piece = next(self._pieces)
            self._start += self._size
            self._raw_start, self._raw_size = piece.start(), len(piece[0])
            is_escape = piece[0].startswith(b"\\")
            self._size = len(orjson.loads(b'"' + piece[0] + b'"').encode()) if is_escape else self._raw_size
        if offset == self._start + self._size:
            return self._raw_start + self._raw_size
        return self._raw_start + offset - self._start


# ---- replace and add items of a list in the text of a request; every other byte stays as it came

_NEXT = re.compile(rb"[\s,]*")


@dataclass(frozen=True, slots=True)
class Edit:
    """`items` in the place of those from `start` to `end`."""

    start: int
    end: int
    items: Sequence[Json]


def edited(raw: bytes, body: Json, key: str, edits: Sequence[Edit]) -> tuple[bytes, Json]:
    """Return text and value of a request whose list under `key` was edited. A missing list is created.

    `edits`: in order, apart from each other.
    """
    if not edits:
        return raw, body
    there = body.get(key)
    old = there if isinstance(there, list) else []
    new, at = [], 0
    for edit in edits:
        new += [*old[at : edit.start], *edit.items]
        at = edit.end
    changed = body | {key: new + old[at:]}
    if not isinstance(there, list):
        return splice(raw, body, {key: changed[key]}, ()), changed
    start, end = _value_of(raw, key)
    return raw[:start] + _list(raw, start, edits) + raw[end:], changed


def _list(raw: bytes, start: int, edits: Sequence[Edit]) -> bytes:
    spans = list(_elements(raw, start))
    parts: list[bytes] = []
    at = 0
    for edit in edits:
        parts += [raw[begun:ended] for begun, ended in _joined(spans[at : edit.start])]
        parts += map(written, edit.items)
        at = edit.end
    parts += [raw[begun:ended] for begun, ended in _joined(spans[at:])]
    return b"[" + b",".join(parts) + b"]"


def _joined(spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return one span for neighbours, with the bytes between them."""
    return [(spans[0][0], spans[-1][1])] if spans else []


def _value_of(raw: bytes, key: str) -> tuple[int, int]:
    # The last occurrence of a repeated key counts, as for every parser.
    return [(start, end) for name, _, start, end in members_of(raw) if name == key][-1]


def _elements(raw: bytes, start: int) -> Iterator[Span]:
    """Yield the values of the list at `start`."""
    at = _NEXT.match(raw, start + 1).end()  # type: ignore[union-attr]  # it always matches
    while raw[at] != ord("]"):
        end = value_end(raw, at)
        yield at, end
        at = _NEXT.match(raw, end).end()  # type: ignore[union-attr]
