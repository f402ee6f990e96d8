"""Lets lines through one by one, as many at once as the pace allows; tenants take turns."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from gateway.batches.pace import Load, Pace

LOOK_S = 0.1
"""Time between two looks at the fleet while lines are asked."""
STARVED_S = 60.0
"""When no line has come back for this long, one is sent as an ordinary turn, which no class overtakes."""
LOW, ORDINARY = -10, 0
"""Urgencies of turns; the low one is also the last in every engine's own queue (policies.hints)."""


class Window:
    """Start it, ask lines inside of `place`, stop it."""

    def __init__(self, pace: Pace, load: Callable[[], Load], clock: Callable[[], float]) -> None:
        self._pace = pace
        self._load = load
        self._clock = clock
        self._queues: OrderedDict[str, deque[asyncio.Future[int]]] = OrderedDict()
        """Lines that wait, by tenant; the first tenant is next."""
        self._moved_at = clock()
        """When a line was last let in as an ordinary turn, came back, or found the window empty."""
        self._looking: asyncio.Task[None] | None = None
        self._is_busy = asyncio.Event()
        self.in_flight = 0

    @property
    def size(self) -> int:
        return self._pace.size

    def start(self) -> None:
        self._looking = asyncio.create_task(self._look())

    async def stop(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait((self._looking,))

    @asynccontextmanager
    async def place(self, tenant: str) -> AsyncIterator[int]:
        """Inside of it one line may be asked, with the urgency that it gives."""
        entered: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._queues.setdefault(tenant, deque()).append(entered)
        self._is_busy.set()
        self._let_in()
        try:
            yield await entered
        finally:
            if entered.done() and not entered.cancelled():
                self.in_flight -= 1
                self._moved_at = self._clock()
            self._let_in()

    async def _look(self) -> None:
        while True:
            if not self.in_flight and not self._queues:
                self._is_busy.clear()
                await self._is_busy.wait()
            self._pace.saw(self._load(), self.in_flight)
            self._let_in()
            await asyncio.sleep(LOOK_S)

    def _let_in(self) -> None:
        if self.in_flight == 0:
            self._moved_at = self._clock()
        while self.in_flight < self._pace.size and self._let_one_in(LOW):
            pass
        if self._clock() - self._moved_at >= STARVED_S and self._let_one_in(ORDINARY):
            self._moved_at = self._clock()

    def _let_one_in(self, urgency: int) -> bool:
        """The next tenant's oldest line; False when none waits."""
        while self._queues:
            tenant, queue = next(iter(self._queues.items()))
            entered = queue.popleft()
            self._queues.move_to_end(tenant)
            if not queue:
                del self._queues[tenant]
            if not entered.done():  # else its line was cancelled
                entered.set_result(urgency)
                self.in_flight += 1
                return True
        return False
