"""Which execution of a tool may start next: places and a rate, shared fairly between tenants."""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from tool_runtime.types import Context, Limits

PRESENT_S = 60.0
"""How long a tenant is expected back after its last call ended: agents call a tool, think, and call again."""
_ROUNDING_S = 1e-6


class TokenBucket:
    """Fills at `rate_per_s` up to one second's worth, at least one token. It starts full."""

    def __init__(self, rate_per_s: float, now: float) -> None:
        self._rate_per_s = rate_per_s
        self._capacity = max(1.0, rate_per_s)
        self._tokens = self._capacity
        self._filled_at = now

    def wait_s(self, now: float) -> float:
        """Return the time until there is a token. 0: there is one."""
        filled = (now - self._filled_at) * self._rate_per_s
        self._tokens, self._filled_at = min(self._capacity, self._tokens + filled), now
        return max(0.0, (1.0 - self._tokens) / self._rate_per_s)

    def take(self) -> None:
        """Take a token, once `wait_s` is 0."""
        self._tokens -= 1.0

    def give_back(self) -> None:
        """Return a token that was taken and not used."""
        self._tokens += 1.0


@dataclass(slots=True, eq=False)
class Claim:
    """One execution that wants a place, for one tenant, or for the several tenants of a group of calls."""

    weights: dict[str, float]
    """By tenant."""
    payer: str | None = None
    """The tenant that holds a place for it. None: it has no place."""
    is_late: bool = False
    """It has a place, and has run for longer than any call waits."""
    granted: asyncio.Future[None] | None = None
    """Set when it gets a place. None: it does not wait yet."""


@dataclass(slots=True)
class _Tenant:
    """A tenant that waits for places, holds some, or is expected back."""

    weight: float = 1.0
    num_held: int = 0
    started: float = 0.0
    """Executions, each divided by the tenant's weight. A new tenant begins with the fewest of those present."""
    latest: int = 0
    """Number of its latest start, counted over all tenants."""
    left_at: float = 0.0
    waiting: OrderedDict[Claim, None] = field(default_factory=OrderedDict)

    @property
    def rank(self) -> tuple[float, float, int]:
        """The tenant with the lowest rank gets the next place."""
        return self.num_held / self.weight, self.started, self.latest


class Places:
    """The places of one tool, and the tenant that gets the next one.

    Laws:
    1. A free place goes to the waiting tenant that holds the fewest places over its weight. Ties go to the tenant
       that has started the fewest executions over its weight, then to the one whose latest start is oldest. Within
       a tenant calls go in the order of arrival. So of equal tenants that wait, none gets a place while another
       holds fewer.
    2. No place stays free while a call waits, so a tenant that is alone may hold them all. There is one exception.
       A tenant that has its share does not get the last free place of several. Its share counts the tenants that
       wait or hold places, and one that has held one within `PRESENT_S`.
    3. An execution that runs on after all its callers have left, as a hanging thread does, keeps a place of its
       own tenant and of no other. So at most twice as many executions run as there are places.
    4. The longest wait of a call whose tenant holds no place: until as many calls have ended, or are late, as
       there are other such tenants before it, plus one. While these tenants are fewer than the places, that is the
       time of one call, at most two `timeout_s`. Where law 2 has kept a place free, the call does not wait.
    """

    def __init__(self, num: int | None) -> None:
        """`num` None: there is no limit."""
        self._num = num
        self._here: dict[str, _Tenant] = {}
        """Tenants that wait or hold places."""
        self._away: OrderedDict[str, _Tenant] = OrderedDict()
        """Tenants that are expected back. The one that left first stands first."""
        self._num_running = self._num_late = self._num_started = 0

    def enqueue(self, claim: Claim) -> None:
        for name, weight in claim.weights.items():
            there = self._here.get(name)
            if there is None:
                there = self._away.pop(name, None) or _Tenant()
                fewest = min((other.started for other in self._here.values()), default=0.0)
                there.started = max(there.started, fewest)
                self._here[name] = there
            there.weight = weight
            there.waiting.setdefault(claim)

    def next_claim(self, now: float) -> tuple[Claim, str] | None:
        """Return the claim that may start now and its tenant. None: there is none."""
        waiting = [(there.rank, name) for name, there in self._here.items() if self._may_hold_more(there)]
        if not waiting or self._num_free <= 0:
            return None
        name = min(waiting)[1]
        there = self._here[name]
        if self._num_free == 1 and self._num != 1 and there.num_held >= self._share(there, now):
            return None
        return next(iter(there.waiting)), name

    def grant(self, claim: Claim, tenant: str) -> None:
        """Give the claim a place of the tenant's."""
        self._forget(claim)
        self._num_running += 1
        self._num_started += 1
        there = self._here[tenant]
        there.num_held += 1
        there.started += 1 / there.weight
        there.latest = self._num_started
        claim.payer = tenant

    def mark_late(self, claim: Claim) -> None:
        """Note that the execution has outrun all its callers."""
        claim.is_late = True
        self._num_running -= 1
        self._num_late += 1

    def release(self, claim: Claim, now: float) -> None:
        """Take back the place of a claim that has ended, or forget one that no longer waits."""
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
    """The places and the rate of one tool. A call that leaves while it waits has taken nothing."""

    def __init__(self, limits: Limits, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._late_s = 2 * limits.timeout_s
        """No call waits longer for an execution: a call that joins it has one `timeout_s` of its own."""
        self._is_bounded = limits.concurrency is not None or limits.rate_per_s is not None
        self._places = Places(limits.concurrency)
        self._bucket = TokenBucket(limits.rate_per_s, clock()) if limits.rate_per_s else None
        self._timer: asyncio.TimerHandle | None = None
        """Fires when the next token is there."""

    def join(self, claim: Claim, caller: Context) -> None:
        """Make a claim that has no place stand for this caller, too."""
        if claim.payer is None:
            claim.weights[caller.tenant] = caller.weight
        if claim.payer is None and claim.granted is not None:
            self._places.enqueue(claim)
            self._grant()

    @asynccontextmanager
    async def place(self, claim: Claim) -> AsyncIterator[None]:
        """Hold a place for the body of a `with`, which is entered when the tool may start."""
        if not self._is_bounded:
            yield
            return
        loop = asyncio.get_running_loop()
        claim.granted = loop.create_future()
        self._places.enqueue(claim)
        self._grant()
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
            self._places.release(claim, self._clock())
            self._grant()

    def _late(self, claim: Claim) -> None:
        self._places.mark_late(claim)
        self._grant()

    def _token(self) -> None:
        self._timer = None
        self._grant()

    def _grant(self) -> None:
        """Give places to all claims that may start."""
        now = self._clock()
        while (found := self._places.next_claim(now)) is not None:
            if self._bucket is not None:
                if (wait_s := self._bucket.wait_s(now)) > _ROUNDING_S:
                    self._timer = self._timer or asyncio.get_running_loop().call_later(wait_s, self._token)
                    return
                self._bucket.take()
            claim, tenant = found
            self._places.grant(claim, tenant)
            if claim.granted is not None and not claim.granted.done():
                claim.granted.set_result(None)


def claim_of(caller: Context) -> Claim:
    return Claim({caller.tenant: caller.weight})
