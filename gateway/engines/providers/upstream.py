"""The upstream in front of engines that throttle: it has calls translated, and sends no more than are taken."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

from gateway.core.transport import Body, HeaderList, Timeouts, Upstream, UpstreamCut, UpstreamReply, taken
from gateway.engines.base import EngineAddress
from gateway.engines.kinds import adapter_of
from gateway.engines.providers.translation import WholeReply
from policies.capacity import FIRST_LIMIT, MAX_LIMIT, Throttle
from policies.types import ReplicaReported

PATIENCE_S = 45.0
"""How long a call waits here in all. Then the refusal goes to the client, which has timers too."""
FIRST_S, LONGEST_S = 0.5, 20.0
ENDLESS_TOKENS = 10**12
_REFUSED = frozenset((429, 529))
_EMPTY_ACCOUNT = b"insufficient_quota"
"""Of OpenAI's 429 that no waiting ends."""
_MAX_BYTES = 2**20


class ProviderUpstream:
    """A `transport.Upstream` in front of another. A refused call is sent again when it may be, and fewer calls are
    open at once; calls to engines that do not throttle pass."""

    def __init__(
        self,
        upstream: Upstream,
        addresses: Iterable[EngineAddress],
        clock: Callable[[], float],
        *,
        wall_clock: Callable[[], float] = time.time,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        chance: Callable[[], float] = random.random,
    ) -> None:
        """`clock`: monotonic seconds; `chance`: in [0, 1), spreads calls that were refused together. Raises
        ConfigError for a package that an adapter lacks."""
        self._upstream = upstream
        self._providers = {
            address.base_url: _Provider(address, upstream, wall_clock)
            for address in addresses
            if adapter_of(address.kind).throttles
        }
        self._clock = clock
        self._sleep = sleep
        self._chance = chance

    def reported(self, fact: ReplicaReported, base_url: str) -> ReplicaReported:
        """Add what a rented engine does not say: how many calls it takes at once. Its cache counts as endless, as
        an eviction there says nothing of its size. An operator's own server has no bound until it refuses."""
        provider = self._providers.get(base_url)
        if provider is None:
            return fact
        if provider.is_rented or provider.throttle.was_cut:
            fact = replace(fact, slots=min(provider.throttle.limit, fact.slots or MAX_LIMIT))
        return replace(fact, capacity_tokens=ENDLESS_TOKENS) if provider.is_rented else fact

    def call(
        self, method: str, url: str, headers: HeaderList, body: Body | None, timeouts: Timeouts
    ) -> Coroutine[Any, Any, UpstreamReply]:
        for base_url, provider in self._providers.items():
            if url.startswith(base_url + "/"):
                path = url[len(base_url) :]
                if method != "POST":
                    return provider.call(method, path, headers, body, timeouts)
                return self._counted(provider, partial(provider.call, method, path, headers, body, timeouts))
        return self._upstream.call(method, url, headers, body, timeouts)

    async def close(self) -> None:
        await self._upstream.close()

    async def _counted(self, provider: _Provider, send: Callable[[], Awaitable[UpstreamReply]]) -> UpstreamReply:
        provider.in_flight += 1
        reply: UpstreamReply | None = None
        try:
            reply = await self._patient(provider, send)
            return _CountedReply(reply, provider)
        finally:
            if reply is None:
                provider.in_flight -= 1

    async def _patient(self, provider: _Provider, send: Callable[[], Awaitable[UpstreamReply]]) -> UpstreamReply:
        """Return the first answer that is no refusal, or the last refusal."""
        num_refusals, waited_s = 0, 0.0
        while True:
            begun_at = self._clock()
            reply = await send()
            if reply.status not in _REFUSED:
                provider.throttle.answered(provider.in_flight)
                return reply
            refused = await _read(reply)
            if _EMPTY_ACCOUNT in await refused.read(_MAX_BYTES):
                return refused
            provider.throttle.refused(begun_at, provider.in_flight, self._clock())
            pause_s = self._pause_s(refused, num_refusals)
            num_refusals, waited_s = num_refusals + 1, waited_s + pause_s
            if waited_s > PATIENCE_S:
                return refused
            await self._sleep(pause_s)

    def _pause_s(self, refused: UpstreamReply, num_refusals: int) -> float:
        """As long as the provider says, and longer with each refusal; never in step with other calls."""
        own_s = min(LONGEST_S, FIRST_S * 2.0 ** min(num_refusals, 10)) * (0.5 + self._chance() / 2)
        return _retry_after_s(refused) + own_s


class _Provider:
    """One address: how it is called, and how many calls it takes."""

    def __init__(self, address: EngineAddress, upstream: Upstream, wall_clock: Callable[[], float]) -> None:
        adapter = adapter_of(address.kind)
        self.is_rented = adapter.is_rented(address)
        self.throttle = Throttle(FIRST_LIMIT if self.is_rented else MAX_LIMIT)
        self.in_flight = 0
        self._base_url = address.base_url
        self._client = adapter.client(upstream, address, wall_clock)
        self._upstream = upstream

    def call(
        self, method: str, path: str, headers: HeaderList, body: Body | None, timeouts: Timeouts
    ) -> Coroutine[Any, Any, UpstreamReply]:
        if self._client is not None:
            return self._client.call(method, path, headers, body, timeouts)
        return self._upstream.call(method, self._base_url + path, headers, body, timeouts)


class _CountedReply:
    """An answer that is in flight until it is closed."""

    def __init__(self, reply: UpstreamReply, provider: _Provider) -> None:
        self._reply = reply
        self._provider: _Provider | None = provider
        self.status, self.headers, self.header_list = reply.status, reply.headers, reply.header_list

    def chunks(self) -> AsyncIterator[bytes]:
        return self._reply.chunks()

    async def read(self, limit_bytes: int) -> bytes:
        return await self._reply.read(limit_bytes)

    def close(self, *, reuse: bool) -> None:
        self._reply.close(reuse=reuse)
        if self._provider is not None:
            self._provider.in_flight -= 1
            self._provider = None


async def _read(reply: UpstreamReply) -> WholeReply:
    try:
        body = await taken(reply, _MAX_BYTES)
    except UpstreamCut:
        body = b""
    return WholeReply(reply.status, reply.header_list, body)


def _retry_after_s(refused: UpstreamReply) -> float:
    try:
        seconds = float(refused.headers.get("retry-after", "0"))
    except ValueError:
        return 0.0
    return max(0.0, seconds) if math.isfinite(seconds) else 0.0
