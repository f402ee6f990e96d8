"""Set and remove top-level keys in the text of a JSON object; every other byte stays as it came."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import orjson

_STRING = rb'"[^"\\]*(?:\\.[^"\\]*)*"'
_KEY = re.compile(rb"\s*(" + _STRING + rb")\s*:\s*", re.DOTALL)
_SCALAR = re.compile(_STRING + rb"|[^\s,{}\[\]]+", re.DOTALL)
# Everything up to the next bracket that is not inside a string: one match per bracket, at C speed.
_BRACKET = re.compile(rb'[^"{}\[\]]*(?:' + _STRING + rb'[^"{}\[\]]*)*[{}\[\]]', re.DOTALL)
_COMMA = re.compile(rb"\s*,")


def splice(raw: bytes, body: Mapping[str, Any], put: Mapping[str, Any], drop: Collection[str]) -> bytes:
    """`raw` with the keys of `put` set and those of `drop` gone. `body` is `raw` parsed.

    A key that is there keeps its place, a new one goes to the end; `put` wins over `drop`. All occurrences of
    a repeated key change. The text is scanned only when a key that is there changes.
    """
    dropped = {key for key in drop if key in body and key not in put}
    replaced = {key: value for key, value in put.items() if key in body}
    if dropped or replaced:
        raw = _change(raw, replaced, dropped)
    added = [orjson.dumps(key) + b":" + orjson.dumps(value) for key, value in put.items() if key not in body]
    if not added:
        return raw
    end = raw.rindex(b"}")
    comma = b"," if len(body) > len(dropped) else b""
    return b"".join((raw[:end], comma, b",".join(added), raw[end:]))


def _change(raw: bytes, replaced: Mapping[str, Any], dropped: Collection[str]) -> bytes:
    """A member that stays brings the separator before it, unless it is the first that stays."""
    members = list(members_of(raw))
    out = [raw[: members[0][1]]]
    end_before = None
    is_first = True
    for key, start, value_start, end in members:
        if key not in dropped:
            if not is_first:
                out.append(raw[end_before:start])
            if key in replaced:
                out += raw[start:value_start], orjson.dumps(replaced[key])
            else:
                out.append(raw[start:end])
            is_first = False
        end_before = end
    out.append(raw[end_before:])
    return b"".join(out)


def members_of(raw: bytes, start: int = 0) -> Iterator[tuple[str, int, int, int]]:
    """Key, start of the key, start of the value and end of the value of each member of the object at `start`."""
    at: int | None = raw.index(b"{", start) + 1
    while at is not None:
        key = _KEY.match(raw, at)
        assert key is not None, "raw is not the text of body"
        end = value_end(raw, key.end())
        yield orjson.loads(key[1]), key.start(1), key.end(), end
        comma = _COMMA.match(raw, end)
        at = comma.end() if comma else None


def value_end(raw: bytes, start: int) -> int:
    """Where the JSON value that starts at `start` ends."""
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
