"""Limits that hold over all members: each member counts for itself, up to a ceiling that the others know.

Law: the ceilings of one counter, and the unfaded part of the window before, add up to the limit at most. So no
member waits for another one, and a burst at all members at once stays within the limit.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote, unquote

import orjson

from gateway.access.keys import Keys
from gateway.access.limits import Counters, LocalCounters, Meter, Used
from gateway.cluster.membership import BoardGone, Member, redis_call
from gateway.cluster.peer_client import PAGES, PeerClient

if TYPE_CHECKING:
    from redis.asyncio import Redis

FEW = 0.02
"""Share of a limit. Where less is free, a member that needs it gets all of it, and the others get nothing."""
INTERVAL_S = 0.15
CONFIRMED_NS = 0
"""Stands for the time of what is confirmed: before that of all that is still compared."""
CONTENDED_NS = 10**9
"""Longer than two rounds: then each member knows what the others hold."""
WITHIN_S = 1.0
HELD_MS = 2000
ACTIVE_S = 300.0
"""Seconds after the last read of a counter for which all members claim a part of it."""

Window = tuple[str, int]
"""A counter, and the number of one of its windows, from the epoch on."""


@dataclass(slots=True)
class SharedUsed(Used):
    """What all members have used, and what this member leaves to the others until the next round."""

    kept: float = 0.0

    @property
    def total(self) -> float:
        """The amount that a decision is based on."""
        return self.counted + self.kept


@dataclass(frozen=True, slots=True)
class LimitClaim:
    """What one member claims of one window."""

    used: float
    ceiling: float | None = None
    """None: the member has no ceiling yet, and may spend an equal part."""


def free_of(limit: float, faded: float, own: float, others: Mapping[str, LimitClaim], num_members: int) -> float:
    """Return the amount that no member has claimed.

    `faded`: the unfaded part of the window before. `others`: a lost member claims its own use; a living member
    that is missing here claims an equal part.
    """
    equal = max(0.0, limit - faded) / num_members
    claimed = sum(max(c.used, equal if c.ceiling is None else c.ceiling) for c in others.values())
    unheard = max(0, num_members - 1 - len(others)) * equal
    return max(0.0, limit - faded - own - claimed - unheard)


def grant(free: float, limit: float, num_members: int, is_wanted: bool) -> float:
    """Return how much of the free amount a member may spend until the next round."""
    if free < max(FEW * limit, num_members):
        return free if is_wanted else 0.0
    return free / num_members


def counters_of(keys: Keys, is_shared: bool) -> Counters:
    """Return the counters of a gateway process. `is_shared`: it is one of several members."""
    return SharedCounters(lambda: keys.all_meters) if is_shared else LocalCounters()


class SharedCounters:
    """`gateway.access.limits.Counters` of one of several members."""

    def __init__(self, meters: Callable[[], Iterable[Meter]]) -> None:
        """`meters`: returns all meters of now; a reload changes them."""
        self._meters = meters
        self.limits: dict[str, float] = {}
        self.num_members = 1
        self.others_sums: Mapping[Window, float] = {}
        """What the other members had counted at the last round."""
        self.others_held: Mapping[str, int] = {}
        """What they held then."""
        self._windows_s: dict[str, float] = {}
        self._active: set[str] = set()
        """Counters that any member has read."""
        self._sums: dict[Window, float] = {}
        self._ceilings: dict[Window, float] = {}
        self._held: dict[str, list[int]] = {}
        """Of each counter, when what is held here was taken, in nanoseconds of this machine's monotonic clock."""
        self._contended_until_ns: dict[str, int] = {}
        self.ask_earlier: Callable[[str, int], Awaitable[int]] | None = None
        """Returns how many the other members have held since before a time. None: they have other clocks."""
        self._wanted: set[str] = set()
        """Counters that were read here since the last round."""
        self.look()

    def look(self) -> None:
        """As `Counters` says. Windows of removed meters are kept: they fade."""
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
        self._wanted.add(name)
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
        return len(self._held.get(name, ())) + self.others_held.get(name, 0)

    def hold(self, name: str, change: int) -> None:
        held = self._held.setdefault(name, [])
        if change > 0:
            held.append(time.monotonic_ns())
        elif held:
            del held[0]  # any one: what counts is how many there are
        if not held:
            del self._held[name]

    def is_full(self, name: str, limit: int) -> bool:
        """What others held at the last round may be free by now: where they can be asked, it does not count."""
        return (self.held(name) if self.ask_earlier is None else len(self._held.get(name, ()))) >= limit

    async def confirm_hold(self, name: str, limit: int) -> bool:
        """Members hear of each other a few times a second, and a burst comes at once. So what would exceed this
        member's equal part, and all of it while another member exceeds its own, is compared with the others now.
        Of all that is held on this machine, what was confirmed stays, and then the earliest."""
        held = self._held[name]
        at_ns, num_before = held[-1], len(held) - 1
        is_contended = at_ns < self._contended_until_ns.get(name, 0)
        is_in_part = num_before < limit // self.num_members and self.held(name) <= limit
        if self.ask_earlier is None:
            return True
        is_confirmed = is_in_part and not is_contended
        if not is_confirmed and num_before < limit:
            is_confirmed = num_before + await self.ask_earlier(name, at_ns) < limit
        held = self._held.get(name, [])
        if at_ns in held:
            held.remove(at_ns)
            if is_confirmed:
                held.insert(0, CONFIRMED_NS)
        if not held:
            self._held.pop(name, None)
        return is_confirmed

    def num_earlier(self, name: str, at_ns: int) -> int:
        """Return how many are held here since before a time, or are confirmed. Asked by a member that exceeds its
        equal part."""
        self._contended_until_ns[name] = time.monotonic_ns() + CONTENDED_NS
        return bisect_left(self._held.get(name, ()), at_ns)

    # ---- between members

    @property
    def holding(self) -> dict[str, int]:
        return {name: len(held) for name, held in self._held.items()}

    def windows(self, now: float) -> list[Window]:
        """Return the windows that matter, for each counter the last one first. Older windows are forgotten."""
        for window in [w for w in self._sums if w[1] < self._index(w[0], now) - 1]:
            del self._sums[window]
            self._ceilings.pop(window, None)
        return [(name, self._index(name, now) - back) for name in self._active for back in (1, 0)]

    @property
    def wanted(self) -> list[str]:
        """Counters that were read here since the last round."""
        return list(self._wanted)

    def learn(self, names: Iterable[str]) -> None:
        """Count in counters that are read at other members, to which this member leaves the rest of the limit."""
        self._active.update(name for name in names if name in self._windows_s)

    def window_s(self, name: str) -> float:
        return self._windows_s[name]

    def limit_at(self, window: Window, now: float) -> float | None:
        """Return the limit of a window that is current; None: the window has passed, or has no limit now."""
        name, index = window
        return self.limits.get(name) if index == self._index(name, now) else None

    def claim(self, window: Window) -> LimitClaim:
        return LimitClaim(self._sums.get(window, 0.0), self._ceilings.get(window))

    def pop_wanted(self, name: str) -> bool:
        """Whether a counter was read here since the last call."""
        is_wanted = name in self._wanted
        self._wanted.discard(name)
        return is_wanted

    def raise_to(self, window: Window, ceiling: float) -> None:
        self._ceilings[window] = ceiling

    def hear_claims(self, claims: Mapping[str, Mapping[Window, LimitClaim]], now: float) -> None:
        """Take over what the others claim, by process, and raise the ceilings here by a part of what is free."""
        by_window = {w: {p: rows[w] for p, rows in claims.items() if w in rows} for w in self.windows(now)}
        self.others_sums = {w: sum(claim.used for claim in others.values()) for w, others in by_window.items()}
        for window, others in by_window.items():
            if (limit := self.limit_at(window, now)) is not None:
                own = self.claim(window).used
                free = free_of(limit, self.faded(window[0], now), own, others, self.num_members)
                is_wanted = self.pop_wanted(window[0])
                self.raise_to(window, own + grant(free, limit, self.num_members, is_wanted))

    def faded(self, name: str, now: float) -> float:
        """Return what is left, of all members, of the window before."""
        window_s = self._windows_s[name]
        return self._counted((name, self._index(name, now) - 1)) * (1 - now % window_s / window_s)

    def _counted(self, window: Window) -> float:
        return max(0.0, self._sums.get(window, 0.0) + self.others_sums.get(window, 0.0))

    def _index(self, name: str, now: float) -> int:
        return int(now // self._windows_s[name])


# ---- rounds: a few times a second, members exchange what they have counted, and claim what is left


class LimitTally(Protocol):
    """The place where members exchange their claims."""

    async def round(self, counters: SharedCounters, now: float) -> None:
        """Send the claims of this member and receive those of the others. Raises BoardGone."""
        ...


async def run(
    tally: LimitTally, counters: SharedCounters, keys: Keys, members: Callable[[], list[Member]]
) -> None:
    """Make rounds for ever, but none while no key is limited.

    After a failed round the counts of the others stay until they have faded, and ceilings end with their window:
    from then on each member spends an equal part.
    """
    while True:
        counters.look()
        counters.num_members = len(members())
        if keys.all_limits:
            # The exchange between members uses the same way and reports its failures.
            with suppress(BoardGone, TimeoutError, ValueError):
                async with asyncio.timeout(WITHIN_S):
                    await tally.round(counters, time.time())
        await asyncio.sleep(INTERVAL_S)


_CLAIM = """
local key, me, process, own = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[3])
local limit, faded, wanted, few = tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6] == '1', tonumber(ARGV[7])
redis.call('HSET', key, 'used:' .. process, ARGV[3])
redis.call('PEXPIRE', key, ARGV[8])
local others, spare, all = 0, {}, redis.call('HGETALL', key)
for i = 1, #all, 2 do
  if string.sub(all[i], 1, 6) == 'spare:' then spare[string.sub(all[i], 7)] = tonumber(all[i + 1])
  elseif all[i] ~= 'used:' .. process then others = others + tonumber(all[i + 1]) end
end
if not limit then return {tostring(others), ''} end
local n = #ARGV - 8
local free = limit - faded - own - others
for i = 9, #ARGV do
  if ARGV[i] ~= me then free = free - (spare[ARGV[i]] or math.max(0, limit - faded) / n) end
end
free = math.max(0, free)
local part = free / n
if free < math.max(few * limit, n) then part = wanted and free or 0 end
redis.call('HSET', key, 'spare:' .. me, tostring(part))
return {tostring(others), tostring(own + part)}
"""
"""`free_of` and `grant` in one step for all members. Returns what the others used, and the new ceiling. What a
process used stays when the process is lost; what a member may still spend does not."""


class RedisTally:
    """A `LimitTally` in Redis. Keys: `used:COUNTER:WINDOW` (of all members; outlives them), `held:ID` (of one
    member; ends with it), `counters` (those that are read, by the time of the last read)."""

    def __init__(self, redis: Redis, prefix: str, me: str, members: Callable[[], Iterable[str]]) -> None:
        self._redis: Any = redis
        self._prefix = prefix
        self._me = me
        self._process = secrets.token_hex(8)
        """Distinguishes this process from the next one with the same id, which counts from nothing."""
        self._members = members
        self._claim = self._redis.register_script(_CLAIM)

    async def round(self, counters: SharedCounters, now: float) -> None:
        members = sorted(self._members())
        windows, wanted = counters.windows(now), counters.wanted
        others = [one for one in members if one != self._me]
        async with redis_call(), self._redis.pipeline(transaction=False) as pipe:
            for window in windows:
                await self._claim([self._key(window)], self._arguments(counters, window, now, members), pipe)
            pipe.set(f"{self._prefix}:held:{self._me}", orjson.dumps(counters.holding), px=HELD_MS)
            for one in others:
                pipe.get(f"{self._prefix}:held:{one}")
            if wanted:
                pipe.zadd(f"{self._prefix}:counters", dict.fromkeys(wanted, now))
            pipe.zrangebyscore(f"{self._prefix}:counters", now - ACTIVE_S, "+inf")
            answers = await pipe.execute()
        sums: dict[Window, float] = {}
        for window, (used, ceiling) in zip(windows, answers, strict=False):
            sums[window] = float(used)
            if ceiling:
                counters.raise_to(window, float(ceiling))
        held = Counter[str]()
        for text in answers[len(windows) + 1 :][: len(others)]:
            held.update(orjson.loads(text) if text else {})
        counters.learn(name.decode() for name in answers[-1])
        counters.others_sums, counters.others_held = sums, held

    def _arguments(
        self, counters: SharedCounters, window: Window, now: float, members: Sequence[str]
    ) -> list[Any]:
        name = window[0]
        limit = counters.limit_at(window, now)
        is_wanted = window == (name, int(now // counters.window_s(name))) and counters.pop_wanted(name)
        keep_ms = int(2000 * counters.window_s(name)) + HELD_MS
        claimed = ["" if limit is None else limit, counters.faded(name, now), "1" if is_wanted else "0"]
        return [self._me, self._process, counters.claim(window).used, *claimed, FEW, keep_ms, *members]

    def _key(self, window: Window) -> str:
        return f"{self._prefix}:used:{window[0]}:{window[1]}"


class SiblingTally:
    """A `LimitTally` of workers: each asks all others. Holds what a worker that is lost had used."""

    def __init__(self, siblings: Sequence[Member], peer_client: PeerClient, counters: SharedCounters) -> None:
        self._siblings = siblings
        self._peer_client = peer_client
        self._counters = counters
        self._process = secrets.token_hex(8)
        """Distinguishes this process from the next one in its place, which counts from nothing."""
        self._claims: dict[str, dict[Window, LimitClaim]] = {}
        """By process."""
        counters.ask_earlier = self._ask_earlier

    @property
    def pages(self) -> Mapping[str, Callable[[str], bytes]]:
        return {"counts": lambda _: self._page(), "earlier": self._earlier_page}

    async def _ask_earlier(self, name: str, at_ns: int) -> int:
        path = f"{PAGES}earlier/{at_ns}/{quote(name, safe='')}"
        found = await asyncio.gather(*(self._peer_client.ask(one, path) for one in self._siblings))
        return sum(int(text) for status, text in found if status == 200)

    def _earlier_page(self, rest: str) -> bytes:
        at_ns, _, name = rest.partition("/")
        return str(self._counters.num_earlier(unquote(name), int(at_ns))).encode()

    async def round(self, counters: SharedCounters, now: float) -> None:
        found = await asyncio.gather(*(self._peer_client.ask(one, PAGES + "counts") for one in self._siblings))
        held, living = Counter[str](), set()
        for status, text in found:
            if status == 200:
                process, rows, its_held = orjson.loads(text)
                living.add(process)
                self._claims[process] = {
                    (name, index): LimitClaim(used, ceiling) for name, index, used, ceiling in rows
                }
                counters.learn(name for name, *_ in rows)
                held.update(its_held)
        self._forget(living, counters.windows(now))
        counters.others_held = held
        counters.hear_claims(self._claims, now)

    def _forget(self, living: set[str], windows: Iterable[Window]) -> None:
        """Forget the ceilings of lost processes, and each of these processes with its last window."""
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
