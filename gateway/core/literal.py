"""Find strings in the text of a JSON value, and cut pieces out of one; every other byte stays as it came."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import islice
from typing import TypeAlias

import orjson

from gateway.core.splice import members_of, value_end

Path: TypeAlias = tuple[str | int, ...]
"""Keys and indices of a value, from the outside in."""
Span: TypeAlias = tuple[int, int]

_SPACE = re.compile(rb"\s*")
# Text without escapes, or one escaped character; a surrogate pair is one.
_PIECE = re.compile(rb"[^\\]+|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[0-9a-fA-F]{4}|\\u[0-9a-fA-F]{4}|\\.", re.DOTALL)


def locate(raw: bytes, paths: Collection[Path]) -> dict[Path, Span]:
    """Start and end of the value at each path. All must be there. The text is read once, however many they are."""
    start = _SPACE.match(raw).end()  # type: ignore[union-attr]  # it always matches
    return dict(_located(raw, (start, len(raw)), paths, 0))


def _located(raw: bytes, span: Span, paths: Collection[Path], depth: int) -> Iterator[tuple[Path, Span]]:
    """Those below the value at `span`, to which the first `depth` steps of all these paths lead."""
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
    """What these steps lead to from the value at `start`."""
    if raw[start] == ord("{"):
        # Of a repeated key the last counts, as for every parser.
        return {key: (begun, ended) for key, _, begun, ended in members_of(raw, start) if key in steps}
    last = max(step for step in steps if isinstance(step, int))
    elements = enumerate(islice(_elements(raw, start), last + 1))
    return {index: span for index, span in elements if index in steps}


def without(literal: bytes, cuts: Iterable[tuple[int, int]]) -> bytes:
    """A string's text, quotes included, less what lies between the given UTF-8 offsets of the string.

    `cuts`: in order, apart from each other, at the ends of characters.
    """
    offsets = _Offsets(literal)
    kept, done = [], 0
    for start, end in cuts:
        kept.append(literal[done : offsets.raw(start)])
        done = offsets.raw(end)
    return b"".join((*kept, literal[done:]))


class _Offsets:
    """Where UTF-8 offsets of a string are in its JSON text; asked in order."""

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


def _elements(raw: bytes, start: int) -> Iterator[Span]:
    at = start + 1
    while True:
        begun = _SPACE.match(raw, at).end()  # type: ignore[union-attr]
        end = value_end(raw, begun)
        yield begun, end
        at = raw.index(b",", end) + 1
