"""One client's connection: requests to the handler one after the other, answers in their order."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, cast

from gateway.transport.edge import error_body, serve, with_rst_on_close
from gateway.transport.fast.head import status_line
from gateway.transport.fast.reader import RequestReader
from gateway.transport.fast.request import FastRequest
from gateway.transport.fast.responder import FastResponder
from gateway.transport.fast.watch import Phase, Watch

if TYPE_CHECKING:
    from gateway.transport.fast.server import FastServer

MAX_PIPELINED = 16
"""Requests that wait on one connection; then reading pauses."""


class Connection(asyncio.Protocol):
    """Made by the server for each client. A half-closed connection counts as closed: nothing tells it from a
    client that has left."""

    transport: asyncio.Transport

    def __init__(self, server: FastServer) -> None:
        self.server = server
        self.remote = ""
        self.task: asyncio.Task[None] | None = None
        """Runs the handler of `_current`."""
        self._loop = asyncio.get_running_loop()
        self.lost: asyncio.Future[None] = self._loop.create_future()
        self.is_gone = False
        """Nothing reaches the client any more."""
        self.is_full = False
        """The client takes its answer slower than it comes."""
        self._reader = RequestReader(self)
        self._current: FastRequest | None = None
        """Until it has been answered and has come whole."""
        self._waiting: deque[FastRequest] = deque()
        self._refusal: str | None = None
        """Why what came after the waiting requests is no request."""
        self._drained: asyncio.Future[None] | None = None
        self._is_paused = False
        self._is_closing = False
        self._watch = Watch(server.limits)

    @property
    def is_last(self) -> bool:
        """Whether the connection ends with the answer to the current request."""
        request = self._current
        assert request is not None
        # A client that was not told to go on may or may not send its body: nobody knows what comes next.
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

    def data_received(self, data: bytes) -> None:
        self._watch.has_heard = True
        self._reader.feed(data)

    def pause_writing(self) -> None:
        self.is_full = True

    def resume_writing(self) -> None:
        self.is_full = False
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    # What the reader calls

    def has_begun(self, request: FastRequest) -> None:
        if self._current is None:
            self._begin(request)
        else:
            self._waiting.append(request)
            if len(self._waiting) >= MAX_PIPELINED:
                self.pause_body()

    def has_come(self, request: FastRequest) -> None:
        self._watch.restart()
        if request is self._current and self.task is None:
            self._go_on()  # it was answered before

    def is_refused(self, fault: str, request: FastRequest | None) -> None:
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

    def send_continue(self) -> None:
        self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    async def drained(self) -> None:
        """Returns once the client has taken most of its answer. Raises ConnectionResetError when it has gone."""
        while self.is_full and not self.is_gone:
            if self._drained is None or self._drained.done():
                self._drained = self._loop.create_future()
            await asyncio.shield(self._drained)  # the parts of a list wait here together
        if self.is_gone:
            raise ConnectionResetError("the client has gone")

    def reset(self, *, needs_rst: bool) -> None:
        """Break off. What was written still goes out, except where only an RST says that this is no end."""
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
        """The answer is whole. The connection goes on once the request is, too."""
        if self.is_last or not (request.is_complete or self._reader.is_open):
            self._end(is_clean=request.is_complete)
        elif request.is_complete:
            self._go_on()
        else:
            request.drop()

    def _go_on(self) -> None:
        self._current = None
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
        """Close. While more may come, a close would destroy the answer on its way: only our half is closed, and
        the client has a while to close its own."""
        self._reader.stop()
        self._is_closing = True
        self._watch.restart()
        if is_clean:
            self.transport.close()
            return
        self.transport.write_eof()
        if self._is_paused:
            self.transport.resume_reading()

    # Time-outs

    def sweep(self, now: float) -> None:
        phase = self._phase()
        if not self._watch.is_overdue(phase, self.transport.get_write_buffer_size(), now):
            return
        if phase is Phase.HEAD:
            self._refuse(408, "its headers took too long")
        elif phase is Phase.BODY:
            self._reader.refuse("it stopped coming")
        elif phase is Phase.IDLE:
            self._end(is_clean=True)
        else:
            self.transport.abort()

    def _phase(self) -> Phase:
        if self._is_closing:
            return Phase.CLOSE
        if self.task is not None:
            assert self._current is not None
            if self.is_full:
                return Phase.WRITE
            return Phase.BODY if self._current.is_awaited else Phase.WORK
        if self._current is not None:
            return Phase.REST
        return Phase.HEAD if self._reader.is_in_head else Phase.IDLE
