"""The way back to one client over the fast transport: each write goes to the socket at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.core.transport import Direct, HeaderList
from gateway.transport.fast.head import encoded, size_line, status_line
from gateway.transport.fast.request import FastRequest

if TYPE_CHECKING:
    from gateway.transport.fast.connection import Connection

_LARGE_BYTES = 32 * 1024
"""From here on copying costs more than a second buffer."""
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
        """Of a body whose length was told; None: it was not."""
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

    async def start(self, status: int, headers: HeaderList) -> None:
        length = next((value for name, value in headers if name.lower() == "content-length"), None)
        self._is_bodiless |= status in _BODILESS
        self._left_bytes = None if length is None else int(length)
        self._is_chunked = length is None and not self._is_bodiless and self._request.version == "1.1"
        if length is None and not self._is_chunked and not self._is_bodiless:
            self._request.is_kept_alive = False  # the end of the connection is the end of the body
        framing = "Transfer-Encoding: chunked\r\n" if self._is_chunked else ""
        self._connection.transport.write(self._head(status, headers, _FRAMING_BUT_LENGTH, framing))

    async def write(self, data: bytes) -> None:
        assert self.has_started, "start comes before write"
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
        if not data or self._is_bodiless:
            return
        transport = self._connection.transport
        if not self._is_chunked:
            self._count(data)
            transport.write(data)
        elif len(data) < _LARGE_BYTES:
            transport.write(b"%b%b\r\n" % (size_line(len(data)), data))
        else:
            transport.writelines((size_line(len(data)), data, b"\r\n"))

    async def end(self) -> None:
        assert self.has_started, "start comes before end"
        if self._connection.is_gone:
            raise ConnectionResetError("the client has gone")
        if self._is_chunked:
            self._connection.transport.write(b"0\r\n\r\n")
        assert not self._left_bytes or self._is_bodiless, "the body is shorter than was told"
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
            assert self._left_bytes >= 0, "the body is longer than was told"
