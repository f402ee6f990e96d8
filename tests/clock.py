"""A clock that a test moves, and the timers of the running loop with it: no test waits for a time-out."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from tests.transport.loops import can_move_time


class Clock:
    """Monotonic time as the shipped gateway reads it, plus what the test added: timers of the loop follow it. Not
    the loop's own time, which uvloop counts in milliseconds: two arrivals in one of them would be a tie."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._loops = self._loop.time
        self._ahead_s = 0.0
        if can_move_time():
            self._loop.time = self.now  # type: ignore[method-assign]

    def now(self) -> float:
        return time.monotonic() + self._ahead_s

    def advance(self, seconds: float) -> None:
        assert can_move_time()
        self._ahead_s += seconds

    async def passes(self, seconds: float) -> None:
        """The same twice over; whatever looks at the time has looked after each."""
        for _ in range(2):
            self.advance(seconds)
            for _ in range(5):
                await asyncio.sleep(0)

    def restore(self) -> None:
        if can_move_time():
            self._loop.time = self._loops  # type: ignore[method-assign]


@pytest.fixture
async def clock() -> AsyncIterator[Clock]:
    clock = Clock()
    yield clock
    clock.restore()
