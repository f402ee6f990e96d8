"""When an execution of a tool may start: no more at once than its concurrency, no more often than its rate, and
tenants in turn."""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from tool_runtime.types import Context, Limits

PRESENT_S = 60.0
"""How long a tenant whose calls have ended is expected back: agents call a tool, think, and call again."""
_ROUNDING_S = 1e-6


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

    def give_back(self) -> None:
        """What was taken and not used."""
        self._tokens += 1.0


@dataclass(slots=True, eq=False)
class Claim:
    """One execution that wants a place: for one tenant or, a group of calls, for several."""

    weights: dict[str, float]
    """By tenant."""
    payer: str | None = None
    """The tenant that holds a place for it. None: it has none."""
    is_late: bool = False
    """It has a place, and has run for longer than anybody waits."""
    granted: asyncio.Future[None] | None = None
    """None: it does not wait yet."""


@dataclass(slots=True)
class _Tenant:
    """One that waits for places, holds some, or is expected back."""

    weight: float = 1.0
    num_held: int = 0
    started: float = 0.0
    """Executions, each over its weight. One that comes is taken to have had as many as the one with the fewest."""
    latest: int = 0
    """Number of its latest start, over all tenants."""
    left_at: float = 0.0
    waiting: OrderedDict[Claim, None] = field(default_factory=OrderedDict)

    @property
    def rank(self) -> tuple[float, float, int]:
        """Lowest goes first."""
        return self.num_held / self.weight, self.started, self.latest


class Places:
    """The places of one tool, and which tenant gets the next one.

    Laws:
    1. A free place goes to the tenant that waits and holds the fewest, over its weight; of those to the one that
       has started the fewest, over its weight, then to the one whose latest start was first; in a tenant to the
       call that came first. So of equal tenants that wait, none gets a place while another holds fewer.
    2. No place stays free while a call waits, so a tenant that is alone may hold them all. But the last free one,
       of several, is not for a tenant that has its share already, where those that wait or hold places share them
       with one more that has held one within `PRESENT_S`.
    3. An execution that runs on after all callers have left it, as a thread that hangs does, keeps its
       tenant's place and no other's. So run at most as many again as there are places.
    4. The worst wait of a call whose tenant holds none: until as many calls have ended, or are late, as there are
       other such tenants before it, and one more. While they are fewer than the places, that is the time of one
       call, at most two `timeout_s`. It is nothing where law 2 has kept a place.
    """

    def __init__(self, num: int | None) -> None:
        """`num` None: as many as are wanted."""
        self._num = num
        self._here: dict[str, _Tenant] = {}
        """Those that wait or hold places."""
        self._away: OrderedDict[str, _Tenant] = OrderedDict()
        """Those that are expected back, the one that left first in front."""
        self._num_running = self._num_late = self._num_started = 0

    def wait(self, claim: Claim) -> None:
        for name, weight in claim.weights.items():
            there = self._here.get(name)
            if there is None:
                there = self._away.pop(name, None) or _Tenant()
                fewest = min((other.started for other in self._here.values()), default=0.0)
                there.started = max(there.started, fewest)
                self._here[name] = there
            there.weight = weight
            there.waiting.setdefault(claim)

    def next(self, now: float) -> tuple[Claim, str] | None:
        """The claim that may start now, and for which tenant. None: there is none."""
        waiting = [(there.rank, name) for name, there in self._here.items() if self._may_hold_more(there)]
        if not waiting or self._num_free <= 0:
            return None
        name = min(waiting)[1]
        there = self._here[name]
        if self._num_free == 1 and self._num != 1 and there.num_held >= self._share(there, now):
            return None
        return next(iter(there.waiting)), name

    def give(self, claim: Claim, tenant: str) -> None:
        """It starts."""
        self._forget(claim)
        self._num_running += 1
        self._num_started += 1
        there = self._here[tenant]
        there.num_held += 1
        there.started += 1 / there.weight
        there.latest = self._num_started
        claim.payer = tenant

    def late(self, claim: Claim) -> None:
        claim.is_late = True
        self._num_running -= 1
        self._num_late += 1

    def leave(self, claim: Claim, now: float) -> None:
        """It has ended, or does not wait any more."""
        self._forget(claim)
        if claim.payer is not None:
            self._here[claim.payer].num_held -= 1
            self._num_running -= not claim.is_late
            self._num_late -= claim.is_late
        for name in claim.weights:
            there = self._here.get(name)
            if there is not None and not there.num_held and not there.waiting:
                there.left_at = now
                self._away[name] = self._here.pop(name)
        self._expect_no_longer(now)

    @property
    def _num_free(self) -> float:
        if self._num is None:
            return math.inf
        return min(self._num - self._num_running, 2 * self._num - self._num_running - self._num_late)

    def _may_hold_more(self, there: _Tenant) -> bool:
        return bool(there.waiting) and (self._num is None or there.num_held < self._num)

    def _share(self, there: _Tenant, now: float) -> float:
        self._expect_no_longer(now)
        others = max((other.weight for other in self._away.values()), default=0.0)
        return (self._num or math.inf) * there.weight / (sum(t.weight for t in self._here.values()) + others)

    def _expect_no_longer(self, now: float) -> None:
        while self._away and now - next(iter(self._away.values())).left_at > PRESENT_S:
            self._away.popitem(last=False)

    def _forget(self, claim: Claim) -> None:
        for name in claim.weights:
            if (there := self._here.get(name)) is not None:
                there.waiting.pop(claim, None)


class Throttle:
    """One tool's places and rate. A call that leaves while it waits has taken nothing."""

    def __init__(self, limits: Limits, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._late_s = 2 * limits.timeout_s
        """No call waits longer for an execution: one that joins it has one `timeout_s` of its own."""
        self._is_bounded = limits.concurrency is not None or limits.rate_per_s is not None
        self._places = Places(limits.concurrency)
        self._bucket = TokenBucket(limits.rate_per_s, clock()) if limits.rate_per_s else None
        self._timer: asyncio.TimerHandle | None = None
        """For the next token."""

    def join(self, claim: Claim, caller: Context) -> None:
        """Let a claim stand for this caller, too, while it has no place."""
        if claim.payer is None:
            claim.weights[caller.tenant] = caller.weight
        if claim.payer is None and claim.granted is not None:
            self._places.wait(claim)
            self._give()

    @asynccontextmanager
    async def place(self, claim: Claim) -> AsyncIterator[None]:
        """A place for the body; entered when the tool may start."""
        if not self._is_bounded:
            yield
            return
        loop = asyncio.get_running_loop()
        claim.granted = loop.create_future()
        self._places.wait(claim)
        self._give()
        late: asyncio.TimerHandle | None = None
        try:
            await claim.granted
            late = loop.call_later(self._late_s, self._late, claim)
            yield
        finally:
            if late is not None:
                late.cancel()
            elif claim.payer is not None and self._bucket is not None:
                self._bucket.give_back()
            self._places.leave(claim, self._clock())
            self._give()

    def _late(self, claim: Claim) -> None:
        self._places.late(claim)
        self._give()

    def _token(self) -> None:
        self._timer = None
        self._give()

    def _give(self) -> None:
        """Places to all claims that may start."""
        now = self._clock()
        while (found := self._places.next(now)) is not None:
            if self._bucket is not None:
                if (wait_s := self._bucket.wait_s(now)) > _ROUNDING_S:
                    self._timer = self._timer or asyncio.get_running_loop().call_later(wait_s, self._token)
                    return
                self._bucket.take()
            claim, tenant = found
            self._places.give(claim, tenant)
            if claim.granted is not None and not claim.granted.done():
                claim.granted.set_result(None)


def claim_of(caller: Context) -> Claim:
    return Claim({caller.tenant: caller.weight})
