"""One connection to an engine: one call at a time, and how far its answer has come."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from gateway.core.transport import SILENT, Timeouts
from gateway.transport.edge import MAX_HEAD_BYTES
from gateway.transport.fast.head import RawHeaders, decoded
from gateway.transport.fast.reply import BUFFER_BYTES, FastReply

if TYPE_CHECKING:
    from gateway.transport.fast.pool import Pool

_BODILESS = frozenset((204, 304))


class EngineConnection(asyncio.Protocol):
    """Made by the pool of its engine, to which it goes back after each whole answer."""

    transport: asyncio.Transport

    def __init__(self, pool: Pool, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.is_reused = False
        self.has_answered = False
        """Whether a byte has come since it was asked."""
        self.lost: asyncio.Future[None] = loop.create_future()
        self.since = 0.0
        """When it was asked, heard at the latest sweep, or came back to the pool."""
        self._pool = pool
        self._parser: HttpResponseParser | None = HttpResponseParser(self)
        self._headers: RawHeaders = []
        self._bodiless_bytes = 0
        """That have come without a byte of body among them."""
        self._reply: FastReply | None = None
        self._timeouts = Timeouts()
        self._is_head = False
        self._ends_with_connection = False
        self._is_paused = False
        self._has_heard = False

    def ask(self, head: bytes, body: bytes | None, is_head: bool, timeouts: Timeouts, now: float) -> FastReply:
        self._reply = reply = FastReply(self)
        self.has_answered = False
        self._is_head = is_head
        self._timeouts = timeouts
        self.since = now
        if body:
            self.transport.writelines((head, body))
        else:
            self.transport.write(head)
        return reply

    def abort(self) -> None:
        """Close at once, which aborts the call at the engine."""
        self._lose("the call was aborted")

    # What asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._pool.connections.add(self)

    def data_received(self, data: bytes) -> None:
        reply, parser = self._reply, self._parser
        if reply is None or parser is None:
            self._lose("it answers what nobody asked")
            return
        self.has_answered = self._has_heard = True
        self._bodiless_bytes += len(data)
        try:
            parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade) as error:
            self._lose(f"the engine's answer is not valid HTTP: {error.__context__ or error}")
            return
        if self._bodiless_bytes > MAX_HEAD_BYTES:
            self._lose("the engine's headers or trailers are too long")
        elif reply.parts:
            reply.held_bytes += len(data)
            reply.come()
            if reply.held_bytes >= BUFFER_BYTES and self._reply is reply and not self._is_paused:
                self._is_paused = True
                self.transport.pause_reading()

    def eof_received(self) -> None:
        """The transport then closes itself."""
        if self._ends_with_connection and self._reply is not None:
            self._complete(self._reply, is_reusable=False)

    def connection_lost(self, error: Exception | None) -> None:
        if error is None:
            self.eof_received()
        self._lose(str(error or "") or "the engine closed the connection")
        self._pool.connections.discard(self)
        self.lost.set_result(None)

    # What the parser calls

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        parser, reply = self._parser, self._reply
        assert parser is not None
        assert reply is not None
        status = parser.get_status_code()
        if status < 200:
            return  # more of the answer follows (RFC 9110, 15.2)
        header_list = decoded(self._headers)
        reply.begin(status, header_list)
        headers = reply.headers
        self._ends_with_connection = not (
            "content-length" in headers
            or headers.get("transfer-encoding", "").lower().endswith("chunked")
            or status in _BODILESS
            or self._is_head
        )
        if self._is_head:
            self._complete(reply, is_reusable=False)  # the parser cannot be told that no body follows

    def on_body(self, data: bytes) -> None:
        self._bodiless_bytes = 0
        if (reply := self._reply) is not None:
            reply.parts.append(data)

    def on_message_complete(self) -> None:
        reply, parser = self._reply, self._parser
        self._headers = []
        self._bodiless_bytes = 0
        if reply is not None and reply.has_begun and parser is not None:
            self._complete(reply, is_reusable=parser.should_keep_alive())

    # Time-outs and endings

    def sweep(self, now: float) -> None:
        reply = self._reply
        if reply is None:
            return
        if reply.has_begun:
            if self._has_heard or self._is_paused:
                self._has_heard = False
                self.since = now
            limit_s = self._timeouts.idle_s
        else:
            limit_s = self._timeouts.first_byte_s
        if limit_s is not None and now - self.since > limit_s:
            self._lose(SILENT)

    def resume(self) -> None:
        if self._is_paused:
            self._is_paused = False
            self.transport.resume_reading()

    def _complete(self, reply: FastReply, *, is_reusable: bool) -> None:
        self._reply = None
        reply.finish()
        # A request that has not been taken whole would be continued by the next one.
        if is_reusable and not self.transport.get_write_buffer_size() and not self.transport.is_closing():
            self._pool.take_back(self, self.loop.time())
        else:
            self._lose("")

    def _lose(self, fault: str) -> None:
        self._pool.forget(self)
        self._parser = None
        self.transport.abort()
        if self._reply is not None:
            reply, self._reply = self._reply, None
            reply.cut(fault)
