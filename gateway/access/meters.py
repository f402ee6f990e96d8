"""Which quantities of a key are counted, and how much of each it may use."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from gateway.config.settings import KeyLimits


class Quantity(StrEnum):
    """What a meter counts; part of header names, metric label, and the key of the configuration."""

    __hash__ = str.__hash__  # an enum's own is Python, and these are keys on the path

    REQUESTS = "requests"
    TOKENS = "tokens"
    CONCURRENCY = "concurrency"
    BUDGET_TOKENS = "budget_tokens"
    BUDGET_COST = "budget_cost"


BUDGETS = frozenset((Quantity.BUDGET_TOKENS, Quantity.BUDGET_COST))


@dataclass(frozen=True, slots=True)
class Meter:
    """One quantity of one key over a sliding window."""

    name: str
    """Of its counter: the key and the quantity."""
    quantity: Quantity
    limit: float
    window_s: float


@dataclass(frozen=True, slots=True)
class CallerLimits:
    """All that limits one key."""

    name: str
    """Of the key."""
    meters: tuple[Meter, ...] = ()
    concurrency: int | None = None

    @staticmethod
    def of(key_id: str, limits: KeyLimits) -> CallerLimits | None:
        """None: nothing is limited."""
        asked = (
            (Quantity.REQUESTS, limits.requests, limits.window_s),
            (Quantity.TOKENS, limits.tokens, limits.window_s),
            (Quantity.BUDGET_TOKENS, limits.budget_tokens, limits.budget_window_s),
            (Quantity.BUDGET_COST, limits.budget_cost, limits.budget_window_s),
        )
        meters = tuple(Meter(f"{key_id}/{q}", q, limit, window_s) for q, limit, window_s in asked if limit)
        return CallerLimits(key_id, meters, limits.concurrency) if meters or limits.concurrency else None

    def budgets(self) -> CallerLimits | None:
        """Those that hold for lines of batches too: the gateway itself paces them, so rates do not."""
        meters = tuple(meter for meter in self.meters if meter.quantity in BUDGETS)
        return CallerLimits(self.name, meters) if meters else None
