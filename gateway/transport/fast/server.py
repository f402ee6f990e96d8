"""The HTTP server of the fast transport: its connections, their time-outs, and the drain.

Each write of an answer goes to the socket at once.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from email.utils import formatdate
from typing import cast

from gateway.core.transport import Direct, Handler, HeaderList
from gateway.transport.edge import CANCEL_S, error_body, listening, port_of, serve, with_rst_on_close
from gateway.transport.fast.head import encoded, status_line
from gateway.transport.fast.request import FastRequest, Place, RequestReader
from gateway.transport.fast.timeouts import ConnectionLimits, ConnectionPhase, ConnectionWatch, Sweep

_LARGE_BYTES = 32 * 1024
"""From this size on, a copy costs more than a second buffer."""
_FRAMING = frozenset(("transfer-encoding", "content-length", "date", "server"))
_FRAMING_BUT_LENGTH = _FRAMING - {"content-length"}
_BODILESS = frozenset((204, 304))


class FastResponder(Direct):
    """A `transport.Responder`."""

    __slots__ = (
        "_connection",
        "_is_bodiless",
        "_is_chunked",
        "_left_bytes",
        "_request",
        "has_ended",
        "has_started",
    )

    def __init__(self, connection: Connection, request: FastRequest) -> None:
        self._connection = connection
        self._request = request
        self._is_bodiless = request.method == "HEAD"
        self._is_chunked = False
        self._left_bytes: int | None = None
        """Bytes of the body that are still to be sent; None: its length was not given."""
        self.has_started = False
        self.has_ended = False

    async def reply(self, status: int, headers: HeaderList, body: bytes) -> None:
        is_bodiless = self._is_bodiless or status in _BODILESS
        framing = "" if status in _BODILESS else f"Content-Length: {len(body)}\r\n"
        head = self._head(status, headers, _FRAMING, framing)
        connection = self._connection
        if is_bodiless or not body:
            connection.transport.write(head)
        elif len(body) < _LARGE_BYTES:
            connection.transport.write(head + body)
        else:
            connection.transport.writelines((head, body))
        self.has_ended = True
        if connection.is_full:
            await connection.drained()

    async def open_stream(self, status: int, headers: HeaderList) -> None:
        length = next((value for name, value in headers if name.lower() == "content-length"), None)
        self._is_bodiless |= status in _BODILESS
        self._left_bytes = None if length is None else int(length)
        self._is_chunked = length is None and not self._is_bodiless and self._request.version == "1.1"
        if length is None and not self._is_chunked and not self._is_bodiless:
            self._request.is_kept_alive = False  # the end of the connection is the end of the body
        framing = "Transfer-Encoding: chunked\r\n" if self._is_chunked else ""
        self._connection.transport.write(self._head(status, headers, _FRAMING_BUT_LENGTH, framing))

    async def write(self, data: bytes) -> None:
        assert self.has_started, "open_stream comes before write"
        connection = self._connection
        if connection.is_gone:
            raise ConnectionResetError("the client has gone")
        self.write_now(data)
        if connection.is_full:
            await connection.drained()

    @property
    def is_ready(self) -> bool:
        return self.has_started and not (self._connection.is_full or self._connection.is_gone)

    def write_now(self, data: bytes) -> None:
        transport = self._connection.transport
        if self._is_chunked and data:
            size_bytes = len(data)
            if size_bytes < _LARGE_BYTES:
                transport.write(b"%x\r\n%b\r\n" % (size_bytes, data))
            else:
                transport.writelines((b"%x\r\n" % size_bytes, data, b"\r\n"))
        elif data and not self._is_bodiless:
            self._count(data)
            transport.write(data)

    async def end(self) -> None:
        assert self.has_started, "open_stream comes before end"
        if self._connection.is_gone:
            raise ConnectionResetError("the client has gone")
        if self._is_chunked:
            self._connection.transport.write(b"0\r\n\r\n")
        assert not self._left_bytes or self._is_bodiless, "the body is shorter than its Content-Length"
        self.has_ended = True
        if self._connection.is_full:
            await self._connection.drained()

    def reset(self) -> None:
        # An answer that ends with its connection would look whole.
        self._connection.reset(needs_rst=self.has_started and not self._is_chunked and self._left_bytes is None)

    def _head(self, status: int, headers: HeaderList, left_out: frozenset[str], framing: str) -> bytes:
        assert not self.has_started, "an answer has started"
        connection = self._connection
        if connection.is_gone:
            raise ConnectionResetError("the client has gone")
        close = "Connection: close\r\n" if connection.is_last else ""
        self.has_started = True
        text = (
            f"{status_line(status)}{encoded(headers, left_out)}{connection.server.own_lines}{framing}{close}\r\n"
        )
        return text.encode()

    def _count(self, data: bytes) -> None:
        if self._left_bytes is not None:
            self._left_bytes -= len(data)
            assert self._left_bytes >= 0, "the body is longer than its Content-Length"


# ---- one client's connection: its requests are handled one after the other, in order

MAX_PIPELINED = 16
"""Requests that wait on one connection before reading pauses."""


class Connection(asyncio.Protocol):
    """One client's connection. A half-closed connection counts as closed, because it looks like that of a client
    that has left."""

    transport: asyncio.Transport

    def __init__(self, server: FastServer) -> None:
        self.server = server
        self.remote = ""
        self.task: asyncio.Task[None] | None = None
        """Runs the handler of `_current`."""
        self._loop = asyncio.get_running_loop()
        self.lost: asyncio.Future[None] = self._loop.create_future()
        self.is_gone = False
        """Whether the client cannot be reached any more."""
        self.is_full = False
        """Whether the client reads its answer slower than it comes."""
        self._reader = RequestReader(self)
        self._current: FastRequest | None = None
        """The request that is handled, until it has been answered and has come whole."""
        self._waiting: deque[FastRequest] = deque()
        self._refusal: str | None = None
        """Why the bytes after the waiting requests are no request."""
        self._drained: asyncio.Future[None] | None = None
        self._is_paused = False
        self._is_closing = False
        self._is_dropping = False
        """Whether the request has been answered whose rest still comes."""
        self._watch = ConnectionWatch(server.limits)

    @property
    def is_last(self) -> bool:
        """Whether the connection ends with the answer to the current request."""
        request = self._current
        assert request is not None
        # A client that still waits for status 100 may or may not send its body: the next bytes are ambiguous.
        return self.server.is_draining or not request.is_kept_alive or request.expects_continue

    # What asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self.remote = peer[0] if isinstance(peer, tuple) else ""
        self.server.connections.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        self.server.connections.discard(self)
        self._reader.stop()
        if self.task is None:
            self._current = None
        elif not self.is_gone:
            self.task.cancel()
        self.is_gone = True
        self._waiting.clear()
        self.resume_writing()
        self.lost.set_result(None)
        del self._reader  # it refers to this connection, and may hold half of a body

    def data_received(self, data: bytes) -> None:
        self._watch.has_heard = True
        self._reader.feed(data)
        if self._is_dropping:
            self._pause_for_a_round()

    def pause_writing(self) -> None:
        self.is_full = True

    def resume_writing(self) -> None:
        self.is_full = False
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    # What the reader calls

    def head_received(self, request: FastRequest) -> None:
        if self._current is None:
            self._begin(request)
        else:
            self._waiting.append(request)
            if len(self._waiting) >= MAX_PIPELINED:
                self.pause_body()

    def request_received(self, request: FastRequest) -> None:
        self._watch.restart()
        if request is self._current and self.task is None:
            self._go_on()  # it was answered before

    def read_failed(self, fault: str, request: FastRequest | None) -> None:
        if request is not None:
            request.is_kept_alive = False
            request.fail(fault)
            if request is self._current and self.task is None:
                self._end(is_clean=False)
        elif self._current is None:
            self._refuse(400, fault)
        else:
            self._refusal = fault

    # What requests and responders call

    def pause_body(self) -> None:
        if not self._is_paused:
            self._is_paused = True
            self.transport.pause_reading()

    def resume_body(self) -> None:
        if self._is_paused and len(self._waiting) < MAX_PIPELINED:
            self._is_paused = False
            self.transport.resume_reading()

    def fill(self, place: Place) -> None:
        self.transport.set_protocol(_InPlace(self, place))

    def end_filling(self) -> None:
        if not self.is_gone:
            self.transport.set_protocol(self)

    def filled(self, num_bytes: int) -> None:
        self._watch.has_heard = True
        self._reader.filled(num_bytes)

    def send_continue(self) -> None:
        self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    async def drained(self) -> None:
        """Return once the client has read most of its answer. Raises ConnectionResetError when it has left."""
        while self.is_full and not self.is_gone:
            if self._drained is None or self._drained.done():
                self._drained = self._loop.create_future()
            await asyncio.shield(self._drained)  # several parts of one answer may wait here
        if self.is_gone:
            raise ConnectionResetError("the client has gone")

    def reset(self, *, needs_rst: bool) -> None:
        """Break off. Written bytes still go out, unless only an RST distinguishes this from a clean end."""
        if self.lost.done():
            return
        self.is_gone = self._is_closing = True
        self._reader.stop()
        if needs_rst:
            with_rst_on_close(self.transport)
        if needs_rst or not self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            self.transport.close()

    # One request after the other

    def _begin(self, request: FastRequest) -> None:
        self._current = request
        self.task = self._loop.create_task(self._answer(request))

    async def _answer(self, request: FastRequest) -> None:
        try:
            await serve(self.server.handler, request, FastResponder(self, request))
        finally:
            self.task = None
            if self.is_gone:
                self._current = None
            else:
                self._after(request)

    def _after(self, request: FastRequest) -> None:
        """Go on after a whole answer, once its request has come whole too."""
        if self.is_last or not (request.is_complete or self._reader.is_open):
            self._end(is_clean=request.is_complete)
        elif request.is_complete:
            self._go_on()
        else:
            self._is_dropping = True
            request.drop()

    def _go_on(self) -> None:
        self._current = None
        self._is_dropping = False
        self.resume_body()
        if self._waiting:
            self._begin(self._waiting.popleft())
            self.resume_body()
        elif self._refusal is not None:
            self._refuse(400, self._refusal)
        elif self.server.is_draining:
            self._end(is_clean=True)

    def _refuse(self, status: int, fault: str) -> None:
        body = error_body(status, f"The request is refused: {fault}.")
        own = f"{self.server.own_lines}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        self.transport.write(f"{status_line(status)}{own}Connection: close\r\n\r\n".encode() + body)
        self._end(is_clean=False)

    def close_if_idle(self) -> None:
        if self._current is None and not self._is_closing:
            self._end(is_clean=True)

    def _end(self, *, is_clean: bool) -> None:
        """Close. While more bytes may come, a full close would destroy the answer on its way. So only this side is
        closed, and the client has a while to close the other."""
        self._reader.stop()
        self._is_closing = True
        self._watch.restart()
        if is_clean:
            self.transport.close()
            return
        self._is_dropping = True
        self.transport.write_eof()
        if self._is_paused:
            self._is_paused = False
            self.transport.resume_reading()

    def _pause_for_a_round(self) -> None:
        """Let the loop go round after each block that is dropped: libuv receives up to 32 blocks in one round."""
        if not self._is_paused and not self.transport.is_closing():
            self.transport.pause_reading()
            self._loop.call_soon(self._read_on)

    def _read_on(self) -> None:
        if not self._is_paused and not self.transport.is_closing():
            self.transport.resume_reading()

    # Time-outs

    def sweep(self, now: float) -> None:
        phase = self._phase()
        if not self._watch.is_overdue(phase, self.transport.get_write_buffer_size(), now):
            return
        if phase is ConnectionPhase.HEAD:
            self._refuse(408, "its headers took too long")
        elif phase is ConnectionPhase.BODY:
            self._reader.refuse("it stopped coming")
        elif phase is ConnectionPhase.IDLE:
            self._end(is_clean=True)
        else:
            self.transport.abort()

    def _phase(self) -> ConnectionPhase:
        if self._is_closing:
            return ConnectionPhase.CLOSE
        if self.task is not None:
            assert self._current is not None
            if self.is_full:
                return ConnectionPhase.WRITE
            return ConnectionPhase.BODY if self._current.is_awaited else ConnectionPhase.WORK
        if self._current is not None:
            return ConnectionPhase.REST
        return ConnectionPhase.HEAD if self._reader.is_in_head else ConnectionPhase.IDLE


class _InPlace(asyncio.BufferedProtocol):
    """Stands in for a connection while the rest of a body comes to its place, without a copy."""

    def __init__(self, connection: Connection, place: Place) -> None:
        self._connection = connection
        self._place = place

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._place.rest

    def buffer_updated(self, num_bytes: int) -> None:
        self._connection.filled(num_bytes)

    def connection_lost(self, error: Exception | None) -> None:
        self._connection.connection_lost(error)

    def pause_writing(self) -> None:
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        self._connection.resume_writing()


# ---- the listener


class FastServer:
    """A `transport.Server`."""

    def __init__(self, handler: Handler, limits: ConnectionLimits | None = None) -> None:
        self.handler = handler
        self.limits = limits or ConnectionLimits()
        self.connections: set[Connection] = set()
        self.is_draining = False
        self.own_lines = ""
        """Header lines of every answer."""
        self._listener: asyncio.Server | None = None

    async def start(
        self, host: str, port: int, *, reuse_port: bool = False, sock: socket.socket | None = None
    ) -> int:
        self._sweep = Sweep(self._tick)
        for phase in ConnectionPhase:
            self._sweep.serves(self.limits.of(phase))
        self._tick(self._sweep.now)
        self._listener = await listening(lambda: Connection(self), host, port, reuse_port, sock)
        return port_of(self._listener)

    async def stop(self, grace_s: float) -> None:
        if self._listener is None:
            return
        self._listener.close()
        self.is_draining = True
        tasks = [connection.task for connection in self.connections if connection.task is not None]
        for connection in list(self.connections):
            connection.close_if_idle()
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=grace_s)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late, timeout=CANCEL_S)
        await self._all_lost()  # written bytes still go out
        for connection in list(self.connections):
            connection.transport.abort()
        await self._all_lost()
        self._sweep.stop()

    async def _all_lost(self) -> None:
        if self.connections:
            await asyncio.wait([connection.lost for connection in self.connections], timeout=CANCEL_S)

    def _tick(self, now: float) -> None:
        self.own_lines = f"Server: turngate\r\nDate: {formatdate(usegmt=True)}\r\n"
        for connection in list(self.connections):
            connection.sweep(now)
