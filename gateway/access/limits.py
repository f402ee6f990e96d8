"""Limits of keys: their counters (sums over sliding windows, requests that are held), and what a request takes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import NoReturn, Protocol

from gateway.config.settings import KeyLimits, Price
from gateway.core.errors import Failure, Outcome, Refused
from gateway.core.fields import Json
from policies.types import Usage


@dataclass(slots=True)
class Used:
    """A sliding window as two fixed ones: all of the current one, and the unfaded part of the one before.

    Exact while use is even, and never more than twice the limit in one window. No list of events is kept.
    """

    before: float
    current: float
    into_s: float
    """Seconds that the current window has run."""
    window_s: float

    @property
    def counted(self) -> float:
        return self.current + self.before * (1 - self.into_s / self.window_s)

    @property
    def total(self) -> float:
        """The amount that a decision is based on."""
        return self.counted

    def fades_to_s(self, room: float) -> float:
        """Return the seconds until no more than `room` (>= 0) is used, if nothing is added."""
        if self.counted <= room:
            return 0.0
        if self.current <= room:
            return self.window_s * (1 - (room - self.current) / self.before) - self.into_s
        return self.window_s - self.into_s + self.window_s * (1 - room / self.current)


class Counters(Protocol):
    """The store behind limits. Every call is synchronous and reads local memory, so that reading and then counting
    is atomic in the event loop. Counters that gateways share exchange their sums beside the path of a request.

    Times are Unix seconds, so that all gateways agree where a window begins.
    """

    def used(self, name: str, window_s: float, now: float) -> Used:
        """Return what is used of a counter; nothing of a counter without any count."""
        ...

    def count(self, name: str, window_s: float, amount: float, at: float) -> None:
        """Count `amount`. A negative amount corrects an earlier count at the same `at`."""
        ...

    def held(self, name: str) -> int:
        """Return how many are held now."""
        ...

    def hold(self, name: str, change: int) -> None:
        """Change the number that is held: +1 or -1."""
        ...

    def is_full(self, name: str, limit: int) -> bool:
        """Return whether so many are held, without doubt."""
        ...

    async def confirm_hold(self, name: str, limit: int) -> bool:
        """Return whether what was held last is within the limit at all members; if not, it is given back. Call it
        right after `hold`."""
        ...

    def look(self) -> None:
        """Read the limits of all keys again, after a reload."""
        ...


@dataclass(slots=True)
class _Sums:
    index: int
    """Number of the current window, from the epoch on."""
    current: float = 0.0
    before: float = 0.0

    def roll(self, index: int) -> None:
        """Go on to a window. A clock that is set back stays in its window."""
        if index > self.index:
            self.before = self.current if index == self.index + 1 else 0.0
            self.current, self.index = 0.0, index


class LocalCounters:
    """`Counters` of one gateway process."""

    def __init__(self) -> None:
        self._sums: dict[str, _Sums] = {}
        self._held: dict[str, int] = {}

    def used(self, name: str, window_s: float, now: float) -> Used:
        sums = self._of(name, int(now // window_s))
        into_s = min(window_s, max(0.0, now - sums.index * window_s))
        return Used(sums.before, sums.current, into_s, window_s)

    def count(self, name: str, window_s: float, amount: float, at: float) -> None:
        index = int(at // window_s)
        sums = self._of(name, index)
        if index >= sums.index - 1:  # else it has faded
            if index == sums.index - 1:
                sums.before = max(0.0, sums.before + amount)
            else:
                sums.current = max(0.0, sums.current + amount)

    def held(self, name: str) -> int:
        return self._held.get(name, 0)

    def hold(self, name: str, change: int) -> None:
        held = self._held.get(name, 0) + change
        if held > 0:
            self._held[name] = held
        else:
            self._held.pop(name, None)

    def is_full(self, name: str, limit: int) -> bool:
        return self.held(name) >= limit

    async def confirm_hold(self, name: str, limit: int) -> bool:
        return True

    def look(self) -> None:
        """Does nothing: no limits are kept here."""

    def _of(self, name: str, index: int) -> _Sums:
        sums = self._sums.get(name)
        if sums is None:
            sums = self._sums[name] = _Sums(index)
        sums.roll(index)
        return sums


# ---- what each key may use, and what one request takes of that

CHARS_PER_TOKEN = 4
"""Estimate for a prompt that no engine has counted yet."""
EXPECTED_OUTPUT_TOKENS = 1_000
"""Agents ask for as much output as fits and use a fraction: reserving all of it would refuse most turns."""
FIRST_HELD_S = 5.0
"""Expected duration of a request before a request of its key has ended."""
WEIGHT_OF_LAST = 0.2
TOKENS_OF_A_PRICE = 1_000_000
ROUNDING = 1 + 1e-6
LEAST_FREE = 0.02
"""Share of a used-up limit that has to be free again at the time of `Retry-After`."""


class Quantity(StrEnum):
    """What a meter counts. The value is a part of header names, a metric label and a key of the configuration."""

    __hash__ = str.__hash__  # an enum's own is Python, and these are keys on the path

    REQUESTS = "requests"
    TOKENS = "tokens"
    CONCURRENCY = "concurrency"
    BUDGET_TOKENS = "budget_tokens"
    BUDGET_COST = "budget_cost"


BUDGETS = frozenset((Quantity.BUDGET_TOKENS, Quantity.BUDGET_COST))
ENTERING = dict.fromkeys(Quantity, 0.0) | {Quantity.REQUESTS: 1.0}
"""What a request takes before its body is read. It needs room in every meter, since it could not go on without."""


@dataclass(frozen=True, slots=True)
class Meter:
    """One quantity of one key over a sliding window."""

    name: str
    """Name of its counter: the key and the quantity."""
    quantity: Quantity
    limit: float
    window_s: float


@dataclass(frozen=True, slots=True)
class CallerLimits:
    """All limits of one key."""

    name: str
    """Name of the key."""
    meters: tuple[Meter, ...] = ()
    concurrency: int | None = None

    @staticmethod
    def of(key_id: str, limits: KeyLimits) -> CallerLimits | None:
        """Return the limits of a key; None when it has none."""
        windows = (
            (Quantity.REQUESTS, limits.requests, limits.window_s),
            (Quantity.TOKENS, limits.tokens, limits.window_s),
            (Quantity.BUDGET_TOKENS, limits.budget_tokens, limits.budget_window_s),
            (Quantity.BUDGET_COST, limits.budget_cost, limits.budget_window_s),
        )
        meters = tuple(Meter(f"{key_id}/{q}", q, limit, window_s) for q, limit, window_s in windows if limit)
        return CallerLimits(key_id, meters, limits.concurrency) if meters or limits.concurrency else None

    def budgets(self) -> CallerLimits | None:
        """Return the limits that also hold for lines of batches: no rates, because the gateway paces the lines."""
        meters = tuple(meter for meter in self.meters if meter.quantity in BUDGETS)
        return CallerLimits(self.name, meters) if meters else None


@dataclass(frozen=True, slots=True)
class Limiter:
    """Makes the allowance of each request. Holds how long requests of a key last; all else is in `counters`."""

    counters: Counters
    prices: Mapping[str, Price]
    now: Callable[[], float]
    """Unix seconds."""
    refused: Callable[[str], None]
    """Called at each refusal, with its quantity."""
    held_s: dict[str, float] = field(default_factory=dict)

    def allowance(self, limits: CallerLimits) -> Allowance:
        """Return the allowance of a new request, of which nothing is taken yet."""
        return Allowance(self, limits, self.now())

    def take_amounts(self, limits: CallerLimits, amounts: Mapping[Quantity, float], now: float) -> None:
        """Count the amounts in all meters or in none. An amount of 0 needs a meter that is not used up. Raises
        Refused."""
        for meter in limits.meters:
            if (amount := amounts.get(meter.quantity)) is None:
                continue
            used = self.counters.used(meter.name, meter.window_s, now)
            wanted = min(amount, meter.limit)  # more than that waits for an empty window
            if used.total + wanted > meter.limit * ROUNDING or (not wanted and used.total >= meter.limit):
                room = meter.limit - wanted if wanted else (1 - LEAST_FREE) * meter.limit
                self.refuse(meter.quantity, _exceeded(meter, used, wanted), used.fades_to_s(room))
        self.count_amounts(limits, amounts, now)

    def count_amounts(self, limits: CallerLimits, amounts: Mapping[Quantity, float], at: float) -> None:
        """Count the amounts, whether or not there is room."""
        for meter in limits.meters:
            if amount := amounts.get(meter.quantity):
                self.counters.count(meter.name, meter.window_s, amount, at)

    def cost(self, model: str, prompt_tokens: float, cached_tokens: float, output_tokens: float) -> float:
        """Return the cost in the unit of the prices; 0 when no price matches."""
        price = next((p for name, p in self.prices.items() if name == model or fnmatchcase(model, name)), None)
        if price is None:
            return 0.0
        cached = price.prompt if price.cached is None else price.cached
        whole = (
            (prompt_tokens - cached_tokens) * price.prompt + cached_tokens * cached + output_tokens * price.output
        )
        return whole / TOKENS_OF_A_PRICE

    def leave(self, limits: CallerLimits, began_at: float) -> None:
        """Give back the place of a request."""
        self.counters.hold(limits.name, -1)
        before_s = self.held_s.get(limits.name, FIRST_HELD_S)
        lasted_s = max(0.0, self.now() - began_at)
        self.held_s[limits.name] = before_s + WEIGHT_OF_LAST * (lasted_s - before_s)

    def refuse(self, quantity: Quantity, text: str, wait_s: float) -> NoReturn:
        self.refused(quantity.value)
        wait_s = max(1.0, wait_s)
        code = "insufficient_quota" if quantity in BUDGETS else "rate_limit_exceeded"
        text = f"{text} Try again in {math.ceil(wait_s)} s."
        failure = Failure(429, "rate_limit_error", text, code=code, retry_after_s=wait_s)
        raise Refused(Outcome.REJECTED_LIMIT, failure)


@dataclass(slots=True)
class Allowance:
    """What one request has taken: `enter` first, `reserve` next, and `settle` in any case."""

    limiter: Limiter
    limits: CallerLimits
    began_at: float
    has_place: bool = False
    reserved: dict[Quantity, float] = field(default_factory=dict)
    expected: tuple[float, float] = (0.0, 0.0)
    """Prompt and output tokens of the estimate."""
    reserved_at: float = 0.0

    def enter(self) -> None:
        """Take one request and one place, before anything is read. Raises Refused."""
        limiter, limits = self.limiter, self.limits
        if limits.concurrency is not None and limiter.counters.is_full(limits.name, limits.concurrency):
            self._refuse_place(limits.concurrency)
        limiter.take_amounts(limits, ENTERING, self.began_at)
        limiter.counters.hold(limits.name, +1)
        self.has_place = True

    async def confirm_place(self) -> None:
        """Compare the place with those at other members, right after `enter`. Raises Refused."""
        limiter, limits = self.limiter, self.limits
        if limits.concurrency is None or await limiter.counters.confirm_hold(limits.name, limits.concurrency):
            return
        self.has_place = False
        limiter.count_amounts(limits, {Quantity.REQUESTS: -1.0}, self.began_at)
        self._refuse_place(limits.concurrency)

    def _refuse_place(self, concurrency: int) -> NoReturn:
        next_in_s = self.limiter.held_s.get(self.limits.name, FIRST_HELD_S) / concurrency
        text = f"This key may have {concurrency} requests at once (limits.concurrency), and has them."
        self.limiter.refuse(Quantity.CONCURRENCY, text, next_in_s)

    def reserve(
        self,
        model: str,
        body_bytes: int,
        max_output_tokens: int | None,
        num_answers: int = 1,
        longest_tokens: int | None = None,
    ) -> None:
        """Count the amounts that a request is expected to use. Raises Refused. `max_output_tokens`: the client's
        bound on each answer; None: it sets none. `longest_tokens`: of an answer whose usage will not be seen, the
        longest that the model gives."""
        prompt_tokens = body_bytes / CHARS_PER_TOKEN
        most_tokens = longest_tokens or EXPECTED_OUTPUT_TOKENS
        output_tokens = min(most_tokens, max(1, max_output_tokens or most_tokens))
        self.expected = prompt_tokens, output_tokens * num_answers
        amounts = self._amounts(model, prompt_tokens, 0, output_tokens * num_answers)
        now = self.limiter.now()
        self.limiter.take_amounts(self.limits, amounts, now)
        self.reserved, self.reserved_at = amounts, now

    def settle(self, model: str, calls: Sequence[Usage], has_engine_worked: bool) -> None:
        """Give back the place of a request that has ended, and replace its estimate by the amounts that it used.

        `calls`: the usage of each model call, as in `Reply.charge`. Where an engine worked on the last one and
        reported no usage, the estimate stands, or what was relayed if that is more. Where none worked, it used
        nothing.
        """
        if self.has_place:
            self.has_place = False
            self.limiter.leave(self.limits, self.began_at)
        if not self.reserved:
            return
        used = dict.fromkeys(self.reserved, 0.0)
        for call in calls:
            for quantity, amount in self._used(model, call, has_engine_worked).items():
                used[quantity] += amount
        change = {quantity: used.get(quantity, 0.0) - amount for quantity, amount in self.reserved.items()}
        more = {quantity: amount for quantity, amount in change.items() if amount > 0}
        less = {quantity: amount for quantity, amount in change.items() if amount < 0}
        # Less is taken off where it was counted, which may have faded.
        self.limiter.count_amounts(self.limits, less, self.reserved_at)
        self.limiter.count_amounts(self.limits, more, self.limiter.now())
        self.reserved = {}

    def _used(self, model: str, call: Usage, has_engine_worked: bool) -> dict[Quantity, float]:
        output_tokens = call.output_tokens or 0
        if call.prompt_tokens is not None:
            return self._amounts(model, call.prompt_tokens, call.cached_tokens or 0, output_tokens)
        if not has_engine_worked:
            return {}
        prompt_tokens, expected_tokens = self.expected
        return self._amounts(model, prompt_tokens, 0, max(expected_tokens, output_tokens))

    def headers(self) -> list[tuple[str, str]]:
        """Return `x-ratelimit-*` headers of OpenAI's form, for each meter."""
        standing = standings(self.limits, self.limiter.counters, self.limiter.now())
        return [header for row in standing for header in row.headers()]

    def _amounts(self, model: str, prompt: float, cached: float, output: float) -> dict[Quantity, float]:
        amounts = {Quantity.TOKENS: prompt + output, Quantity.BUDGET_TOKENS: prompt + output}
        if any(meter.quantity is Quantity.BUDGET_COST for meter in self.limits.meters):
            amounts[Quantity.BUDGET_COST] = self.limiter.cost(model, prompt, cached, output)
        return amounts


def _exceeded(meter: Meter, used: Used, wanted: float) -> str:
    unit = meter.quantity.value.removeprefix("budget_")
    have = f"{_number(used.counted)} of {_number(meter.limit)} {unit} per {meter.window_s:g} s are used"
    if wanted and meter.quantity is not Quantity.REQUESTS:
        have += f", and this request is estimated at {_number(wanted)}"
    return f"A limit of this key is reached (limits.{meter.quantity.value}): {have}."


# ---- how much of each limit is used: `x-ratelimit-*` headers and `/v1/turngate/limits`


@dataclass(slots=True)
class Standing:
    """How much of one meter is used."""

    meter: Meter
    used: float
    resets_in_s: float
    """Seconds until nothing is used, if nothing is added."""

    def headers(self) -> Iterator[tuple[str, str]]:
        name = self.meter.quantity.value.replace("_", "-")
        yield f"x-ratelimit-limit-{name}", _number(self.meter.limit)
        yield f"x-ratelimit-remaining-{name}", _number(max(0.0, self.meter.limit - self.used))
        yield f"x-ratelimit-reset-{name}", f"{math.ceil(self.resets_in_s)}s"


def standings(limits: CallerLimits, counters: Counters, now: float) -> Iterator[Standing]:
    """Yield the standing of each meter."""
    for meter in limits.meters:
        used = counters.used(meter.name, meter.window_s, now)
        yield Standing(meter, used.counted, used.fades_to_s(0.0))


def report(limiter: Limiter, all_limits: Iterable[CallerLimits]) -> list[Json]:
    """Return one row for each limit of each key."""
    now = limiter.now()
    return [row for limits in all_limits for row in _rows(limiter, limits, now)]


def _rows(limiter: Limiter, limits: CallerLimits, now: float) -> list[Json]:
    rows: list[Json] = [
        {
            "key": limits.name,
            "limit": row.meter.quantity,
            "of": row.meter.limit,
            "used": round(row.used, 6),
            "window_s": row.meter.window_s,
            "resets_in_s": round(row.resets_in_s, 3),
        }
        for row in standings(limits, limiter.counters, now)
    ]
    if limits.concurrency is not None:
        held = limiter.counters.held(limits.name)
        rows.append({"key": limits.name, "limit": Quantity.CONCURRENCY, "of": limits.concurrency, "used": held})
    return rows


def _number(amount: float) -> str:
    """Write whole numbers as such, and money to the fraction of a cent."""
    return str(math.floor(amount)) if amount == int(amount) or amount >= 1_000 else f"{amount:.4f}"
