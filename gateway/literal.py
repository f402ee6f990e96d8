"""Find one string in the text of a JSON value, and cut pieces out of it; every other byte stays as it came."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import orjson

from gateway.splice import members_of, value_end

_SPACE = re.compile(rb"\s*")
# Text without escapes, or one escaped character; a surrogate pair is one.
_PIECE = re.compile(rb"[^\\]+|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[0-9a-fA-F]{4}|\\u[0-9a-fA-F]{4}|\\.", re.DOTALL)


def locate(raw: bytes, path: Sequence[str | int]) -> tuple[int, int]:
    """Start and end of the value at `path`, keys and indices from the outside in. It must be there."""
    start = _SPACE.match(raw).end()  # type: ignore[union-attr]  # it always matches
    end = len(raw)
    for step in path:
        if isinstance(step, str):
            # Of a repeated key the last counts, as for every parser.
            start, end = [(begun, ended) for key, _, begun, ended in members_of(raw, start) if key == step][-1]
        else:
            start, end = _element(raw, start, step)
    return start, end


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


def _element(raw: bytes, start: int, index: int) -> tuple[int, int]:
    at = start + 1
    while True:
        begun = _SPACE.match(raw, at).end()  # type: ignore[union-attr]
        end = value_end(raw, begun)
        if not index:
            return begun, end
        index -= 1
        at = raw.index(b",", end) + 1
