"""One incoming request of the fast transport, and its body while it comes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Protocol

from gateway.core.transport import BodyBroken, BodyTooLarge, HeaderList

BUFFER_BYTES = 256 * 1024
"""Of a body that nobody has asked for yet; then reading from the connection pauses."""


SMALL_BYTES = 1024
"""Smaller pieces of a body are joined as they come."""


class Source(Protocol):
    """The connection that a body comes from."""

    remote: str

    def pause_body(self) -> None: ...
    def resume_body(self) -> None: ...
    def send_continue(self) -> None: ...


class FastRequest:
    """A `transport.Request`. Its connection calls `feed`, and in the end `finish` or `fail`."""

    __slots__ = (
        "_fault",
        "_held_bytes",
        "_is_dropped",
        "_parts",
        "_size_bytes",
        "_source",
        "_waiter",
        "_wakes_at_bytes",
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
        source: Source,
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
        """The client waits for a word before it sends the body."""
        self.is_complete = False
        self._source = source
        self._parts: list[bytes | bytearray] = []
        self._held_bytes = self._size_bytes = 0
        self._wakes_at_bytes = BUFFER_BYTES
        self._is_dropped = False
        self._fault: str | None = None
        self._waiter: asyncio.Future[None] | None = None

    async def read(self, limit_bytes: int) -> bytes:
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
        if self._is_dropped:
            return
        self._hold(data)
        self._size_bytes += len(data)
        self._held_bytes += len(data)
        if self._held_bytes >= self._wakes_at_bytes:
            self._wake()
            if self._held_bytes >= BUFFER_BYTES:
                self._source.pause_body()

    def finish(self) -> None:
        self.is_complete = True
        self._wake()

    def fail(self, fault: str) -> None:
        """Nothing more comes."""
        self._fault = fault
        self._wake()

    def drop(self) -> None:
        """Nobody wants the rest."""
        self._is_dropped = True
        self._parts = []
        self._source.resume_body()

    @property
    def is_awaited(self) -> bool:
        """Whether the handler waits for more of the body."""
        return self._waiter is not None

    async def _ready(self, limit_bytes: int, wakes_at_bytes: int) -> None:
        """Returns with the body complete, or this much of it held. Raises BodyTooLarge, BodyBroken."""
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

    def _hold(self, data: bytes) -> None:
        """What comes in tiny chunks is held as one: each by itself would take ten times its size."""
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
