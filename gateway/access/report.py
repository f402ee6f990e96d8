"""What each key has used of its limits, for `/v1/turngate/limits`."""

from __future__ import annotations

from collections.abc import Iterable

from gateway.access.allowance import Limiter, standing
from gateway.access.meters import CallerLimits, Quantity
from gateway.core.fields import Json


def report(limiter: Limiter, all_terms: Iterable[CallerLimits]) -> list[Json]:
    """One row for each limit."""
    now = limiter.now()
    return [row for terms in all_terms for row in _rows(limiter, terms, now)]


def _rows(limiter: Limiter, terms: CallerLimits, now: float) -> list[Json]:
    rows: list[Json] = [
        {
            "key": terms.name,
            "limit": row.meter.quantity,
            "of": row.meter.limit,
            "used": round(row.used, 6),
            "window_s": row.meter.window_s,
            "resets_in_s": round(row.resets_in_s, 3),
        }
        for row in standing(terms, limiter.counters, now)
    ]
    if terms.concurrency is not None:
        held = limiter.counters.held(terms.name)
        rows.append({"key": terms.name, "limit": Quantity.CONCURRENCY, "of": terms.concurrency, "used": held})
    return rows
