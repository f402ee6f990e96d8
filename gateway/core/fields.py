"""Values that clients and engines chose: typed accessors for JSON of unknown shape, and excerpts of text.

A value of the wrong type reads as absent.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any, TypeAlias

import orjson

from gateway.core.slices import LARGE_BYTES

Json: TypeAlias = dict[str, Any]
"""A parsed JSON object of unknown shape. Read it through these accessors."""


def text(body: Mapping[str, Any], key: str) -> str | None:
    value = body.get(key)
    return value if isinstance(value, str) else None


def integer(body: Mapping[str, Any], key: str) -> int | None:
    """Return a whole number; `true` and `1.0` are none."""
    value = body.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


_MOST_DIGITS = 64


def count(body: Mapping[str, Any], key: str) -> int | None:
    """Return a whole number as engines with lax parsers read it: 48, and also 48.0 and "48"."""
    value = body.get(key)
    if type(value) is int:
        return value
    if isinstance(value, str) and len(value) <= _MOST_DIGITS:
        try:
            value = float(value)
        except ValueError:
            return None
    return int(value) if isinstance(value, float) and math.isfinite(value) else None


def number(body: Mapping[str, Any], key: str) -> float | None:
    """Return a finite number, whole or not."""
    value = body.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None


def flag(body: Mapping[str, Any], key: str) -> bool:
    """Return True for a literal `true` only."""
    return body.get(key) is True


def items(body: Mapping[str, Any], key: str) -> list[Any]:
    """Return the list itself, or a new empty one."""
    value = body.get(key)
    return value if isinstance(value, list) else []


def obj(body: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return the object itself, or a new empty one."""
    value = body.get(key)
    return value if isinstance(value, dict) else {}


_OBJECTS = frozenset((dict,))


def has_only_objects(values: list[Any]) -> bool:
    """Whether a list holds objects only. The check runs in C."""
    return _OBJECTS.issuperset(map(type, values))


# ---- JSON of an engine, which may be loose


def parsed(text: bytes) -> tuple[object, bytes]:
    """Return the value of an engine's text, and the same as strict JSON; None where it is no JSON.

    Half a surrogate pair, NaN, Infinity and numbers as large are no strict JSON, but Python's own parser and those
    of browsers read some of them. In a text that is not large they are read as `?` and null.
    """
    try:
        return orjson.loads(text), text
    except orjson.JSONDecodeError:
        if len(text) >= LARGE_BYTES:
            return None, text
    try:
        value = json.loads(text, parse_float=_finite, parse_constant=lambda _: None)
        strict = json.dumps(value, ensure_ascii=False).encode(errors="replace")
        return orjson.loads(strict), strict
    except (ValueError, RecursionError):
        return None, text


class TooDeep(ValueError):
    """A value that parsers read and nothing writes: orjson reads a depth of 1,024 and writes 254."""


def written(value: object, option: int | None = None) -> bytes:
    """Return the JSON text of a value that others chose. Raises TooDeep."""
    try:
        return orjson.dumps(value, option=option)
    except orjson.JSONEncodeError:
        raise TooDeep("it is nested too deeply to be written") from None


def _finite(digits: str) -> float | None:
    value = float(digits)
    return value if math.isfinite(value) else None


# ---- text that is kept or logged

MAX_CHARS = 256
_MORE = "..."
UNSEEN = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that end a line, move a terminal's cursor, reverse the order of text, or are half a character."""


def excerpt(text: str, max_chars: int = MAX_CHARS) -> str:
    """Return the start of a text as one visible line, which may be logged and repeated. Most texts are short and
    plain, and are returned as they are."""
    if len(text) <= max_chars and text.isprintable():
        return text
    seen = visible(text[: max_chars + 1])
    return seen if len(seen) <= max_chars else seen[: max_chars - len(_MORE)] + _MORE


def visible(text: str) -> str:
    """Replace invisible characters by escapes."""
    return UNSEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def trimmed(text: bytes) -> bytes:
    """Copy bytes into as much memory as they need: `orjson.dumps` reserves up to ten times as much."""
    return b"%b" % text  # a fifth of the time of `bytes(memoryview(text))`
