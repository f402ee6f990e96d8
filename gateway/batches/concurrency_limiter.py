"""How many lines may be asked at once, from what the fleet looks like: less as soon as somebody waits."""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from policies.view import FleetView

FREE_SHARE = 0.125
"""Of all slots: left to turns that come while lines run."""
FULL_SHARE = 0.9
"""Of a replica's ceiling: above it no line is added, so that an arriving session finds room."""
MOST_MORE = 16
"""Lines by which it grows at once, at most: that many may find out together that there is no room."""


@dataclass(frozen=True, slots=True)
class Load:
    """The fleet at one moment."""

    slots: int
    """Of healthy replicas whose cache has room."""
    used: int
    """Turns that hold one there, lines among them."""
    waiting: int
    """Turns at the gate, lines among them."""

    @staticmethod
    def of(view: FleetView) -> Load:
        roomy = [
            replica
            for replica in view.replicas
            if replica.is_healthy and replica.residency_tokens < FULL_SHARE * (replica.ceiling_tokens or math.inf)
        ]
        return Load(
            slots=sum(replica.assumed_slots for replica in roomy),
            used=sum(replica.slots_used for replica in roomy),
            waiting=sum(view.waiting.values()),
        )


class Pace:
    """Grows ever faster while nobody waits, and lets lines drain while somebody does.

    Law: never above `most`, and never below 1, so that lines trickle however busy the fleet is.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._step = 1
        self.size = 1

    def saw(self, load: Load, in_flight: int) -> None:
        """`in_flight`: lines that are being asked. Told a few times per second."""
        free = math.floor(load.slots * (1 - FREE_SHARE)) - max(load.used, min(in_flight, load.slots))
        if load.waiting or free < 0:
            self._step = 1
            self.size = max(1, min(self.size, in_flight) // 2)
        elif in_flight >= self.size:
            self.size = min(self._most, self.size + min(free, self._step))
            self._step = min(MOST_MORE, 2 * self._step)


# ---- lets lines through one by one, as many at once as the pace allows; tenants take turns

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
