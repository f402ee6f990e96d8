"""A service's list of models, asked for rarely: it is polled like an engine's, and changes like a price list."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from gateway.core.transport import UpstreamReply, taken
from gateway.engines.providers.replies import WholeReply

KEEP_S = 300.0
MAX_BYTES = 4 * 2**20


class Listing:
    """Keeps the last one that came."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._kept: WholeReply | None = None
        self._until = 0.0

    async def reply(self, ask: Callable[[], Awaitable[UpstreamReply]]) -> UpstreamReply:
        """As `Upstream.call`."""
        if self._kept is not None and self._clock() < self._until:
            return self._kept
        reply = await ask()
        if reply.status != 200:
            return reply
        body = await taken(reply, MAX_BYTES)
        self._kept, self._until = WholeReply(200, reply.header_list, body), self._clock() + KEEP_S
        return self._kept
