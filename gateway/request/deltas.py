"""Stream events that differ from an earlier one only in a piece of text: known by their bytes, without parsing.

Most events of an answer are like that. Where the text stands is learned from an event that was parsed; an event
with the same bytes before and behind it says nothing but its text.
"""

from __future__ import annotations

from collections.abc import Sequence

import orjson

from gateway.core.reply import Reply

_KEYS = tuple(
    b'"%s":%s"' % (name, space)
    for name in (b"content", b"text", b"arguments", b"partial_json", b"delta")
    for space in (b"", b" ")
)
"""What the text of a delta follows, in the formats that are streamed."""
_FRUITLESS = 8
"""Events to learn from in a row; a format that numbers its events is not looked at further."""


class Deltas:
    """Of one answer. Pieces are kept as they came, and folded into the reply together."""

    __slots__ = ("_before", "_behind", "_call", "_fruitless", "_pieces", "_reply", "_seen")

    def __init__(self, reply: Reply) -> None:
        self._reply = reply
        self._before = self._behind = b""
        self._pieces = bytearray()
        self._call = -1
        """Index of the tool call that the pieces are arguments of; -1: they are the answer's text."""
        self._seen = (0, 0, 0)
        self._fruitless = 0

    def take(self, events: Sequence[bytes]) -> int:
        """How many of the events, from the first on, are one more piece each: those are kept, and need not be
        read."""
        before, behind = self._before, self._behind
        if not before:
            return 0
        start, end = len(before), -len(behind)
        num_taken = 0
        for event in events:
            if not event.startswith(before) or not event.endswith(behind) or len(event) < start - end:
                break  # the two ends may overlap
            piece = event[start:end]
            if b'"' in piece or piece.endswith(b"\\"):
                break  # a quote would end the text, a backslash hides the quote behind it
            self._pieces += piece
            num_taken += 1
        if num_taken:
            self._fruitless = 0
        return num_taken

    def fold(self) -> None:
        """Before the reply is read into or read: put what was kept where it belongs, if it is JSON."""
        if self._pieces:
            try:
                text = orjson.loads(b'"' + self._pieces + b'"')
            except orjson.JSONDecodeError:
                text = ""
            self._pieces.clear()
            if self._call < 0:
                self._reply.written.add(text)
            else:
                self._reply.tool_calls[self._call].written.add(text)
        self._seen = self._sizes()

    def learn(self, event: bytes) -> None:
        """The event has been read since the last `fold`: if it brought but text, know the next one."""
        if self._fruitless >= _FRUITLESS:
            return
        reply, (chars, calls, argument_chars) = self._reply, self._seen
        now_chars, now_calls, now_argument_chars = self._sizes()
        if now_calls != calls or (now_chars > chars) == (now_argument_chars > argument_chars):
            return
        call = -1 if now_chars > chars else now_calls - 1
        written = reply.written if call < 0 else reply.tool_calls[call].written
        if len(written.latest) != written.num_chars - (chars if call < 0 else argument_chars):
            return  # it brought several pieces
        keys = [key for key in _KEYS if key in event]
        if len(keys) != 1 or event.count(keys[0]) != 1:
            return
        start = event.index(keys[0]) + len(keys[0])
        end = event.find(b'"', start)
        if event[start:end] == orjson.dumps(written.latest)[1:-1]:
            self._before, self._behind, self._call = event[:start], event[end:], call
            self._fruitless += 1

    def _sizes(self) -> tuple[int, int, int]:
        reply = self._reply
        calls = reply.tool_calls
        return reply.written.num_chars, len(calls), calls[-1].written.num_chars if calls else 0
