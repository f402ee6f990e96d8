"""The transport interface: the part of HTTP that the path of a request needs.

`gateway/transport/` implements it twice, and no other folder imports an HTTP library. Lists of headers keep names,
order and repeats. Headers are looked up by their names in lower case.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from operator import itemgetter
from typing import Protocol, TypeAlias

from gateway.core.slices import LARGE_BYTES

HeaderList: TypeAlias = Sequence[tuple[str, str]]
Body: TypeAlias = bytes | tuple[bytes | memoryview, ...]
"""Of a call. A large one may be parts, which go out one after the other, so that none of them is copied."""

HOP_BY_HOP = frozenset(
    {
        "connection",
        "expect",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
"""Headers that belong to one connection (RFC 9110, 7.6.1) and are not relayed."""

_FIRST, _SECOND = itemgetter(0), itemgetter(1)
_BREAKS = str.maketrans("\r\n\0", "   ")


def sendable(text: str) -> str:
    """Return a header value (or name) that can be sent on. Surrogates, which stand for bytes that are no UTF-8,
    are replaced. A character that would end the line, and so begin another header, becomes a space."""
    if not text.isascii():
        text = text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return text if text.isprintable() else text.translate(_BREAKS)


def size_bytes(body: Body) -> int:
    return len(body) if isinstance(body, bytes) else sum(map(len, body))


def whole(body: Body) -> bytes:
    """Return a body in one piece."""
    return body if isinstance(body, bytes) else b"".join(body)


def by_name(header_list: HeaderList) -> dict[str, str]:
    """Return the first value of each header, by its name in lower case."""
    backwards = header_list[::-1]
    return dict(zip(map(str.lower, map(_FIRST, backwards)), map(_SECOND, backwards), strict=True))


class Request(Protocol):
    """One incoming request."""

    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    """The first value of each header, by its name in lower case."""
    header_list: HeaderList
    remote: str

    async def read(self, limit_bytes: int) -> bytes:
        """Return the whole body. Raises BodyTooLarge above the limit, BodyBroken."""
        ...

    def chunks(self, limit_bytes: int) -> AsyncIterator[bytes]:
        """Yield the body as it comes, without holding it in memory. Raises BodyTooLarge above the limit,
        BodyBroken."""
        ...


class BodyTooLarge(Exception):
    """The body is longer than the limit that the reader gave."""


class BodyBroken(ConnectionError):
    """The body stopped coming, or is not valid HTTP. Nothing more is read from its connection."""


class Responder(Protocol):
    """The way back to one client. Exactly one of `reply` or `open_stream ... end/reset` is used."""

    @property
    def has_started(self) -> bool:
        """Whether status and headers have gone out."""
        ...

    async def reply(self, status: int, headers: HeaderList, body: bytes) -> None:
        """Send status, headers and body at once."""
        ...

    async def open_stream(self, status: int, headers: HeaderList) -> None:
        """Send status and headers of a streamed answer."""
        ...

    async def write(self, data: bytes) -> None:
        """Send `data` now. Waits while the client is slow. Raises ConnectionResetError when it has left."""
        ...

    async def end(self) -> None:
        """End a streamed answer cleanly."""
        ...

    def reset(self) -> None:
        """Break the connection, so that a cut answer cannot be taken for a whole one."""
        ...


Handler: TypeAlias = Callable[[Request, Responder], Awaitable[None]]
"""Serves one request. The server cancels it as soon as its client leaves."""


class Server(Protocol):
    """Listens, and calls a handler for each request."""

    async def start(
        self, host: str, port: int, *, reuse_port: bool = False, sock: socket.socket | None = None
    ) -> int:
        """Listen, and return the port, which is a free one when `port` is 0.

        `reuse_port`: other processes listen on the same port, and the kernel spreads the connections. `sock`: a
        socket that is already bound, instead of host and port.
        """
        ...

    async def stop(self, grace_s: float) -> None:
        """Stop accepting connections, let running requests finish for `grace_s`, then cancel them."""
        ...


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Bounds of one upstream call, in seconds; None: no bound."""

    connect_s: float | None = 5.0
    first_byte_s: float | None = 600.0
    """From the call to the status line."""
    idle_s: float | None = 300.0
    """Between two chunks of the body."""


class UpstreamReply(Protocol):
    """An engine's answer whose status and headers have come. The body is still to be read."""

    status: int
    headers: Mapping[str, str]
    header_list: HeaderList

    def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body as it arrives, not decoded. Raises UpstreamCut when the connection breaks."""
        ...

    async def read(self, limit_bytes: int) -> bytes:
        """Return the rest of the body. Raises UpstreamCut when it breaks off or is longer."""
        ...

    def close(self, *, reuse: bool) -> None:
        """Give the connection back. `reuse=False` closes it, which aborts the call at the engine."""
        ...


async def joined(reply: UpstreamReply, limit_bytes: int) -> bytes:
    """Return a body of which nothing has been read, as `UpstreamReply.read` does. Abort one that is longer. The
    chunks of a large one of known length go to their place: to join them is a step of half a millisecond a MB."""
    length = reply.headers.get("content-length", "")
    if (
        length.isdecimal()
        and LARGE_BYTES <= int(length) <= limit_bytes
        and "transfer-encoding" not in reply.headers
    ):
        place, at = BytesIO(bytes(int(length))), 0
        with place.getbuffer() as buffer:
            async for chunk in reply.chunks():
                buffer[at : at + len(chunk)] = chunk
                at += len(chunk)
        return place.getvalue()[:at]
    chunks = []
    size_bytes = 0
    async for chunk in reply.chunks():
        size_bytes += len(chunk)
        if size_bytes > limit_bytes:
            reply.close(reuse=False)
            raise UpstreamCut(f"the engine's answer is longer than {limit_bytes} bytes")
        chunks.append(chunk)
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


async def taken(reply: UpstreamReply, limit_bytes: int) -> bytes:
    """Return the rest of an answer. Its connection is given back if the answer came whole, and closed otherwise.
    Raises UpstreamCut."""
    is_whole = False
    try:
        body = await reply.read(limit_bytes)
        is_whole = True
        return body
    finally:
        reply.close(reuse=is_whole)


Sink: TypeAlias = Callable[[list[bytes]], int]
"""Called with the chunks that have come, in order. Returns how many of them it has taken, from the first on."""


class Pushing:
    """An `UpstreamReply` that can hand over chunks without waking its reader."""

    __slots__ = ()

    def push(self, sink: Sink) -> None:
        """Offer chunks to `sink` as they come, until it refuses one. That chunk and all later ones are for
        `chunks()`, until the next `push`."""
        raise NotImplementedError


class Direct:
    """A `Responder` that can send without waiting."""

    __slots__ = ()

    @property
    def is_ready(self) -> bool:
        """Whether a streamed answer has begun and its client keeps up."""
        raise NotImplementedError

    def write_now(self, data: bytes) -> None:
        """Send as `write` does. Called only while `is_ready`."""
        raise NotImplementedError


class UpstreamRefused(Exception):
    """No connection, or none in time: the engine has not seen the call."""


SILENT = "the engine went silent"


class UpstreamCut(Exception):
    """The connection broke or went silent after the request was sent."""

    @property
    def is_silent(self) -> bool:
        """Whether nothing came for too long."""
        return str(self) == SILENT


class Upstream(Protocol):
    """Calls engines over pooled connections."""

    async def call(
        self, method: str, url: str, headers: HeaderList, body: Body | None, timeouts: Timeouts
    ) -> UpstreamReply:
        """Send a call and wait for status and headers. Cancelling it closes the connection.

        Raises UpstreamRefused before the request was sent, UpstreamCut after.
        """
        ...

    async def close(self) -> None: ...
