"""Changes a list in the text of a request: items replaced or added; every other byte stays as it came."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import orjson

from gateway.core.fields import Json
from gateway.core.splice import members_of, splice, value_end

_NEXT = re.compile(rb"[\s,]*")


@dataclass(frozen=True, slots=True)
class Edit:
    """`items` in the place of those from `start` to `end`."""

    start: int
    end: int
    items: Sequence[Json]


def edited(raw: bytes, body: Json, key: str, edits: Sequence[Edit]) -> tuple[bytes, Json]:
    """Text and value of a request whose list under `key` was edited. `edits`: in order, apart from each other.

    A list that is not there is made.
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
        parts += map(orjson.dumps, edit.items)
        at = edit.end
    parts += [raw[begun:ended] for begun, ended in _joined(spans[at:])]
    return b"[" + b",".join(parts) + b"]"


def _joined(spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """One span for neighbours, with what stands between them."""
    return [(spans[0][0], spans[-1][1])] if spans else []


def _value_of(raw: bytes, key: str) -> tuple[int, int]:
    # Of a repeated key the last counts, as for every parser.
    return [(start, end) for name, _, start, end in members_of(raw) if name == key][-1]


def _elements(raw: bytes, start: int) -> Iterator[tuple[int, int]]:
    at = _NEXT.match(raw, start + 1).end()  # type: ignore[union-attr]  # it always matches
    while raw[at] != ord("]"):
        end = value_end(raw, at)
        yield at, end
        at = _NEXT.match(raw, end).end()  # type: ignore[union-attr]
