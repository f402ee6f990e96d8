"""The events of an engine's stream on their way to the client: which of their bytes the client gets, and what a
copy of them says.

Most events differ from the one before only in a piece of text. They are known by their bytes, without parsing: a
parsed event shows where the text stands, and an event with the same bytes around it has only new text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import orjson

from gateway.core import fields, pieces, values
from gateway.core.errors import Failure
from gateway.core.fields import Json
from gateway.core.reply import Reply
from gateway.core.slices import finished
from gateway.core.sse import EventSplitter, EventTooLong, data_of
from gateway.core.transport import size_bytes
from gateway.dialects.base import Dialect, Opening
from gateway.engines.base import EngineAdapter, believed, joined
from gateway.request.upstream_request import NO_BOUND, Call
from policies.types import Usage

if TYPE_CHECKING:
    from gateway.dialects.rounds import Round

_KEYS = tuple(
    b'"%s":%s"' % (name, space)
    for name in (b"content", b"text", b"arguments", b"partial_json", b"delta")
    for space in (b"", b" ")
)
"""The bytes before the text of a delta, in all streamed formats."""
_QUOTE, _BACKSLASH = b'"\\'
"""As numbers they are looked for in a third of the time: Python first takes bytes for a number that is none."""
_FRUITLESS = 8
"""Bound on parsed events in a row that taught no pattern. Formats that number their events never repeat one."""
_LEARNED_BYTES = 16 * 1024
"""A longer event teaches none: it would be searched once for each of the keys."""
_FOLDED_BYTES = 128 * 1024
"""Pieces of more bytes are folded at once, since they are parsed together."""


class Deltas:
    """The pieces of text of one answer. They are kept as they come, and folded into the reply together."""

    __slots__ = ("_before", "_behind", "_call", "_fruitless", "_least", "_piece", "_pieces", "_reply", "_seen")

    def __init__(self, reply: Reply) -> None:
        self._reply = reply
        self._before = self._behind = b""
        self._piece, self._least = slice(0), 0
        """Where the text stands in an event of the pattern, and the length of one without text."""
        self._pieces = bytearray()
        self._call = -1
        """Index of the tool call whose arguments the pieces are; -1: they are the answer's text."""
        self._seen = (0, 0, 0)
        self._fruitless = 0

    def take(self, events: Sequence[bytes]) -> int:
        """Keep the events, from the first on, that are one more piece each. Return their number; they need no
        parsing."""
        before, behind = self._before, self._behind
        if not before:
            return 0
        kept, num_taken = self._pieces, 0
        for event in events:
            if not (event.startswith(before) and event.endswith(behind)) or len(event) < self._least:
                break  # the two ends may overlap
            piece = event[self._piece]
            if _QUOTE in piece or (_BACKSLASH in piece and piece.endswith(b"\\")):
                break  # a quote would end the text, a backslash hides the quote behind it
            kept += piece
            num_taken += 1
        if num_taken:
            self._reply.num_events += num_taken
            self._fruitless = 0
            if len(kept) > _FOLDED_BYTES:
                self.fold()
        return num_taken

    def fold(self) -> None:
        """Move the kept pieces into the reply, if they are JSON. Call it before the reply is read or written."""
        if self._pieces:
            found, _ = fields.parsed(b'"' + self._pieces + b'"')
            text = found if isinstance(found, str) else ""
            self._pieces.clear()
            if self._call < 0:
                self._reply.written.append(text)
            else:
                self._reply.tool_calls[self._call].written.append(text)
        self._seen = self._sizes()

    def learn(self, event: bytes) -> None:
        """Learn the pattern of an event that was read since the last `fold` and brought only text."""
        if self._fruitless >= _FRUITLESS or len(event) > _LEARNED_BYTES:
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
            self._piece, self._least = slice(start, end - len(event)), start + len(event) - end
            self._fruitless += 1

    def _sizes(self) -> tuple[int, int, int]:
        reply = self._reply
        calls = reply.tool_calls
        return reply.written.num_chars, len(calls), calls[-1].written.num_chars if calls else 0


# ---- one event stream, without I/O

MAX_HELD_BYTES = 2**20
"""Of events before an answer begins, beside those that repeat the request. More than that is no answer."""
HELD_EVENT_BYTES = 128
"""Memory of a held event beside its bytes."""
_ECHOES = 4
"""Events on arrival (`response.created`, `response.in_progress`) repeat instructions and tools, perhaps
escaped."""

READ_BYTES = 2 * 2**20
"""Of an event, or of an answer that is not streamed. Of a longer one only the outline is read: no model writes as
much text."""
LOOKED_BYTES = 64 * 1024
"""A shorter event is read whatever it holds."""
EVENT_LINES, EVENT_VALUES = 1_000, 200_000
"""Of an event that is read. Its values are parsed in one step."""
OUTLINED = (
    *("id", "object", "type", "status", "model", "usage", "error", "code", "param", "message", "response"),
    *("delta", "stop_reason", "incomplete_details"),
)
"""Keys of what an answer says beside its texts, in all formats."""

_DONE = b"[DONE]"
_NOTHING: Json = {}
"""Stands for an event without JSON, such as a comment."""
_END: Json = {}
"""Stands for the end marker."""


class StreamRelay:
    """The event stream of one answer. `feed` it the engine's bytes, and send the client the bytes that it
    returns."""

    def __init__(
        self,
        dialect: Dialect,
        engine: EngineAdapter,
        reply: Reply,
        call: Call,
        round_: Round | None = None,
        opening: Callable[[], Opening | None] = lambda: None,
    ) -> None:
        """`round_`: filters events where tools of the gateway may be called. `opening`: returns what the client
        has been sent already; called once the answer begins."""
        self._dialect = dialect
        self._engine = engine
        self._reply = reply
        self._hides_usage = call.hides_usage
        self._most = call.most
        self._reads_back = call.added.reads_back
        self._round = round_
        self._splitter = EventSplitter()
        # Where each event is looked at, none can be passed on unread.
        self._deltas = None if round_ is not None or call.added.reads_back else Deltas(reply)
        self._opening = opening
        self._opened: Opening | None = None
        self._held: list[tuple[bytes, Json]] = []
        """Events until the answer begins, each with its JSON. A keep-alive may still go out before them."""
        self._holdable_bytes = MAX_HELD_BYTES + _ECHOES * size_bytes(call.body or b"")
        self._is_released = False
        self.has_begun = False
        """Whether an event came that is part of an answer."""
        self.has_finished = False
        """Whether the engine gave a finish reason: the answer is whole if the stream ends now."""
        self.is_done = False
        """Whether the end marker came: the answer is whole, whatever becomes of the connection."""
        self.failure: Failure | None = None
        """The error that the engine reported instead of an answer, or in the middle of it."""

    def feed(self, chunk: bytes) -> bytes:
        """Return the bytes to send now, empty while the answer has not begun. After a failure the rest is ignored.

        Raises EventTooLong.
        """
        if self.passing((chunk,)):
            return chunk
        try:
            return self._fed(chunk)
        except fields.TooDeep as error:
            raise EventTooLong(f"an event of the stream does not fit: {error}") from None

    def _fed(self, chunk: bytes) -> bytes:
        out: list[bytes] = []
        for event in self._splitter.feed(chunk):
            if self.failure is not None:
                break
            if self._deltas is not None and self._deltas.take((event,)):
                out.append(event)
                continue
            self._fold()
            if (heard := self._heard(event)) is None:
                continue
            if self.has_begun:
                self._show(event, heard, out)
            else:
                self._hold(event, heard)
        return out[0] if len(out) == 1 else b"".join(out)

    def passing(self, chunks: Sequence[bytes]) -> int:
        """Return how many chunks, from the first on, are one event with a piece of text each. They count as fed,
        and go to the client as they are."""
        deltas = self._deltas
        if deltas is None or self._splitter.held or self.failure is not None:
            return 0
        return deltas.take(chunks)

    @property
    def is_delivered(self) -> bool:
        """Whether the bytes that `feed` returned include the end of the answer."""
        return self.has_finished and (self._round is None or self._round.is_shown_whole)

    def rest(self) -> bytes:
        """Return the rest of a stream that is over: an event without its empty line, or held events. Raises
        EventTooLong."""
        self._fold()
        rest, out = self._splitter.rest(), list[bytes]()
        try:
            self._release(out)
            if rest and (heard := self._heard(rest)) is not None:
                self._show(rest, heard, out)
        except fields.TooDeep as error:
            raise EventTooLong(f"an event of the stream does not fit: {error}") from None
        return b"".join(out)

    def _heard(self, event: bytes) -> Json | None:
        """Read an event and return its JSON. None: the client must not see it. Raises EventTooLong."""
        if len(event) > LOOKED_BYTES and not is_readable(event):
            return self._outlined(event)
        data = data_of(event)
        if data is None:
            return _NOTHING
        if data == _DONE:
            self.has_begun = self.is_done = True
            return _END
        parsed, _ = fields.parsed(data)
        if not isinstance(parsed, dict):
            self.has_begun = True
            return _NOTHING
        if self._round is not None:
            fields.written(parsed)  # parts of it are written again, now and in later rounds
        if not self._read(parsed):
            return None
        if self._deltas is not None and self.has_begun and not self.has_finished:
            self._deltas.learn(event)
        return parsed

    def _outlined(self, event: bytes) -> Json | None:
        """Read the outline of an event, which goes to the client as it came. Raises EventTooLong where the gateway
        has to know all of it."""
        if self._round is not None:
            raise EventTooLong(
                "an event of the stream is too long to be searched for calls of the gateway's tools"
            )
        data = data_of(event) if _has_few_lines(event) else None
        is_shown = self._read(_outline(data) if data is not None else _NOTHING)
        if self.has_begun:  # else it repeats the request
            self._reply.num_other_chars += len(event)
        return _NOTHING if is_shown else None

    def _show(self, event: bytes, heard: Json, out: list[bytes]) -> None:
        """Append the bytes of an event that the client gets."""
        if not self._is_released:
            self._release(out)
        round_ = self._round
        if round_ is not None and heard is not _NOTHING:
            if self.failure is None:
                event = round_.shown(event, None if heard is _END else heard)
            else:
                event = round_.failed(event, heard)
        elif self._opened is not None and heard is not _NOTHING and heard is not _END:
            event = self._opened.joined(event, heard)
        if event and self._reads_back:
            event = self._engine.without_read_back(event)
        if event:
            (round_.closing if round_ is not None and round_.holds_end else out).append(event)

    def _hold(self, event: bytes, heard: Json) -> None:
        """Hold an event until the answer begins. Raises EventTooLong."""
        self._holdable_bytes -= len(event) + HELD_EVENT_BYTES
        if self._holdable_bytes < 0:
            raise EventTooLong("it sent too much before its answer")
        self._held.append((event, heard))

    def _release(self, out: list[bytes]) -> None:
        """Release held events. What the client has been sent by now stands before the answer."""
        self._is_released = True
        if (opened := self._opening()) is not None:
            self._opened, self._deltas = opened, None
        held, self._held = self._held, []
        for event, heard in held:
            self._show(event, heard, out)

    def _fold(self) -> None:
        if self._deltas is not None:
            self._deltas.fold()

    def _read(self, event: Json) -> bool:
        failure = self._dialect.is_error(event)
        if failure is not None:
            self.failure = failure
            return self.has_begun
        read_into(self._reply, event, self._dialect, self._engine, self._most)
        if event.get("usage"):
            self._reply.is_usage_of_one = bool(event.get("choices"))
        if self._reply.finish_reason is not None:
            self.has_finished = True
        # What is sent on arrival is held back: an answer that has not begun can still come from another replica.
        if not self.has_begun and fields.text(event, "type") not in self._dialect.preambles:
            self.has_begun = True
        return not (self._hides_usage and self._dialect.is_asked_usage(event))


def is_readable(event: bytes) -> bool:
    """Return whether a long event can be read in one step of a few milliseconds."""
    if len(event) > READ_BYTES or not _has_few_lines(event):
        return False
    return not values.may_be_more(event, EVENT_VALUES) or all(num <= EVENT_VALUES for num in values.counted(event))


def _has_few_lines(event: bytes) -> bool:
    for end in (b"\n", b"\r"):
        at = -1
        for _ in range(EVENT_LINES):
            if (at := event.find(end, at + 1)) < 0:
                break
        else:
            return False
    return True


def _outline(text: bytes) -> Json:
    try:
        return finished(pieces.outline(text, OUTLINED))
    except pieces.NotJson:
        return _NOTHING


def read_into(reply: Reply, event: Json, dialect: Dialect, engine: EngineAdapter, most: Usage = NO_BOUND) -> None:
    """Fold a stream event, or the body of an answer that is not streamed, into the reply. `most`: the largest
    usage that is believed."""
    reply.num_events += 1
    dialect.read(event, reply)
    usage = engine.usage(event)
    if usage is not None:
        usage = joined(usage, reply.usage)
        reply.usage = believed(usage, most)
        if reply.usage is not usage and most.output_tokens is not None:
            # A bound that is read wrong, or not known, makes no tokens free that the client has received.
            relayed = min(usage.output_tokens or 0, reply.relayed_tokens)
            if relayed > most.output_tokens:
                reply.usage = replace(reply.usage, output_tokens=relayed)
    if reply.served_by is None:
        reply.served_by = engine.served_by(event)
    if not reply.id:
        reply.id = fields.text(fields.obj(event, "response") or event, "id") or ""


def read_nothing(reply: Reply, call: Call) -> None:
    """Note what an answer says by leaving it out, before any of it is read."""
    if call.added.names_hits:
        reply.usage = Usage(cached_tokens=0)
