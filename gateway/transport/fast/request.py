"""Incoming requests of the fast transport: from bytes to requests, and their bodies while they come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from io import BytesIO
from typing import Protocol

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser

from gateway.core.transport import BodyBroken, BodyTooLarge, HeaderList, by_name
from gateway.transport.edge import MAX_HEAD_BYTES, MAX_HEADERS, fault_of, origin_form
from gateway.transport.fast.head import RawHeaders, decoded, size_bytes

BUFFER_BYTES = 64 * 1024
"""Bytes that are held of a body before the handler reads it. Then reading from the connection pauses."""
SMALL_BYTES = 1024
"""Smaller pieces of a body are joined as they come."""
COUNTED_BYTES = 64 * 1024
"""From this length on the blocks of a body after its first one are counted here: a parser would copy them. From so
many on that are still to come when the handler reads, they come in place."""


class Place:
    """Where a body of known length comes together as bytes, with one copy: from the socket."""

    __slots__ = ("_buffer", "_length_bytes", "_parts", "_rest")

    def __init__(self, length_bytes: int, parts: Sequence[bytes | bytearray]) -> None:
        """`parts`: what has come of it."""
        self._length_bytes = length_bytes
        self._parts = parts
        self._buffer = BytesIO()
        self._rest: memoryview | None = None

    @property
    def rest(self) -> memoryview:
        """What is to be filled. Its memory is taken when the first byte for it has come."""
        if self._rest is None:
            self._buffer = BytesIO(bytes(self._length_bytes))
            self._rest = self._buffer.getbuffer()
            for part in self._parts:
                self._rest[: len(part)] = part
                self.advance(len(part))
            self._parts = ()
        return self._rest

    def advance(self, num_bytes: int) -> None:
        self._rest = self.rest[num_bytes:]

    def whole(self) -> bytes:
        self._rest = None  # BytesIO would copy bytes that can still be written to
        return self._buffer.getvalue()


class ByteSource(Protocol):
    """The connection over which a body comes."""

    remote: str

    def pause_body(self) -> None: ...
    def resume_body(self) -> None: ...
    def send_continue(self) -> None: ...

    def fill(self, place: Place) -> None:
        """Receive the next bytes in this place, until `end_filling` is called."""
        ...

    def end_filling(self) -> None: ...


class FastRequest:
    """A `transport.Request`. Its connection calls `feed`, and in the end `finish` or `fail`."""

    __slots__ = (
        "_fault",
        "_held_bytes",
        "_is_dropped",
        "_parts",
        "_place",
        "_size_bytes",
        "_source",
        "_waiter",
        "_wakes_at_bytes",
        "counted_bytes",
        "expects_continue",
        "header_list",
        "headers",
        "is_complete",
        "is_kept_alive",
        "method",
        "path",
        "query",
        "remote",
        "version",
    )

    def __init__(
        self,
        source: ByteSource,
        method: str,
        target: str,
        version: str,
        header_list: HeaderList,
        headers: Mapping[str, str],
        is_kept_alive: bool,
    ) -> None:
        self.method = method
        self.path, _, query = target.partition("?")
        self.query = query.partition("#")[0] if query else ""
        self.header_list: HeaderList = header_list
        self.headers = headers
        self.remote = source.remote
        self.version = version
        self.is_kept_alive = is_kept_alive
        self.expects_continue = version == "1.1" and headers.get("expect", "").lower() == "100-continue"
        """Whether the client waits for status 100 before it sends the body."""
        self.is_complete = False
        self.counted_bytes = 0
        """The length of the body where it is counted here; 0: the parser finds its end."""
        self._source = source
        self._parts: list[bytes | bytearray] = []
        self._place: Place | None = None
        self._held_bytes = self._size_bytes = 0
        self._wakes_at_bytes = BUFFER_BYTES
        self._is_dropped = False
        self._fault: str | None = None
        self._waiter: asyncio.Future[None] | None = None

    async def read(self, limit_bytes: int) -> bytes:
        if self.left_bytes >= COUNTED_BYTES and self.counted_bytes <= limit_bytes and self._fault is None:
            return await self._in_place(limit_bytes)
        if not self.is_complete or self._size_bytes > limit_bytes:
            await self._ready(limit_bytes, limit_bytes + 1)
        return self._take()

    async def chunks(self, limit_bytes: int) -> AsyncIterator[bytes]:
        while True:
            await self._ready(limit_bytes, 1)
            if not self._parts:
                return
            yield self._take()

    def feed(self, data: bytes) -> None:
        self._size_bytes += len(data)
        if self._is_dropped:
            return
        self._hold(data)
        self._held_bytes += len(data)
        if self._held_bytes >= self._wakes_at_bytes:
            self._wake()
            if self._held_bytes >= BUFFER_BYTES:
                self._source.pause_body()

    def finish(self) -> None:
        """Note that all of the body has come. From now on its connection is read for the client's end."""
        self.is_complete = True
        if self._place is not None:
            self._source.end_filling()
        self._source.resume_body()
        self._wake()

    def fail(self, fault: str) -> None:
        """Note that the rest of the body does not come."""
        self._fault = fault
        self._wake()

    def drop(self) -> None:
        """Discard the rest of the body."""
        self._is_dropped = True
        self._parts = []
        self._source.resume_body()

    @property
    def left_bytes(self) -> int:
        """Bytes of the body that are still to come, where they are counted here."""
        return self.counted_bytes - self._size_bytes if self.counted_bytes else 0

    def filled(self, num_bytes: int) -> None:
        """Note that so many bytes have come to the place of the body."""
        assert self._place is not None
        self._place.advance(num_bytes)
        self._size_bytes += num_bytes

    @property
    def is_awaited(self) -> bool:
        """Whether the handler waits for more of the body."""
        return self._waiter is not None

    async def _ready(self, limit_bytes: int, wakes_at_bytes: int) -> None:
        """Return once the body is complete, or this much of it is held. Raises BodyTooLarge, BodyBroken."""
        if int(self.headers.get("content-length", 0)) > limit_bytes:
            raise BodyTooLarge
        self._wakes_at_bytes = wakes_at_bytes
        while True:
            if self._size_bytes > limit_bytes:
                raise BodyTooLarge
            if self.is_complete or self._held_bytes >= wakes_at_bytes:
                return
            if self._fault is not None:
                raise BodyBroken(self._fault)
            if self.expects_continue:
                self.expects_continue = False
                self._source.send_continue()
            self._source.resume_body()
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None

    async def _in_place(self, limit_bytes: int) -> bytes:
        """Return a body of which much is still to come. Its memory is taken here: the handler has made room."""
        self._place = place = Place(self.counted_bytes, self._parts)
        self._parts, self._held_bytes = [], 0
        self._source.fill(place)
        try:
            await self._ready(limit_bytes, limit_bytes + 1)
            return place.whole()
        finally:
            self._place = None
            if not self.is_complete:
                self._source.end_filling()

    def _hold(self, data: bytes) -> None:
        """Hold a chunk. Tiny chunks are held as one, since each by itself would take ten times its size."""
        parts = self._parts
        if len(data) >= SMALL_BYTES:
            parts.append(data)
        elif parts and isinstance(parts[-1], bytearray):
            parts[-1] += data
        else:
            parts.append(bytearray(data) if parts else data)

    def _take(self) -> bytes:
        parts, self._parts, self._held_bytes = self._parts, [], 0
        first = parts[0] if parts else b""
        return first if len(parts) == 1 and isinstance(first, bytes) else b"".join(parts)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


# ---- from the bytes of one client to requests; ambiguous requests that llhttp accepts are refused here

_FRAMING = frozenset((b"content-length", b"transfer-encoding"))


class RequestSink(ByteSource, Protocol):
    """The connection over which requests come."""

    def head_received(self, request: FastRequest) -> None:
        """Called when the head of a request has come."""
        ...

    def request_received(self, request: FastRequest) -> None:
        """Called when all of a request has come."""
        ...

    def read_failed(self, fault: str, request: FastRequest | None) -> None:
        """Called when nothing more can be read. `request`: the one whose body broke off; None: between two."""
        ...


class _Refused(Exception):
    pass


class RequestReader:
    """Parses the bytes of one connection, and calls its sink."""

    def __init__(self, sink: RequestSink) -> None:
        self._sink = sink
        self._parser: HttpRequestParser | None = HttpRequestParser(self)
        self._target = b""
        self._headers: RawHeaders = []
        self._num_headers = 0
        """Those of the head; what follows are trailers."""
        self._block_bytes = 0
        self._bodiless_bytes = 0
        """Bytes that have come since the last byte of a body."""
        self._incoming: FastRequest | None = None
        """The request whose body is coming."""

    @property
    def is_open(self) -> bool:
        return self._parser is not None

    @property
    def is_in_head(self) -> bool:
        return self._bodiless_bytes > 0 and self._incoming is None

    def stop(self) -> None:
        """Drop all bytes that still come."""
        self._parser = None

    def feed(self, data: bytes) -> None:
        parser = self._parser
        if parser is None:
            return
        if self._incoming is not None and self._incoming.left_bytes:
            data = self._feed_counted(self._incoming, data)
            if not data or (parser := self._parser) is None:
                return
        self._block_bytes = len(data)
        self._bodiless_bytes += len(data)
        rest: bytes | None = None
        try:
            parser.feed_data(data)
        except HttpParserUpgrade as stopped:
            rest = data[stopped.args[0] :]
        except HttpParserError as error:
            self.refuse(str(error.__context__ or error))
        else:
            if self._bodiless_bytes > MAX_HEAD_BYTES:
                self.refuse(f"its headers or trailers are longer than {MAX_HEAD_BYTES} bytes")
        if rest is not None:  # here the errors of what follows do not have this one as their context
            self._after_upgrade(rest)

    def filled(self, num_bytes: int) -> None:
        """Go on after bytes that have come to the place of a body."""
        request = self._incoming
        if self._parser is not None and request is not None:
            request.filled(num_bytes)
            self._end_if_whole(request)

    def refuse(self, fault: str) -> None:
        """Stop for good: the bytes that follow have no known meaning. Does nothing once the reader has stopped."""
        if self._parser is None:
            return
        self.stop()
        self._sink.read_failed(fault, self._incoming)

    def on_url(self, part: bytes) -> None:
        self._target += part

    def on_header(self, name: bytes, value: bytes) -> None:
        """Called for trailers too, which are forgotten with their request."""
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        if self._incoming is not None:
            return  # the head that a parser is primed with after an upgrade
        parser, raw = self._parser, self._headers
        assert parser is not None
        is_long = max(self._block_bytes, self._bodiless_bytes) > MAX_HEAD_BYTES
        if is_long and size_bytes(self._target, raw) > MAX_HEAD_BYTES:
            raise _Refused(f"its headers are longer than {MAX_HEAD_BYTES} bytes")
        target, version = self._target.decode("ascii"), parser.get_http_version()
        self._num_headers = len(raw)
        header_list = decoded(raw)
        headers = by_name(header_list)
        if not target.startswith("/"):
            target = origin_form(target, headers)
        if (fault := fault_of(version, target, header_list, headers)) is not None:
            raise _Refused(fault)
        self._incoming = FastRequest(
            self._sink,
            parser.get_method().decode("ascii"),
            target,
            version,
            header_list,
            headers,
            version == "1.1" and parser.should_keep_alive(),
        )
        if not parser.should_upgrade():  # after an upgrade the parser says what may follow
            length_bytes = int(headers.get("content-length", 0))
            self._incoming.counted_bytes = length_bytes if length_bytes >= COUNTED_BYTES else 0
        self._sink.head_received(self._incoming)

    def on_body(self, data: bytes) -> None:
        self._bodiless_bytes = 0
        assert self._incoming is not None
        self._incoming.feed(data)

    def on_message_complete(self) -> None:
        if self._parser is not None and self._parser.should_upgrade():
            return  # only its head has come
        if len(self._headers) > self._num_headers:
            trailers = self._headers[self._num_headers :]
            if len(trailers) > MAX_HEADERS or size_bytes(b"", trailers) > MAX_HEAD_BYTES:
                raise _Refused(f"its trailers are longer than {MAX_HEAD_BYTES} bytes or more than {MAX_HEADERS}")
        request, self._incoming = self._incoming, None
        assert request is not None
        self._target, self._headers, self._num_headers, self._bodiless_bytes = b"", [], 0, 0
        request.finish()
        self._sink.request_received(request)

    def _feed_counted(self, request: FastRequest, data: bytes) -> bytes:
        """Feed what belongs to a body whose length is counted here, and return the rest."""
        taken = data if len(data) <= request.left_bytes else data[: request.left_bytes]
        request.feed(taken)
        self._end_if_whole(request)
        return data[len(taken) :]

    def _end_if_whole(self, request: FastRequest) -> None:
        if not request.left_bytes:
            self._parser = HttpRequestParser(self)  # the one before still waits for this body
            if request.is_kept_alive:
                self.on_message_complete()
            else:  # it calls that itself, and knows then that nothing may follow
                self._parser.feed_data(b"POST / HTTP/1.1\r\nConnection: close\r\n\r\n")

    def _after_upgrade(self, rest: bytes) -> None:
        """Read on after a head with `Upgrade`, which makes no difference here. Its parser has stopped, and a new
        one, primed with the headers that frame the body, goes on."""
        framing = [b"%b: %b\r\n" % item for item in self._headers if item[0].lower() in _FRAMING]
        self._parser = HttpRequestParser(self)
        self._parser.feed_data(b"".join([b"POST / HTTP/1.1\r\n", *framing, b"\r\n"]))
        if rest:
            self.feed(rest)
