"""What a volatile span may be, guessed from its characters."""

from __future__ import annotations

import re

KINDS = ("header", "date", "path", "id", "number", "text")
MAX_CHARS = 512
"""A longer span is `text`, whatever is in it."""
_CLASSES = re.compile(
    rb"(?P<header>^\s*x-[\w-]+\s*[:=])"
    rb"|(?P<date>\b\d{4}-\d\d-\d\d|\b\d\d?:\d\d\b|\b\d\d?/\d\d?/\d{4}\b|\b1[5-9]\d{8}(?:\d{3})?\b"
    rb"|\b(?:mon|tue|wed|thu|fri|sat|sun)(?:day|sday|nesday|rsday|urday)?,? \w+ \d)"
    rb"|(?P<path>(?:~|\b[a-z]:|\.\.?|(?<![\w/<]))(?:[\\/][\w.@+-]+){2,})"
    rb"|(?P<id>\b[0-9a-f]{8}-[0-9a-f]{4}-|\b(?=[a-f]*\d)[0-9a-f]{7,}\b|\b(?=[a-z_-]*\d)[\w-]{16,})"
    rb"|(?P<number>\d)",
    re.IGNORECASE | re.MULTILINE,
)


def kind_of(span: bytes) -> str:
    """What it may be, by the first of its characters that say so."""
    match = _CLASSES.search(span) if len(span) <= MAX_CHARS else None
    return (match and match.lastgroup) or "text"
