"""Typed accessors for JSON of unknown shape; a value of the wrong type reads as absent."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeAlias

Json: TypeAlias = dict[str, Any]
"""A parsed JSON object of unknown shape; read it through these accessors."""


def text(body: Mapping[str, Any], key: str) -> str | None:
    value = body.get(key)
    return value if isinstance(value, str) else None


def integer(body: Mapping[str, Any], key: str) -> int | None:
    """A whole number; `true` and `1.0` are none."""
    value = body.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def flag(body: Mapping[str, Any], key: str) -> bool:
    """Only a literal `true` is True."""
    return body.get(key) is True


def items(body: Mapping[str, Any], key: str) -> list[Any]:
    """The list itself, or a new empty one."""
    value = body.get(key)
    return value if isinstance(value, list) else []


def obj(body: Mapping[str, Any], key: str) -> dict[str, Any]:
    """The object itself, or a new empty one."""
    value = body.get(key)
    return value if isinstance(value, dict) else {}


def has_only_objects(values: list[Any]) -> bool:
    """Whether a list holds nothing else; a look at each in C."""
    return {dict}.issuperset(map(type, values))


# ---- bytes that are kept for a while


def trimmed(text: bytes) -> bytes:
    """The same text in no more memory than it needs: `orjson.dumps` leaves up to ten times as much reserved."""
    return bytes(memoryview(text))


# --- What is kept, logged and repeated of a text that a stranger chose: its start, as one visible line.

MAX_CHARS = 256
_MORE = "..."
UNSEEN = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Ends a line, moves a terminal's cursor, turns the order of text around, or is half a character."""


def excerpt(text: str, max_chars: int = MAX_CHARS) -> str:
    """At most that long. Most texts are short and plain, and come back as they are."""
    if len(text) <= max_chars and text.isprintable():
        return text
    seen = visible(text[: max_chars + 1])
    return seen if len(seen) <= max_chars else seen[: max_chars - len(_MORE)] + _MORE


def visible(text: str) -> str:
    """With escapes in the place of what cannot be seen."""
    return UNSEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
