"""The transport interface: what the path of a request needs from HTTP, and nothing more.

Two edge files implement it (`transports/`); nothing above them imports an HTTP library. Lists of headers keep
names, order and repeats as they came; looked up they are by their names in lower case.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

HeaderList: TypeAlias = Sequence[tuple[str, str]]

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


_BREAKS = str.maketrans("\r\n\0", "   ")


def sendable(text: str) -> str:
    """A header value (or name) that can be sent on. Bytes that were no UTF-8 arrive as surrogates, which cannot;
    what would end the line, and so let a value write further headers, becomes a space."""
    if not text.isascii():
        text = text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return text if text.isprintable() else text.translate(_BREAKS)


def by_name(header_list: HeaderList) -> dict[str, str]:
    """The first value of each header, by its name in lower case."""
    return {name.lower(): value for name, value in reversed(header_list)}


class Request(Protocol):
    """One incoming request."""

    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    """The first value of each, by its name in lower case."""
    header_list: HeaderList
    remote: str

    async def read(self, limit_bytes: int) -> bytes:
        """The whole body as it came. Raises BodyTooLarge above the limit, BodyBroken."""
        ...

    def chunks(self, limit_bytes: int) -> AsyncIterator[bytes]:
        """The body as it comes, for what is not held in memory. Raises BodyTooLarge above the limit,
        BodyBroken."""
        ...


class BodyTooLarge(Exception):
    """The body is longer than the limit that the reader gave."""


class BodyBroken(ConnectionError):
    """The body stopped coming, or is not valid HTTP; nothing more is read from its connection."""


class Responder(Protocol):
    """The way back to one client. Exactly one of `reply` or `start ... end/reset` is used."""

    @property
    def has_started(self) -> bool:
        """Whether status and headers have gone out."""
        ...

    async def reply(self, status: int, headers: HeaderList, body: bytes) -> None:
        """Status, headers and body in one go."""
        ...

    async def open_stream(self, status: int, headers: HeaderList) -> None:
        """Status and headers of a streamed answer."""
        ...

    async def write(self, data: bytes) -> None:
        """Send `data` now; waits while the client is slow. Raises ConnectionResetError when it has gone."""
        ...

    async def end(self) -> None:
        """The clean end of a streamed answer."""
        ...

    def reset(self) -> None:
        """Break the connection, so that a cut answer cannot be taken for a whole one."""
        ...


Handler: TypeAlias = Callable[[Request, Responder], Awaitable[None]]
"""Cancelled by the server as soon as its client leaves."""


class Server(Protocol):
    """Listens and calls a handler per request."""

    async def start(
        self, host: str, port: int, *, reuse_port: bool = False, sock: socket.socket | None = None
    ) -> int:
        """Listen; returns the port (useful when 0 was asked for).

        `reuse_port`: other processes listen on it too, and the kernel spreads the connections. `sock`: one that is
        bound already, instead of host and port.
        """
        ...

    async def stop(self, grace_s: float) -> None:
        """Stop accepting, let running requests finish for `grace_s`, then cancel them."""
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
    """Status and headers have come; the body is still to be read."""

    status: int
    headers: Mapping[str, str]
    header_list: HeaderList

    def chunks(self) -> AsyncIterator[bytes]:
        """Body bytes as they arrive, not decoded. Raises UpstreamCut when the connection breaks."""
        ...

    async def read(self, limit_bytes: int) -> bytes:
        """The rest of the body. Raises UpstreamCut when it breaks or is longer."""
        ...

    def close(self, *, reuse: bool) -> None:
        """Give the connection back. `reuse=False` closes it, which aborts the call at the engine."""
        ...


async def joined(reply: UpstreamReply, limit_bytes: int) -> bytes:
    """What `UpstreamReply.read` gives, from its chunks. One that is longer is aborted."""
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
    """The rest of an answer; its connection is given back if that came whole, and closed if not. Raises
    UpstreamCut."""
    is_whole = False
    try:
        body = await reply.read(limit_bytes)
        is_whole = True
        return body
    finally:
        reply.close(reuse=is_whole)


Sink: TypeAlias = Callable[[list[bytes]], int]
"""Told what has come, in order and as the engine cut it; returns how many of these it took, from the first on."""


class Pushing:
    """An `UpstreamReply` that can hand over what comes without waking its reader."""

    __slots__ = ()

    def push(self, sink: Sink) -> None:
        """Offer to `sink` what comes, as it comes, until it refuses some: that and all that follows is for
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
        """As `write`; only while `is_ready`."""
        raise NotImplementedError


class UpstreamRefused(Exception):
    """No connection, or none in time: nothing was asked of the engine."""


SILENT = "the engine went silent"


class UpstreamCut(Exception):
    """The connection broke or went silent after the request was sent."""

    @property
    def is_silent(self) -> bool:
        """Nothing came for too long."""
        return str(self) == SILENT


class Upstream(Protocol):
    """Calls engines over pooled connections."""

    async def call(
        self, method: str, url: str, headers: HeaderList, body: bytes | None, timeouts: Timeouts
    ) -> UpstreamReply:
        """Send and wait for status and headers. Cancelling it closes the connection.

        Raises UpstreamRefused before the request was sent, UpstreamCut after.
        """
        ...

    async def close(self) -> None: ...
