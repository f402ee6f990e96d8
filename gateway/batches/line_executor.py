"""Sends lines through the gateway's own path as low-priority turns, as many at once as the fleet has room for."""

from __future__ import annotations

import asyncio
import math
import random
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

from gateway.access.keys import Caller, Keys
from gateway.batches.objects import Batch, Line
from gateway.core.transport import Handler, HeaderList
from gateway.request.inprocess import InProcessResponder, again_in_s, ask
from policies.fleet import FleetView

TENANT, URGENCY, KEY = "x-turngate-tenant", "x-turngate-urgency", "x-turngate-key"
LOW, ORDINARY = -10, 0
"""Priority classes of lines. The low one is also the last in every engine's own queue (policies.hints)."""


class LineKeys(Keys):
    """Reads the caller from the headers of a request. Only requests of the gateway itself reach it.

    Models and budgets are those of the key that created the batch, while a key of that name exists.
    """

    def __init__(self, keys: Keys) -> None:
        super().__init__({})
        self._keys = keys

    def at_once(self, headers: Mapping[str, str]) -> Caller:
        tenant = headers[TENANT]
        salt = self._keys.salt_of(tenant)
        caller = Caller(tenant, may_prioritise=False, priority_class=int(headers[URGENCY]), cache_salt=salt)
        created_by = self._keys.named(headers[KEY])
        if created_by is None:
            return caller
        budgets = created_by.limits.budgets() if created_by.limits is not None else None
        return replace(caller, id=created_by.id, models=created_by.models, limits=budgets)


@dataclass(frozen=True, slots=True)
class LineExecutor:
    """Gets one answer for a line, over as many attempts as that takes."""

    path: Handler
    """The gateway's own, with LineKeys."""
    limiter: ConcurrencyLimiter
    attempts: int
    count_retry: Callable[[], None]
    """Called for each attempt after the first."""
    chance: Callable[[], float] = field(default=random.random)

    async def answer(
        self, batch: Batch, line: Line, url: str, body: bytes, more: HeaderList
    ) -> InProcessResponder:
        """Return the answer that stands. Holds a place during each attempt only. Ends with its task."""
        num_failures = 0
        while True:
            async with self.limiter.place(batch.tenant) as priority_class:
                headers = [
                    (TENANT, batch.tenant),
                    (URGENCY, str(priority_class)),
                    (KEY, batch.key_id),
                    ("x-turngate-session", f"{batch.id}/{line.number}"),
                    ("content-type", "application/json"),
                    *more,
                ]
                reply = await ask(self.path, url, headers, body)
            num_failures += 1
            wait_s = again_in_s(reply.status, reply.headers, num_failures, self.attempts, self.chance())
            if wait_s is None:
                return reply
            self.count_retry()
            await asyncio.sleep(wait_s)


# ---- the number of lines in flight: it grows while the fleet has room, and falls as soon as a turn waits

FREE_SHARE = 0.125
"""Share of all slots that is left to turns which arrive while lines run."""
FULL_SHARE = 0.9
"""Share of a replica's ceiling. Above it no line is added, so that an arriving session finds room."""
MOST_MORE = 16
"""Largest step of growth. So many lines may find out together that there is no room."""


@dataclass(frozen=True, slots=True)
class Load:
    """The fleet at one moment."""

    slots: int
    """Slots of healthy replicas whose cache has room."""
    used: int
    """Turns that hold one of these slots, lines among them."""
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
    """The number of lines that may be in flight. It grows by doubling steps, and halves when a turn waits.

    Law: it is never above `most`, and never below 1, so that lines trickle however busy the fleet is.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._step = 1
        self.size = 1

    def saw(self, load: Load, in_flight: int) -> None:
        """Adapt to a load, a few times per second. `in_flight` counts lines."""
        free = math.floor(load.slots * (1 - FREE_SHARE)) - max(load.used, min(in_flight, load.slots))
        if load.waiting or free < 0:
            self._step = 1
            self.size = max(1, min(self.size, in_flight) // 2)
        elif in_flight >= self.size:
            self.size = min(self._most, self.size + min(free, self._step))
            self._step = min(MOST_MORE, 2 * self._step)


LOOK_S = 0.1
"""Time between two looks at the fleet while lines are in flight."""
STARVED_S = 60.0
"""When no line has come back for this long, one is sent as an ordinary turn, which no class overtakes."""


class ConcurrencyLimiter:
    """Admits lines one by one, as many at once as the pace allows. Tenants take turns.

    Call `start`, send each line inside `place`, then call `stop`.
    """

    def __init__(self, pace: Pace, load: Callable[[], Load], clock: Callable[[], float]) -> None:
        self._pace = pace
        self._load = load
        self._clock = clock
        self._queues: OrderedDict[str, deque[asyncio.Future[int]]] = OrderedDict()
        """Waiting lines by tenant. The first tenant is next."""
        self._moved_at = clock()
        """When a line last was admitted as an ordinary turn, came back, or found no other in flight."""
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
        """Wait for a place in which one line may be sent, and yield the priority class of that line."""
        admitted: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._queues.setdefault(tenant, deque()).append(admitted)
        self._is_busy.set()
        self._admit()
        try:
            yield await admitted
        finally:
            if admitted.done() and not admitted.cancelled():
                self.in_flight -= 1
                self._moved_at = self._clock()
            self._admit()

    async def _look(self) -> None:
        while True:
            if not self.in_flight and not self._queues:
                self._is_busy.clear()
                await self._is_busy.wait()
            self._pace.saw(self._load(), self.in_flight)
            self._admit()
            await asyncio.sleep(LOOK_S)

    def _admit(self) -> None:
        if self.in_flight == 0:
            self._moved_at = self._clock()
        while self.in_flight < self._pace.size and self._admit_one(LOW):
            pass
        if self._clock() - self._moved_at >= STARVED_S and self._admit_one(ORDINARY):
            self._moved_at = self._clock()

    def _admit_one(self, priority_class: int) -> bool:
        """Admit the oldest line of the next tenant. False: none waits."""
        while self._queues:
            tenant, queue = next(iter(self._queues.items()))
            admitted = queue.popleft()
            self._queues.move_to_end(tenant)
            if not queue:
                del self._queues[tenant]
            if not admitted.done():  # else its line was cancelled
                admitted.set_result(priority_class)
                self.in_flight += 1
                return True
        return False
