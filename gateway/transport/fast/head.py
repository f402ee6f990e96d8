"""Heads of HTTP messages: bytes to header lists and back. A written value cannot end its line early."""

from __future__ import annotations

from functools import lru_cache
from http import HTTPStatus
from operator import itemgetter

from gateway.core.transport import HeaderList, sendable

RawHeaders = list[tuple[bytes, bytes]]
_FIRST, _SECOND = itemgetter(0), itemgetter(1)
_KNOWN_NAMES: dict[bytes, str] = {}
_MOST_NAMES, _MOST_NAME_BYTES = 1024, 64
"""Longer names are not remembered: a client could send a new one with each request."""


def _name(raw: bytes) -> str:
    name = raw.decode("ascii")
    if len(raw) <= _MOST_NAME_BYTES:
        if len(_KNOWN_NAMES) >= _MOST_NAMES:
            _KNOWN_NAMES.clear()
        _KNOWN_NAMES[raw] = name
    return name


def decoded(raw: RawHeaders) -> list[tuple[str, str]]:
    """Decode headers. Bytes that are no UTF-8 become surrogates."""
    names, values = map(_FIRST, raw), map(_SECOND, raw)
    try:
        return list(zip(map(_KNOWN_NAMES.__getitem__, names), map(bytes.decode, values), strict=True))
    except (KeyError, UnicodeDecodeError):
        known = _KNOWN_NAMES
        return [(known.get(name) or _name(name), value.decode(errors="surrogateescape")) for name, value in raw]


def size_bytes(target: bytes, raw: RawHeaders) -> int:
    return len(target) + sum(len(name) + len(value) + 4 for name, value in raw)


@lru_cache(maxsize=128)
def status_line(status: int) -> str:
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = ""
    return f"HTTP/1.1 {status} {phrase}\r\n"


def encoded(headers: HeaderList, left_out: frozenset[str]) -> str:
    """Return the header lines, each with its end, except those of `left_out`."""
    if not left_out.isdisjoint(map(str.lower, map(_FIRST, headers))):
        headers = [pair for pair in headers if pair[0].lower() not in left_out]
    text = "\r\n".join(map(": ".join, headers))
    if text.isascii() and text.count("\n") == text.count("\r") == len(headers) - 1 and "\0" not in text:
        return text + "\r\n"
    return "".join([f"{sendable(name)}: {sendable(value)}\r\n" for name, value in headers])
