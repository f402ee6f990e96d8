"""Limits that hold over all members: each counts for itself up to a ceiling that the others know.

Law: the ceilings of one counter and what has not faded of the window before add up to the limit at most. So no
member waits for another one, and a burst at all of them at once is counted once.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import orjson

from gateway.access.counters import Counters, LocalCounters, Used
from gateway.access.keys import Keys
from gateway.access.limits import Meter
from gateway.cluster.membership import BoardGone, Member, asking
from gateway.cluster.peer_client import PAGES, Hops

if TYPE_CHECKING:
    from redis.asyncio import Redis


FEW = 0.02
"""Of a limit: where less is free, whoever needs it gets all of it, and who does not lets go of it."""

Window = tuple[str, int]
"""A counter, and the number of one of its windows since the epoch."""


@dataclass(slots=True)
class SharedUsed(Used):
    """What all have used, and what this member leaves to the others until they have talked again."""

    kept: float = 0.0

    @property
    def total(self) -> float:
        """What a decision is made on."""
        return self.counted + self.kept


@dataclass(frozen=True, slots=True)
class LimitClaim:
    """What one member says of one window."""

    used: float
    ceiling: float | None = None
    """None: it has none yet, and may spend an equal part."""


@dataclass(slots=True)
class HeardCounts:
    """What the other members had counted at the last round."""

    sums: Mapping[Window, float] = field(default_factory=dict)
    held: Mapping[str, int] = field(default_factory=dict)


def free_of(limit: float, faded: float, own: float, others: Mapping[str, LimitClaim], num_members: int) -> float:
    """What nobody has claimed. `faded`: what is left of the window before. `others`: who is gone claims what it
    used; who is not in it and lives, an equal part."""
    equal = max(0.0, limit - faded) / num_members
    claimed = sum(max(c.used, equal if c.ceiling is None else c.ceiling) for c in others.values())
    unheard = max(0, num_members - 1 - len(others)) * equal
    return max(0.0, limit - faded - own - claimed - unheard)


def grant(free: float, limit: float, num_members: int, is_wanted: bool) -> float:
    """What a member may spend of it until the next round."""
    if free < max(FEW * limit, num_members):
        return free if is_wanted else 0.0
    return free / num_members


def counters_of(keys: Keys, is_shared: bool) -> Counters:
    """Of a gateway process; `is_shared`: it is one of several members."""
    return SharedCounters(lambda: keys.all_meters) if is_shared else LocalCounters()


class SharedCounters:
    """`gateway.access.counters.Counters` of one of several members."""

    def __init__(self, meters: Callable[[], Iterable[Meter]]) -> None:
        """`meters`: all that there are now; a reload changes them."""
        self._meters = meters
        self.limits: dict[str, float] = {}
        self.heard = HeardCounts()
        self.num_members = 1
        self._windows_s: dict[str, float] = {}
        self._active: set[str] = set()
        """Counters that any member has looked at."""
        self._sums: dict[Window, float] = {}
        self._ceilings: dict[Window, float] = {}
        self._held: Counter[str] = Counter()
        self._asked: set[str] = set()
        """Counters that were looked at since the last round."""
        self.look()

    def look(self) -> None:
        """As `Counters` says. Windows of what is gone are kept: they fade."""
        meters = list(self._meters())
        self.limits = {meter.name: meter.limit for meter in meters}
        self._windows_s |= {meter.name: meter.window_s for meter in meters}

    # ---- Counters

    def used(self, name: str, window_s: float, now: float) -> SharedUsed:
        index = int(now // window_s)
        before, current = (self._counted((name, index - 1)), self._counted((name, index)))
        used = SharedUsed(before, current, now - index * window_s, window_s)
        if name not in self._windows_s:
            self.look()
        self._asked.add(name)
        self._active.add(name)
        if (limit := self.limits.get(name)) is not None:
            equal = max(0.0, limit - used.before * (1 - used.into_s / window_s)) / self.num_members
            left = self._ceilings.get((name, index), equal) - self._sums.get((name, index), 0.0)
            used.kept = max(0.0, limit - used.counted - max(0.0, left))
        return used

    def count(self, name: str, window_s: float, amount: float, at: float) -> None:
        window = name, int(at // window_s)
        self._active.add(name)
        self._sums[window] = self._sums.get(window, 0.0) + amount

    def held(self, name: str) -> int:
        return self._held[name] + self.heard.held.get(name, 0)

    def hold(self, name: str, change: int) -> None:
        self._held[name] += change
        if not self._held[name]:
            del self._held[name]

    # ---- between members

    @property
    def holding(self) -> dict[str, int]:
        return dict(self._held)

    def windows(self, now: float) -> list[Window]:
        """Those that matter, of each counter the last one first; what is older is forgotten."""
        for window in [w for w in self._sums if w[1] < self._index(w[0], now) - 1]:
            del self._sums[window]
            self._ceilings.pop(window, None)
        return [(name, self._index(name, now) - back) for name in self._active for back in (1, 0)]

    @property
    def active(self) -> list[str]:
        """Counters that are looked at here."""
        return list(self._asked)

    def learn(self, names: Iterable[str]) -> None:
        """Counters that are looked at elsewhere, of which this member leaves the rest to the others."""
        self._active.update(name for name in names if name in self._windows_s)

    def window_s(self, name: str) -> float:
        return self._windows_s[name]

    def claim(self, window: Window) -> LimitClaim:
        return LimitClaim(self._sums.get(window, 0.0), self._ceilings.get(window))

    def is_wanted(self, name: str) -> bool:
        """Whether anybody asked since this was asked last."""
        is_wanted = name in self._asked
        self._asked.discard(name)
        return is_wanted

    def raise_to(self, window: Window, ceiling: float) -> None:
        self._ceilings[window] = ceiling

    def faded(self, name: str, now: float) -> float:
        """What is left, of all members, of the window before."""
        window_s = self._windows_s[name]
        return self._counted((name, self._index(name, now) - 1)) * (1 - now % window_s / window_s)

    def _counted(self, window: Window) -> float:
        return max(0.0, self._sums.get(window, 0.0) + self.heard.sums.get(window, 0.0))

    def _index(self, name: str, now: float) -> int:
        return int(now // self._windows_s[name])


# --- A few times a second: members tell each other what they have counted towards limits, and claim what is left.

INTERVAL_S = 0.15
WITHIN_S = 1.0
HELD_MS = 2000
ACTIVE_S = 300.0
"""For so long after anybody looked at a counter all members say what they want of it."""
_CLAIM = """
local key, me, process, own = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[3])
local limit, faded, wanted, few = tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6] == '1', tonumber(ARGV[7])
redis.call('HSET', key, 'used:' .. process, ARGV[3])
redis.call('PEXPIRE', key, ARGV[8])
local theirs, spare, all = 0, {}, redis.call('HGETALL', key)
for i = 1, #all, 2 do
  if string.sub(all[i], 1, 6) == 'spare:' then spare[string.sub(all[i], 7)] = tonumber(all[i + 1])
  elseif all[i] ~= 'used:' .. process then theirs = theirs + tonumber(all[i + 1]) end
end
if not limit then return {tostring(theirs), ''} end
local n = #ARGV - 8
local free = limit - faded - own - theirs
for i = 9, #ARGV do
  if ARGV[i] ~= me then free = free - (spare[ARGV[i]] or math.max(0, limit - faded) / n) end
end
free = math.max(0, free)
local part = free / n
if free < math.max(few * limit, n) then part = wanted and free or 0 end
redis.call('HSET', key, 'spare:' .. me, tostring(part))
return {tostring(theirs), tostring(own + part)}
"""
"""`free_of` and `grant` of `counters`, in one step for all members: what others used, and the ceiling. What a
process used stays when it is gone; what a member may still spend does not."""


class LimitTally(Protocol):
    """Where claims meet."""

    async def round(self, counters: SharedCounters, now: float) -> None:
        """Tell and hear. Raises BoardGone."""
        ...


async def run(
    tally: LimitTally, counters: SharedCounters, keys: Keys, members: Callable[[], list[Member]]
) -> None:
    """For ever; nobody is asked while no key is limited. Where a round fails, what was heard stays until it has
    faded, and ceilings end with their window: from then on each member spends an equal part."""
    while True:
        counters.look()
        counters.num_members = len(members())
        if keys.all_limits:
            with suppress(BoardGone, TimeoutError, ValueError):  # the exchange, which uses the same way, says so
                async with asyncio.timeout(WITHIN_S):
                    await tally.round(counters, time.time())
        await asyncio.sleep(INTERVAL_S)


class RedisTally:
    """Keys: `used:COUNTER:WINDOW` (of all members, and outlives them), `held:ID` (one's, and does not), `counters`
    (those that are looked at, by when)."""

    def __init__(self, redis: Redis, prefix: str, me: str, members: Callable[[], Iterable[str]]) -> None:
        self._redis: Any = redis
        self._prefix = prefix
        self._me = me
        self._process = secrets.token_hex(8)
        """The next one in its place counts from nothing."""
        self._members = members
        self._claim = self._redis.register_script(_CLAIM)

    async def round(self, counters: SharedCounters, now: float) -> None:
        members = sorted(self._members())
        windows, active = counters.windows(now), counters.active
        others = [one for one in members if one != self._me]
        async with asking(), self._redis.pipeline(transaction=False) as pipe:
            for window in windows:
                await self._claim([self._key(window)], self._told(counters, window, now, members), pipe)
            pipe.set(f"{self._prefix}:held:{self._me}", orjson.dumps(counters.holding), px=HELD_MS)
            for one in others:
                pipe.get(f"{self._prefix}:held:{one}")
            if active:
                pipe.zadd(f"{self._prefix}:counters", dict.fromkeys(active, now))
            pipe.zrangebyscore(f"{self._prefix}:counters", now - ACTIVE_S, "+inf")
            answers = await pipe.execute()
        sums: dict[Window, float] = {}
        for window, (theirs, ceiling) in zip(windows, answers, strict=False):
            sums[window] = float(theirs)
            if ceiling:
                counters.raise_to(window, float(ceiling))
        held = Counter[str]()
        for text in answers[len(windows) + 1 :][: len(others)]:
            held.update(orjson.loads(text) if text else {})
        counters.learn(name.decode() for name in answers[-1])
        counters.heard = HeardCounts(sums, held)

    def _told(self, counters: SharedCounters, window: Window, now: float, members: Sequence[str]) -> list[Any]:
        name, index = window
        window_s = counters.window_s(name)
        is_current = index == int(now // window_s)
        limit = counters.limits.get(name, "") if is_current else ""
        wanted = "1" if is_current and counters.is_wanted(name) else "0"
        faded, keep_ms = counters.faded(name, now), int(2000 * window_s) + HELD_MS
        used = counters.claim(window).used
        return [self._me, self._process, used, limit, faded, wanted, FEW, keep_ms, *members]

    def _key(self, window: Window) -> str:
        return f"{self._prefix}:used:{window[0]}:{window[1]}"


class SiblingTally:
    """Each worker asks the others, and remembers what one that is gone had used."""

    def __init__(self, siblings: Sequence[Member], hops: Hops, counters: SharedCounters) -> None:
        self._siblings = siblings
        self._hops = hops
        self._counters = counters
        self._process = secrets.token_hex(8)
        """The next one in its place counts from nothing."""
        self._claims: dict[str, dict[Window, LimitClaim]] = {}
        """By process."""

    @property
    def pages(self) -> Mapping[str, Callable[[str], bytes]]:
        return {"counts": lambda _: self._page()}

    async def round(self, counters: SharedCounters, now: float) -> None:
        found = await asyncio.gather(*(self._hops.ask(one, PAGES + "counts") for one in self._siblings))
        held, living = Counter[str](), set()
        for status, text in found:
            if status == 200:
                process, rows, theirs = orjson.loads(text)
                living.add(process)
                self._claims[process] = {
                    (name, index): LimitClaim(used, ceiling) for name, index, used, ceiling in rows
                }
                counters.learn(name for name, *_ in rows)
                held.update(theirs)
        windows, sums = counters.windows(now), Counter[Window]()
        self._forget(living, windows)
        for window in windows:
            theirs = {one: claims[window] for one, claims in self._claims.items() if window in claims}
            sums[window] = sum(claim.used for claim in theirs.values())
        counters.heard = HeardCounts(sums, held)
        for name, index in windows:
            limit = counters.limits.get(name)
            if limit is not None and index == int(now // counters.window_s(name)):
                window = name, index
                theirs = {one: claims[window] for one, claims in self._claims.items() if window in claims}
                own = counters.claim(window).used
                free = free_of(limit, counters.faded(name, now), own, theirs, counters.num_members)
                wanted = counters.is_wanted(name)
                counters.raise_to(window, own + grant(free, limit, counters.num_members, wanted))

    def _forget(self, living: set[str], windows: Iterable[Window]) -> None:
        """Ceilings of those who are gone, and they themselves with their last window."""
        kept = set(windows)
        for process in self._claims.keys() - living:
            claims = {w: LimitClaim(c.used, c.used) for w, c in self._claims[process].items() if w in kept}
            self._claims[process] = claims
            if not claims:
                del self._claims[process]

    def _page(self) -> bytes:
        counters = self._counters
        claims = [(window, counters.claim(window)) for window in counters.windows(time.time())]
        rows = [[name, index, claim.used, claim.ceiling] for (name, index), claim in claims]
        return orjson.dumps([self._process, rows, counters.holding])
