"""When an execution of a tool may start: no more at once than its concurrency, no more often than its rate."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext

from tool_runtime.types import Limits


class TokenBucket:
    """Fills at `rate_per_s` up to one second's worth, at least one token; starts full."""

    def __init__(self, rate_per_s: float, now: float) -> None:
        self._rate_per_s = rate_per_s
        self._capacity = max(1.0, rate_per_s)
        self._tokens = self._capacity
        self._filled_at = now

    def wait_s(self, now: float) -> float:
        """Seconds until there is a token. 0: there is."""
        filled = (now - self._filled_at) * self._rate_per_s
        self._tokens, self._filled_at = min(self._capacity, self._tokens + filled), now
        return max(0.0, (1.0 - self._tokens) / self._rate_per_s)

    def take(self) -> None:
        """To be called when that time has passed."""
        self._tokens -= 1.0


class Throttle:
    """One tool's places, given in order of arrival. Whoever leaves while waiting has taken nothing."""

    def __init__(self, limits: Limits, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._places = asyncio.Semaphore(limits.concurrency) if limits.concurrency else None
        self._bucket = TokenBucket(limits.rate_per_s, clock()) if limits.rate_per_s else None
        self._head = asyncio.Lock()

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """A place for the body; entered when the tool may start."""
        async with self._places or nullcontext():
            await self._rate()
            yield

    async def _rate(self) -> None:
        if self._bucket is None:
            return
        async with self._head:  # only the first in line looks at the bucket
            await asyncio.sleep(self._bucket.wait_s(self._clock()))
            self._bucket.take()
