"""What each tenant got lately: tokens computed for it over its weight, decaying by half every few minutes.

A tenant that begins to wait starts no lower than the least served of those who wait already, so silence earns no
credit (the counter of Sheng et al., Fairness in Serving Large Language Models, OSDI 2024).
"""

from __future__ import annotations

import math
from collections.abc import Iterable

HALF_LIFE_S = 300.0


class Shares:
    """Written by the Scheduler."""

    def __init__(self) -> None:
        self._attained: dict[str, tuple[float, float]] = {}
        """Tenant -> (weighted tokens, as of when)."""

    def attained(self, tenant: str, now: float) -> float:
        tokens, at = self._attained.get(tenant, (0.0, now))
        return tokens * math.exp2((at - now) / HALF_LIFE_S)

    def served(self, tenant: str, weighted_tokens: float, now: float) -> None:
        """The tenant got so many tokens, divided by its weight."""
        self._attained[tenant] = self.attained(tenant, now) + weighted_tokens, now

    def joined(self, tenant: str, waiting: Iterable[str], now: float) -> None:
        """The tenant begins to wait beside others."""
        least = min((self.attained(other, now) for other in waiting), default=0.0)
        self._attained[tenant] = max(least, self.attained(tenant, now)), now
