"""Server-sent events without I/O: cut a byte stream into events, read their data, and write events."""

from __future__ import annotations

import re

DONE = b"data: [DONE]\n\n"
"""The whole event that ends a stream of the OpenAI formats."""

MAX_EVENT_BYTES = 8 * 2**20

# A line end, then an empty line. A CR at the end of what has come may still be half of a CRLF: it waits.
_EVENT_END = re.compile(rb"(?:\r\n|\n|\r(?=[^\n]))(?:\r\n|\n|\r(?=[^\n]))")
_LONGEST_END = 4
_CR = ord("\r")
"""A number, since `bytes in bytes` takes thrice the time."""


class EventTooLong(Exception):
    """One event is longer than the limit, so the body is no stream of events."""


class EventSplitter:
    """Cuts a stream into raw events, however it was cut into chunks.

    The events joined, plus `rest()`, are the bytes that went in. An event may hold only comments or empty lines.
    """

    __slots__ = ("_limit_bytes", "held")

    def __init__(self, limit_bytes: int = MAX_EVENT_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self.held = bytearray()
        """The bytes of an event that has not ended."""

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the events that `chunk` completes, each with its empty line.

        Raises EventTooLong when the unfinished event has passed the limit.
        """
        # The common case: one chunk is one event, returned as the same object.
        if not self.held and chunk.find(b"\n\n") == len(chunk) - 2 >= 0 and _CR not in chunk:
            return [chunk]
        rest = self.held
        search_from = max(0, len(rest) - _LONGEST_END + 1)
        rest += chunk
        events = []
        start = 0
        for end in _EVENT_END.finditer(rest, search_from):
            events.append(bytes(rest[start : end.end()]))
            start = end.end()
        del rest[:start]
        if len(rest) > self._limit_bytes:
            raise EventTooLong(f"an event of the stream is longer than {self._limit_bytes} bytes")
        return events

    def rest(self) -> bytes:
        return bytes(self.held)


def data_of(event: bytes) -> bytes | None:
    """Return the data of one event: its `data` lines joined by newlines. None: it has none, as a comment."""
    if event.startswith(b"data: ") and event.find(b"\n") == len(event) - 2 and _CR not in event:
        return event[6:-2]
    lines = [
        line[5:].removeprefix(b":").removeprefix(b" ")
        for line in event.splitlines()
        if line.startswith(b"data:") or line == b"data"
    ]
    return b"\n".join(lines) if lines else None


def event(data: bytes, name: str | None = None) -> bytes:
    """Return one event. `data` is a single line, as compact JSON always is."""
    if name is None:
        return b"data: " + data + b"\n\n"
    return b"event: " + name.encode() + b"\ndata: " + data + b"\n\n"
