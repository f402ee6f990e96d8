"""Which failures of a request of our own may go away by themselves, and when to try again. Pure."""

from __future__ import annotations

from collections.abc import Mapping

OVERLOADED = frozenset((429, 503, 529))
"""Statuses that say that nobody has room, or nobody is up: waited out for as long as the batch has."""
PASSING = frozenset((0, 408, 409, 500, 502, 504))
"""Statuses of a call that went wrong; 0 is an answer that was cut."""
FIRST_S, LONGEST_S = 0.5, 60.0


def again_in_s(
    status: int, headers: Mapping[str, str], num_failures: int, attempts: int, chance: float
) -> float | None:
    """Seconds to wait before the next attempt; None when the answer stands.

    `num_failures` counts this one. `chance` in [0, 1) spreads those that failed together: a wait is at least half
    of what the failures have earned, on top of what the engine asked for.
    """
    if status not in OVERLOADED and (status not in PASSING or num_failures >= attempts):
        return None
    earned_s = min(LONGEST_S, FIRST_S * 2.0 ** min(num_failures - 1, 10))
    return _asked_s(headers) + earned_s * (0.5 + chance / 2)


def _asked_s(headers: Mapping[str, str]) -> float:
    try:
        return min(LONGEST_S, max(0.0, float(headers.get("retry-after", "0"))))
    except ValueError:
        return 0.0
