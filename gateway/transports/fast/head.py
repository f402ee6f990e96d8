"""Heads of messages: bytes to header lists and back. What is written can never end a line early."""

from __future__ import annotations

from functools import lru_cache
from http import HTTPStatus

from gateway.transport import HeaderList, sendable

RawHeaders = list[tuple[bytes, bytes]]


@lru_cache(maxsize=1024)
def _name(raw: bytes) -> str:
    return raw.decode("ascii")


def decoded(raw: RawHeaders) -> list[tuple[str, str]]:
    """Bytes that are no UTF-8 become surrogates."""
    return [(_name(name), value.decode("utf-8", "surrogateescape")) for name, value in raw]


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
    """The header lines but for those left out, each with its end."""
    lines = [f"{name}: {value}\r\n" for name, value in headers if name.lower() not in left_out]
    text = "".join(lines)
    if text.isascii() and text.count("\n") == text.count("\r") == len(lines) and "\0" not in text:
        return text
    kept = [(name, value) for name, value in headers if name.lower() not in left_out]
    return "".join([f"{sendable(name)}: {sendable(value)}\r\n" for name, value in kept])
