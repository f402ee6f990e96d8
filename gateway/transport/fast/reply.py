"""An engine's answer over the fast transport: its bytes from the parser to whoever reads them, without a copy."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING

from gateway.core.transport import HeaderList, Pushing, Sink, UpstreamCut, by_name, joined

if TYPE_CHECKING:
    from gateway.transport.fast.engine_connection import EngineConnection

BUFFER_BYTES = 256 * 1024
"""Read ahead of a slow reader; then reading from the engine pauses."""


class FastReply(Pushing):
    """A `transport.UpstreamReply`. Its connection fills it; after `finish` or `cut` the two are apart."""

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
        """That have come and not been read."""
        self.held_bytes = 0
        """Of these parts, framing included."""
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
        """A connection is given back as soon as its answer is complete. One whose answer is not closes."""
        if self._connection is not None:
            self._connection.abort()

    def begin(self, status: int, header_list: HeaderList) -> None:
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

    def come(self) -> None:
        """More has come: for the sink, or else for whoever reads."""
        parts, sink = self.parts, self._sink
        if sink is not None:
            num_taken = sink(parts)
            if num_taken == len(parts):
                parts.clear()
                self.held_bytes = 0
                return
            del parts[:num_taken]
            self._sink = None
        self.wake()

    def wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def more(self) -> asyncio.Future[None]:
        """Done at the next event. Raises UpstreamCut when there will be none."""
        if self._connection is None:
            raise UpstreamCut(self._fault)
        self._waiter = waiter = self._connection.loop.create_future()
        return waiter

    def _taken(self) -> bytes:
        """All parts that have come, as one chunk."""
        parts, self.parts, self.held_bytes = self.parts, [], 0
        if self._connection is not None:
            self._connection.resume()
        return parts[0] if len(parts) == 1 else b"".join(parts)
