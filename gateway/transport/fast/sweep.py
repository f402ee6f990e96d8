"""One coarse timer for all time-outs of a transport: a timer per request would cost more than what it guards."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

PERIOD_S = 1.0
_TICKS_PER_TIMEOUT = 4


class Sweep:
    """Calls `tick(now)` every `PERIOD_S`, and more often once a shorter time-out was asked for.

    A time-out so fires up to a quarter of its length, or a second, late.
    """

    def __init__(self, tick: Callable[[float], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._tick = tick
        self._period_s = PERIOD_S
        self.now = self._loop.time()
        """Of the latest tick."""
        self._timer = self._loop.call_later(self._period_s, self._run)

    def serves(self, timeout_s: float | None) -> None:
        """From now on tick often enough for time-outs of this length."""
        if timeout_s is not None and timeout_s < self._period_s * _TICKS_PER_TIMEOUT:
            self._period_s = max(timeout_s / _TICKS_PER_TIMEOUT, 0.001)
            self._timer.cancel()
            self._timer = self._loop.call_later(self._period_s, self._run)

    def stop(self) -> None:
        self._timer.cancel()

    def _run(self) -> None:
        self.now = self._loop.time()
        self._timer = self._loop.call_later(self._period_s, self._run)
        self._tick(self.now)
