"""What one request takes of its key's limits: a request and a place at once, tokens by estimate, then as used."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import NoReturn

from gateway.access.counters import Counters, Used
from gateway.access.meters import BUDGETS, CallerLimits, Meter, Quantity
from gateway.config.settings import Price
from gateway.core import fields
from gateway.core.errors import Failure, Outcome, Refused
from gateway.exchange import Exchange, whole_usage

CHARS_PER_TOKEN = 4
"""Of a prompt that no engine has counted yet."""
EXPECTED_OUTPUT_TOKENS = 1_000
"""Agents ask for as much output as fits and use a fraction: reserving all of it would refuse most turns."""
FIRST_HELD_S = 5.0
"""How long a request is taken to stay, before one of its key has ended."""
WEIGHT_OF_LAST = 0.2
TOKENS_OF_A_PRICE = 1_000_000
ROUNDING = 1 + 1e-6
LEAST_FREE = 0.02
"""Share of a limit that is to be free before a client that found nothing left is told to come again."""

ENTERING = dict.fromkeys(Quantity, 0.0) | {Quantity.REQUESTS: 1.0}
"""What a request takes before it is read; it does not come in where it could not go on."""


@dataclass(frozen=True, slots=True)
class Limiter:
    """Gives each request its allowance. It remembers how long those of a key last; the rest is in `counters`."""

    counters: Counters
    prices: Mapping[str, Price]
    now: Callable[[], float]
    """Unix seconds."""
    refused: Callable[[str], None]
    """Told of each refusal, with its quantity."""
    held_s: dict[str, float] = field(default_factory=dict)

    def allowance(self, terms: CallerLimits) -> Allowance:
        """Of a new request; nothing is taken yet."""
        return Allowance(self, terms, self.now())

    def take(self, terms: CallerLimits, amounts: Mapping[Quantity, float], now: float) -> None:
        """Adds the amounts to all meters, or to none; an amount of 0 wants a meter that is not used up. Raises
        Refused."""
        for meter in terms.meters:
            if (amount := amounts.get(meter.quantity)) is None:
                continue
            used = self.counters.used(meter.name, meter.window_s, now)
            wanted = min(amount, meter.limit)  # more than that waits for an empty window
            if used.total + wanted > meter.limit * ROUNDING or (not wanted and used.total >= meter.limit):
                room = meter.limit - wanted if wanted else (1 - LEAST_FREE) * meter.limit
                self.refuse(meter.quantity, _exceeded(meter, used, wanted), used.fades_to_s(room))
        self.add(terms, amounts, now)

    def add(self, terms: CallerLimits, amounts: Mapping[Quantity, float], at: float) -> None:
        """Counts without asking."""
        for meter in terms.meters:
            if amount := amounts.get(meter.quantity):
                self.counters.add(meter.name, meter.window_s, amount, at)

    def cost(self, model: str, prompt_tokens: float, cached_tokens: float, output_tokens: float) -> float:
        """In the unit of the prices; 0 where none matches."""
        price = next((p for name, p in self.prices.items() if name == model or fnmatchcase(model, name)), None)
        if price is None:
            return 0.0
        cached = price.prompt if price.cached is None else price.cached
        whole = (
            (prompt_tokens - cached_tokens) * price.prompt + cached_tokens * cached + output_tokens * price.output
        )
        return whole / TOKENS_OF_A_PRICE

    def leave(self, terms: CallerLimits, began_at: float) -> None:
        """Gives a place back."""
        self.counters.hold(terms.name, -1)
        before_s = self.held_s.get(terms.name, FIRST_HELD_S)
        lasted_s = max(0.0, self.now() - began_at)
        self.held_s[terms.name] = before_s + WEIGHT_OF_LAST * (lasted_s - before_s)

    def refuse(self, quantity: Quantity, text: str, wait_s: float) -> NoReturn:
        self.refused(quantity.value)
        wait_s = max(1.0, wait_s)
        code = "insufficient_quota" if quantity in BUDGETS else "rate_limit_exceeded"
        text = f"{text} Try again in {math.ceil(wait_s)} s."
        failure = Failure(429, "rate_limit_error", text, code=code, retry_after_s=wait_s)
        raise Refused(Outcome.REJECTED_LIMIT, failure)


@dataclass(slots=True)
class Allowance:
    """Of one request: `enter`, `reserve`, and whatever came of them, `settle`."""

    limiter: Limiter
    terms: CallerLimits
    began_at: float
    has_place: bool = False
    reserved: dict[Quantity, float] = field(default_factory=dict)
    reserved_at: float = 0.0

    def enter(self) -> None:
        """Takes one request and one place, before anything is read. Raises Refused."""
        limiter, terms = self.limiter, self.terms
        if terms.concurrency is not None and limiter.counters.held(terms.name) >= terms.concurrency:
            next_in_s = limiter.held_s.get(terms.name, FIRST_HELD_S) / terms.concurrency
            text = f"This key may have {terms.concurrency} requests at once (limits.concurrency), and has them."
            limiter.refuse(Quantity.CONCURRENCY, text, next_in_s)
        limiter.take(terms, ENTERING, self.began_at)
        limiter.counters.hold(terms.name, +1)
        self.has_place = True

    def reserve(self, exchange: Exchange) -> None:
        """Counts what a request is expected to use. Raises Refused."""
        prompt_tokens = len(exchange.raw) / CHARS_PER_TOKEN
        key = exchange.dialect.max_tokens_key(exchange.body)
        asked_tokens = fields.integer(exchange.body, key) if key else None
        output_tokens = min(EXPECTED_OUTPUT_TOKENS, max(1, asked_tokens or EXPECTED_OUTPUT_TOKENS))
        amounts = self._amounts(exchange.engine_model, prompt_tokens, 0, output_tokens)
        now = self.limiter.now()
        self.limiter.take(self.terms, amounts, now)
        self.reserved, self.reserved_at = amounts, now

    def settle(self, exchange: Exchange) -> None:
        """The request is over: gives its place back, and counts what it used instead of the estimate.

        The estimate stands where an engine worked and did not say; otherwise nothing was used.
        """
        if self.has_place:
            self.has_place = False
            self.limiter.leave(self.terms, self.began_at)
        if not self.reserved:
            return
        usage = whole_usage(exchange)
        if usage.prompt_tokens is not None:
            counted = usage.prompt_tokens, usage.cached_tokens or 0, usage.output_tokens or 0
            used = self._amounts(exchange.engine_model, *counted)
        else:
            used = self.reserved if _has_worked(exchange) else {}
        change = {quantity: used.get(quantity, 0.0) - amount for quantity, amount in self.reserved.items()}
        more = {quantity: amount for quantity, amount in change.items() if amount > 0}
        less = {quantity: amount for quantity, amount in change.items() if amount < 0}
        self.limiter.add(self.terms, less, self.reserved_at)  # where it was counted, which may have faded
        self.limiter.add(self.terms, more, self.limiter.now())
        self.reserved = {}

    def headers(self) -> list[tuple[str, str]]:
        """`x-ratelimit-*` of OpenAI's form, for each meter."""
        return [header for row in self.standing() for header in row.headers()]

    def standing(self) -> Iterator[Standing]:
        """Each meter as it is now."""
        return standing(self.terms, self.limiter.counters, self.limiter.now())

    def _amounts(self, model: str, prompt: float, cached: float, output: float) -> dict[Quantity, float]:
        amounts = {Quantity.TOKENS: prompt + output, Quantity.BUDGET_TOKENS: prompt + output}
        if any(meter.quantity is Quantity.BUDGET_COST for meter in self.terms.meters):
            amounts[Quantity.BUDGET_COST] = self.limiter.cost(model, prompt, cached, output)
        return amounts


@dataclass(slots=True)
class Standing:
    """How one meter stands."""

    meter: Meter
    used: float
    resets_in_s: float
    """Until nothing is used, if nothing is added."""

    def headers(self) -> Iterator[tuple[str, str]]:
        name = self.meter.quantity.value.replace("_", "-")
        yield f"x-ratelimit-limit-{name}", _number(self.meter.limit)
        yield f"x-ratelimit-remaining-{name}", _number(max(0.0, self.meter.limit - self.used))
        yield f"x-ratelimit-reset-{name}", f"{math.ceil(self.resets_in_s)}s"


def standing(terms: CallerLimits, counters: Counters, now: float) -> Iterator[Standing]:
    for meter in terms.meters:
        used = counters.used(meter.name, meter.window_s, now)
        yield Standing(meter, used.counted, used.fades_to_s(0.0))


def _has_worked(exchange: Exchange) -> bool:
    """Whether an engine has spent time on it, as far as is known here."""
    return exchange.timings.first_byte_at is not None or (
        bool(exchange.engine_kind) and exchange.outcome in (Outcome.ANSWERED, Outcome.CLIENT_GONE)
    )


def _exceeded(meter: Meter, used: Used, wanted: float) -> str:
    what = meter.quantity.value.removeprefix("budget_")
    have = f"{_number(used.counted)} of {_number(meter.limit)} {what} per {meter.window_s:g} s are used"
    if wanted and meter.quantity is not Quantity.REQUESTS:
        have += f", and this request is estimated at {_number(wanted)}"
    return f"A limit of this key is reached (limits.{meter.quantity.value}): {have}."


def _number(amount: float) -> str:
    """Whole numbers as such, money to the fraction of a cent."""
    return str(math.floor(amount)) if amount == int(amount) or amount >= 1_000 else f"{amount:.4f}"
