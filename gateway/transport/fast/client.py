"""The HTTP client of the fast transport: pooled connections, one write per call, and answers without a copy."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping
from typing import cast
from urllib.parse import urlsplit

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from gateway.core.slices import LARGE_BYTES
from gateway.core.transport import (
    HOP_BY_HOP,
    SILENT,
    Body,
    HeaderList,
    Pushing,
    Sink,
    Timeouts,
    UpstreamCut,
    UpstreamRefused,
    by_name,
    joined,
    size_bytes,
)
from gateway.transport.edge import MAX_HEAD_BYTES
from gateway.transport.fast.head import RawHeaders, decoded, encoded
from gateway.transport.fast.timeouts import Sweep

BUFFER_BYTES = 256 * 1024
"""Bytes that are read ahead of a slow reader. Then reading from the engine pauses."""
LARGE_READ_BYTES, MOST_LINES = 32 * 1024, 4_096
"""A read with more bytes and more lines may have thousands of chunks: it is read in slices."""
SLICE_BYTES = 8 * 1024


class FastReply(Pushing):
    """A `transport.UpstreamReply`. Its connection fills it, until `finish` or `cut`."""

    __slots__ = (
        "_connection",
        "_fault",
        "_sink",
        "_waiter",
        "has_begun",
        "header_list",
        "headers",
        "held_bytes",
        "is_complete",
        "parts",
        "status",
    )

    def __init__(self, connection: EngineConnection) -> None:
        self.status = 0
        self.header_list: HeaderList = ()
        self.headers: Mapping[str, str] = {}
        self.has_begun = False
        self.is_complete = False
        self.parts: list[bytes] = []
        """Chunks that have come and have not been read."""
        self.held_bytes = 0
        """Their bytes, framing included."""
        self._connection: EngineConnection | None = connection
        self._fault: str | None = None
        self._sink: Sink | None = None
        self._waiter: asyncio.Future[None] | None = None

    def chunks(self) -> AsyncIterator[bytes]:
        return self

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        while not self.parts:
            if self.is_complete:
                raise StopAsyncIteration
            await self.more()
        return self._taken()

    async def read(self, limit_bytes: int) -> bytes:
        if self.is_complete and self.held_bytes <= limit_bytes:
            return self._taken()
        return await joined(self, limit_bytes)

    def close(self, *, reuse: bool) -> None:
        """Close a connection whose answer is not complete. A complete answer has already given it back."""
        if self._connection is not None:
            self._connection.abort()

    def set_head(self, status: int, header_list: HeaderList) -> None:
        self.status = status
        self.header_list = header_list
        self.headers = by_name(header_list)
        self.has_begun = True
        self.wake()

    def finish(self) -> None:
        self._connection = None
        self.is_complete = True
        self.wake()

    def cut(self, fault: str) -> None:
        self._connection = None
        self._fault = fault
        self.wake()

    def push(self, sink: Sink) -> None:
        self._sink = sink

    def take(self, chunks: list[bytes], num_bytes: int) -> None:
        """Hand the chunks of a read of so many bytes to the sink, and those that it refuses to the reader."""
        if self._sink is not None:
            num_taken = self._sink(chunks)
            if num_taken == len(chunks):
                return
            chunks, self._sink = chunks[num_taken:], None
        self.parts += chunks
        self.held_bytes += num_bytes
        self.wake()

    def wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def more(self) -> asyncio.Future[None]:
        """Return a future that is done at the next event. Raises UpstreamCut when there will be none."""
        if self._connection is None:
            raise UpstreamCut(self._fault)
        self._waiter = waiter = self._connection.loop.create_future()
        return waiter

    def _taken(self) -> bytes:
        """Return all chunks that have come as one."""
        parts, self.parts, self.held_bytes = self.parts, [], 0
        if self._connection is not None:
            self._connection.resume()
        return parts[0] if len(parts) == 1 else b"".join(parts)


# ---- one connection to an engine, which carries one call at a time

_BODILESS = frozenset((204, 304))


class EngineConnection(asyncio.Protocol):
    """A connection of a pool, to which it goes back after each whole answer."""

    transport: asyncio.Transport

    def __init__(self, pool: ConnectionPool, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.is_reused = False
        self.has_answered = False
        """Whether a byte has come since the latest call was sent."""
        self.lost: asyncio.Future[None] = loop.create_future()
        self.since = 0.0
        """Time when its call was sent, when the latest sweep found new bytes, or when it came back to the pool."""
        self._pool = pool
        self._chunks: list[bytes] = []
        """Of a body, in the read that is parsed now."""
        self.on_body = self._chunks.append
        """Called by the parser."""
        self._parser: HttpResponseParser | None = HttpResponseParser(self)
        self._headers: RawHeaders = []
        self._bodiless_bytes = 0
        """Bytes of the reads since the last one with a part of a body."""
        self._reply: FastReply | None = None
        self._timeouts = Timeouts()
        self._is_head = False
        self._ends_with_connection = False
        self._is_paused = False
        self._has_heard = False
        self._unread = b""
        """What is left of a read that is read in slices. Nothing more is received meanwhile."""

    def ask(self, head: bytes, body: Body | None, is_head: bool, timeouts: Timeouts, now: float) -> FastReply:
        self._reply = reply = FastReply(self)
        self.has_answered = False
        self._is_head = is_head
        self._timeouts = timeouts
        self.since = now
        if isinstance(body, tuple) or (body and len(body) >= LARGE_BYTES):
            self.transport.write(head)  # asyncio would join it with the body
            for part in body if isinstance(body, tuple) else (body,):
                self.transport.write(part)
        elif body:
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
        if len(data) > LARGE_READ_BYTES and data.count(b"\r\n") > MOST_LINES:
            self._pause()
            self._unread = data
            self._read_slice()
            return
        reply, parser = self._reply, self._parser
        if reply is None or parser is None:
            self._lose("it sent an answer without a call")
            return
        self.has_answered = self._has_heard = True
        fault = ""
        try:
            parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade) as error:
            fault = f"the engine's answer is not valid HTTP: {error.__context__ or error}"
        if self._chunks:
            reply.take(self._chunks, len(data))
            self._chunks.clear()
            self._bodiless_bytes = 0
            if reply.held_bytes >= BUFFER_BYTES and self._reply is reply:
                self._pause()
        elif self._reply is not None:
            self._bodiless_bytes += len(data)
            if self._bodiless_bytes > MAX_HEAD_BYTES and not fault:
                fault = "the engine's headers or trailers are too long"
        if fault:
            self._lose(fault)

    def _read_slice(self) -> None:
        data, self._unread = self._unread[:SLICE_BYTES], self._unread[SLICE_BYTES:]
        self.data_received(data)
        if self._parser is None:
            self._unread = b""
        elif self._unread:
            self.loop.call_soon(self._read_slice)
        elif self._reply is None or self._reply.held_bytes < BUFFER_BYTES:
            self.resume()

    def eof_received(self) -> None:
        """Called at the end of the engine's bytes. The transport then closes itself."""
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
        reply.set_head(status, header_list)
        headers = reply.headers
        self._ends_with_connection = not (
            "content-length" in headers
            or headers.get("transfer-encoding", "").lower().endswith("chunked")
            or status in _BODILESS
            or self._is_head
        )
        if self._is_head:
            self._complete(reply, is_reusable=False)  # the parser would wait for a body

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
        if self._is_paused and not self._unread:
            self._is_paused = False
            self.transport.resume_reading()

    def _pause(self) -> None:
        if not self._is_paused:
            self._is_paused = True
            self.transport.pause_reading()

    def _complete(self, reply: FastReply, *, is_reusable: bool) -> None:
        self._reply = None
        reply.finish()
        # The rest of an unsent request, or of a read, would become the beginning of the next one.
        is_idle = not self._unread and not self.transport.get_write_buffer_size()
        if is_reusable and is_idle and not self.transport.is_closing():
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


# ---- the open connections to one origin

# uvicorn, below vLLM and SGLang, closes idle connections after 5 s; a pool that forgets them first meets no
# closed one.
KEEPALIVE_S = 4.0

CLOSE_S = 1.0


class ConnectionPool:
    """The connections to one origin. The latest used is taken first, so that as few as possible stay open."""

    def __init__(self, origin: str) -> None:
        """`origin`: `scheme://host:port`. Raises UpstreamRefused."""
        try:
            parts = urlsplit(origin)
            self._host, port = parts.hostname or "", parts.port
        except ValueError as error:
            raise UpstreamRefused(f"{origin!r} is no URL: {error}") from None
        if parts.scheme not in ("http", "https") or not self._host or parts.username is not None:
            raise UpstreamRefused(f"{origin!r} is no http:// or https:// URL")
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._port = port or (443 if self._tls else 80)
        self.host_line = f"Host: {parts.netloc}\r\n"
        self.connections: set[EngineConnection] = set()
        self._idle: list[EngineConnection] = []

    def idle(self, now: float) -> EngineConnection | None:
        """Return an open connection for a call that is sent at once; None when there is none."""
        while self._idle:
            connection = self._idle.pop()
            if now - connection.since < KEEPALIVE_S and not connection.transport.is_closing():
                return connection
            connection.abort()
        return None

    async def connect(self, connect_s: float | None) -> EngineConnection:
        """Return a new connection. Raises UpstreamRefused."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(connect_s):
                _, made = await loop.create_connection(
                    lambda: EngineConnection(self, loop), self._host, self._port, ssl=self._tls
                )
                return made
        except TimeoutError:
            raise UpstreamRefused(f"no connection to {self._host}:{self._port} within {connect_s} s") from None
        except (OSError, UnicodeError) as error:
            raise UpstreamRefused(str(error) or type(error).__name__) from error

    def take_back(self, connection: EngineConnection, now: float) -> None:
        connection.since = now
        connection.is_reused = True
        connection.resume()
        self._idle.append(connection)

    def forget(self, connection: EngineConnection) -> None:
        if connection in self._idle:
            self._idle.remove(connection)

    def sweep(self, now: float) -> None:
        for connection in list(self.connections):
            connection.sweep(now)
        for connection in [one for one in self._idle if now - one.since >= KEEPALIVE_S]:
            connection.abort()

    async def close(self) -> None:
        open_ = list(self.connections)
        for connection in open_:
            connection.abort()
        if open_:
            await asyncio.wait([connection.lost for connection in open_], timeout=CLOSE_S)


# ---- calls: each goes out in one write on a pooled connection

# A pooled connection that its peer had closed fails within a round trip. Later, the engine has worked on it.
STALE_WITHIN_S = 1.0

_OWN_HEADERS = HOP_BY_HOP | {"host", "content-length"}
_MOST_TARGETS, _MOST_TARGET_CHARS = 256, 512


class FastUpstream:
    """A `transport.Upstream`. Made inside a running event loop. It uses no proxies of the environment."""

    def __init__(self, stale_within_s: float = STALE_WITHIN_S) -> None:
        self._stale_within_s = stale_within_s
        self._loop = asyncio.get_running_loop()
        self._pools: dict[str, ConnectionPool] = {}
        self._targets: dict[str, tuple[ConnectionPool, str]] = {}
        """Pool and request target of URLs that were called before."""
        self._timeouts: Timeouts | None = None
        """The time-outs that the sweep serves."""
        self._sweep = Sweep(self._tick)

    async def call(
        self, method: str, url: str, headers: HeaderList, body: Body | None, timeouts: Timeouts
    ) -> FastReply:
        """Send a call, as `transport.Upstream.call` says.

        A call is sent again only if it went out on a pooled connection that its peer closed at once, without a
        byte of answer: that peer had closed before it could read. Each try takes one dead connection out of the
        pool, and a new connection is never retried, so this ends.
        """
        pool, target = self._targets.get(url) or self._target_of(url)
        if timeouts is not self._timeouts:
            self._timeouts = timeouts
            self._sweep.serves(timeouts.first_byte_s)
            self._sweep.serves(timeouts.idle_s)
        length = "" if body is None else f"Content-Length: {size_bytes(body)}\r\n"
        lines = f"{pool.host_line}{encoded(headers, _OWN_HEADERS)}{length}"
        head = f"{method} {target} HTTP/1.1\r\n{lines}\r\n".encode()
        while True:
            sent_at = self._loop.time()
            connection = pool.idle(sent_at)
            if connection is None:
                connection = await pool.connect(timeouts.connect_s)
                sent_at = self._loop.time()
            reply = connection.ask(head, body, method == "HEAD", timeouts, sent_at)
            try:
                while not reply.has_begun:
                    await reply.more()
                return reply
            except UpstreamCut as cut:
                is_late = cut.is_silent or self._loop.time() - sent_at > self._stale_within_s
                if is_late or not connection.is_reused or connection.has_answered:
                    raise
            except BaseException:
                connection.abort()
                raise

    async def close(self) -> None:
        self._sweep.stop()
        for pool in self._pools.values():
            await pool.close()

    def _target_of(self, url: str) -> tuple[ConnectionPool, str]:
        """Return the pool of a URL's origin, and the request target. Raises UpstreamRefused."""
        start = url.find("/", url.find("://") + 3)
        origin, target = (url[:start], url[start:]) if start > 0 else (url, "/")
        target = target.partition("#")[0]
        if not (target.isascii() and target.isprintable()) or " " in target:
            raise UpstreamRefused("the address of a call is no URL")
        pool = self._pools.get(origin)
        if pool is None:
            pool = self._pools[origin] = ConnectionPool(origin)
        if len(url) <= _MOST_TARGET_CHARS:
            if len(self._targets) >= _MOST_TARGETS:
                self._targets.clear()
            self._targets[url] = pool, target
        return pool, target

    def _tick(self, now: float) -> None:
        for pool in self._pools.values():
            pool.sweep(now)
