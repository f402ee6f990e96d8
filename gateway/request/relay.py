"""Which bytes of an engine's event stream go to the client, and what a copy of them says. No I/O.

Bytes leave in whole events, unchanged and in order. What we asked for and the client did not is taken out again:
the usage report, which is an event of its own, and what an engine's `without_read_back` knows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import orjson

from gateway.core import fields
from gateway.core.errors import Failure
from gateway.core.fields import Json
from gateway.core.reply import Reply
from gateway.core.sse import EventSplitter, data_of
from gateway.dialects.base import Dialect, Opening
from gateway.engines.base import Engine
from gateway.request.deltas import Deltas
from gateway.request.upstream_request import Call

if TYPE_CHECKING:
    from gateway.dialects.rounds import Round

_DONE = b"[DONE]"
_NOTHING: Json = {}
"""Of an event that says nothing that can be read, such as a comment."""
_END: Json = {}
"""Of the end marker."""
_PREAMBLES = frozenset(("response.created", "response.in_progress", "response.queued", "message_start", "ping"))
"""Events that engines send on arrival, before the prefill: they are held back, since an answer that has not begun
can still be had from another replica."""


class StreamRelay:
    """One answer. `feed` what the engine sends, send what it returns."""

    def __init__(
        self,
        dialect: Dialect,
        engine: Engine,
        reply: Reply,
        call: Call,
        round_: Round | None = None,
        opening: Callable[[], Opening | None] = lambda: None,
    ) -> None:
        """`round_`: decides what the client gets of each event, where our tools may be called. `opening`: what the
        client has been sent already, asked for once the answer begins."""
        self._dialect = dialect
        self._engine = engine
        self._reply = reply
        self._hides_usage = call.hides_usage
        self._reads_back = call.added.reads_back
        self._round = round_
        self._splitter = EventSplitter()
        # Where each event is looked at, none can be passed on unread.
        self._deltas = None if round_ is not None or call.added.reads_back else Deltas(reply)
        self._opening = opening
        self._opened: Opening | None = None
        self._held: list[tuple[bytes, Json]] = []
        """Events until the answer begins, each with what it says: only then is known what stands before them."""
        self._is_released = False
        self.has_begun = False
        """Whether an event has come that is part of an answer."""
        self.has_finished = False
        """Whether the engine has said why its answer ends: it is whole if the stream ends now."""
        self.is_done = False
        """Whether the end marker has come: it is whole, whatever becomes of the connection."""
        self.failure: Failure | None = None
        """What the engine reported instead of an answer, or in the middle of it."""

    def feed(self, chunk: bytes) -> bytes:
        """The bytes to send now, empty while the answer has not begun. After a failure nothing more is read.

        Raises EventTooLong.
        """
        if self.passing((chunk,)):
            return chunk
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
                self._held.append((event, heard))
        return out[0] if len(out) == 1 else b"".join(out)

    def passing(self, chunks: Sequence[bytes]) -> int:
        """How many of the chunks, from the first on, are the common case: one event, known to say a piece of text.
        These count as fed, and the bytes to send are the same."""
        deltas = self._deltas
        if deltas is None or self._splitter.held or self.failure is not None:
            return 0
        return deltas.take(chunks)

    @property
    def is_delivered(self) -> bool:
        """Whether what `feed` has returned has the end of the answer in it."""
        return self.has_finished and (self._round is None or self._round.is_shown_whole)

    def rest(self) -> bytes:
        """What is left when the stream is over: an event that lacks its empty line, or a stream without any."""
        self._fold()
        rest, out = self._splitter.rest(), list[bytes]()
        self._release(out)
        if self._opened is not None and rest and (heard := self._heard(rest)) is not None:
            self._show(rest, heard, out)
            rest = b""
        return b"".join(out) + rest

    def _heard(self, event: bytes) -> Json | None:
        """What an event says, once it is taken in; None: the client must not see it."""
        data = data_of(event)
        if data is None:
            return _NOTHING
        if data == _DONE:
            self.has_begun = self.is_done = True
            return _END
        try:
            parsed = orjson.loads(data)
        except orjson.JSONDecodeError:
            parsed = None
        if not isinstance(parsed, dict):
            self.has_begun = True
            return _NOTHING
        if not self._read(parsed):
            return None
        if self._deltas is not None and self.has_begun and not self.has_finished:
            self._deltas.learn(event)
        return parsed

    def _show(self, event: bytes, heard: Json, out: list[bytes]) -> None:
        """Add what the client gets of an event, behind what came before it."""
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

    def _release(self, out: list[bytes]) -> None:
        """Nothing is held any more: what the client has been sent until now stands before the answer."""
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
        read_into(self._reply, event, self._dialect, self._engine)
        if self._reply.finish_reason is not None:
            self.has_finished = True
        if fields.text(event, "type") not in _PREAMBLES:
            self.has_begun = True
        return not (self._hides_usage and self._dialect.is_asked_usage(event))


def read_into(reply: Reply, event: Json, dialect: Dialect, engine: Engine) -> None:
    """Fold a stream event, or the body of an answer that is not streamed, into the reply."""
    dialect.read(event, reply)
    usage = engine.usage(event)
    if usage is not None:
        reply.usage = usage
    if reply.served_by is None:
        reply.served_by = engine.served_by(event)
    if not reply.id:
        reply.id = fields.text(fields.obj(event, "response") or event, "id") or ""
