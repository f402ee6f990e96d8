"""What is kept, logged and repeated of a text that a stranger chose: its start, as one visible line."""

from __future__ import annotations

import re

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
