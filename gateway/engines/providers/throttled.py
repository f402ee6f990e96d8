"""Obeys services that throttle: a refused call is sent again when it may be, and fewer are sent at once."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import replace
from typing import Any

from gateway.core.transport import HeaderList, Timeouts, Upstream, UpstreamCut, UpstreamReply, taken
from gateway.engines.base import EngineAddress
from gateway.engines.monitor import RunningEngine
from gateway.engines.providers import calling
from gateway.engines.providers.replies import WholeReply
from policies.throttle import MOST, START, Throttle
from policies.types import ReplicaReported

RENTED = frozenset(("openai", "anthropic", "bedrock"))
"""Kinds of engines that say how much they take by refusing more."""
PATIENCE_S = 45.0
"""How long a call waits here in all; then its client is told, who has timers too."""
FIRST_S, LONGEST_S = 0.5, 20.0
ENDLESS_TOKENS = 10**12
_REFUSED = frozenset((429, 529))
_NOT_PASSING = b"insufficient_quota"
"""Of OpenAI's 429 for an empty account."""
_MAX_BYTES = 2**20


def obeying(
    upstream: Upstream, addresses: Sequence[EngineAddress], clock: Callable[[], float]
) -> ThrottledUpstream:
    """`upstream` with all that the services among `addresses` need. Raises ConfigError as `calling.in_front`."""
    return ThrottledUpstream(calling.in_front(upstream, addresses), addresses, clock)


class ThrottledUpstream:
    """A `transport.Upstream` in front of another."""

    def __init__(
        self,
        upstream: Upstream,
        addresses: Iterable[EngineAddress],
        clock: Callable[[], float],
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        chance: Callable[[], float] = random.random,
    ) -> None:
        """`clock`: monotonic seconds; `chance`: in [0, 1), spreads those that were refused together."""
        self._upstream = upstream
        self._lines = {address.base_url: _Line(address) for address in addresses if address.kind in RENTED}
        self._clock = clock
        self._sleep = sleep
        self._chance = chance

    def reported(self, fact: ReplicaReported, engine: RunningEngine) -> ReplicaReported:
        """With what a rented engine does not say: how many calls it takes at once. Its cache counts as endless,
        since what is evicted there says nothing of how much fits in. One's own has no bound until it refuses."""
        line = self._lines.get(engine.address.base_url)
        if line is not None and (line.throttle.was_cut or not line.is_own):
            fact = replace(fact, slots=min(line.throttle.limit, fact.slots or MOST))
        return replace(fact, capacity_tokens=ENDLESS_TOKENS) if engine.engine.is_rented else fact

    def call(
        self, method: str, url: str, headers: HeaderList, body: bytes | None, timeouts: Timeouts
    ) -> Coroutine[Any, Any, UpstreamReply]:
        for base, line in self._lines.items() if method == "POST" else ():
            if url.startswith(base + "/"):
                return self._counted(line, lambda: self._upstream.call(method, url, headers, body, timeouts))
        return self._upstream.call(method, url, headers, body, timeouts)

    async def close(self) -> None:
        await self._upstream.close()

    async def _counted(self, line: _Line, send: Callable[[], Awaitable[UpstreamReply]]) -> UpstreamReply:
        line.in_flight += 1
        reply: UpstreamReply | None = None
        try:
            reply = await self._patient(line, send)
            return _Counted(reply, line)
        finally:
            if reply is None:
                line.in_flight -= 1

    async def _patient(self, line: _Line, send: Callable[[], Awaitable[UpstreamReply]]) -> UpstreamReply:
        """The first answer that is no refusal, or the last refusal."""
        num_refusals, waited_s = 0, 0.0
        while True:
            begun_at = self._clock()
            reply = await send()
            if reply.status not in _REFUSED:
                line.throttle.answered(line.in_flight)
                return reply
            refused = await _read(reply)
            if _NOT_PASSING in await refused.read(_MAX_BYTES):
                return refused
            line.throttle.refused(begun_at, line.in_flight, self._clock())
            pause_s = self._pause_s(refused, num_refusals)
            num_refusals, waited_s = num_refusals + 1, waited_s + pause_s
            if waited_s > PATIENCE_S:
                return refused
            await self._sleep(pause_s)

    def _pause_s(self, refused: UpstreamReply, num_refusals: int) -> float:
        """As long as it says, or longer with each refusal; never as one with the others."""
        earned_s = min(LONGEST_S, FIRST_S * 2.0 ** min(num_refusals, 10)) * (0.5 + self._chance() / 2)
        return _told_s(refused) + earned_s


class _Line:
    """What is known of one service."""

    def __init__(self, address: EngineAddress) -> None:
        self.is_own = address.kind == "openai" and address.base_url.startswith("http://")
        """Whether it is a server of one's own: what is rented is reached over TLS."""
        self.throttle = Throttle(MOST if self.is_own else START)
        self.in_flight = 0


class _Counted:
    """An answer that is in flight until it is closed."""

    def __init__(self, reply: UpstreamReply, line: _Line) -> None:
        self._reply = reply
        self._line: _Line | None = line
        self.status, self.headers, self.header_list = reply.status, reply.headers, reply.header_list

    def chunks(self) -> AsyncIterator[bytes]:
        return self._reply.chunks()

    async def read(self, limit_bytes: int) -> bytes:
        return await self._reply.read(limit_bytes)

    def close(self, *, reuse: bool) -> None:
        self._reply.close(reuse=reuse)
        if self._line is not None:
            self._line.in_flight -= 1
            self._line = None


async def _read(reply: UpstreamReply) -> WholeReply:
    try:
        body = await taken(reply, _MAX_BYTES)
    except UpstreamCut:
        body = b""
    return WholeReply(reply.status, reply.header_list, body)


def _told_s(refused: UpstreamReply) -> float:
    try:
        seconds = float(refused.headers.get("retry-after", "0"))
    except ValueError:
        return 0.0
    return max(0.0, seconds) if math.isfinite(seconds) else 0.0
