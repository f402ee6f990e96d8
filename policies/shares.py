"""Fair queueing between tenants: whose turn is next, by what each got, over its weight, of what a queue lacks.

A flow is the turns of one tenant in one class of the operator. Classes go in their order; inside one the flow that
got least goes first: what its turns took, halved every few minutes, and what those that run are expected to take.
One that begins to wait starts no lower than the least of those that wait, or than the one served last, as silence
earns no credit (Sheng et al., Fairness in Serving Large Language Models, OSDI 2024). So nothing that a client
declares moves a turn of another tenant.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from typing import TypeAlias

from policies.types import Turn, TurnId

HALF_LIFE_S = 300.0
LATELY_S = 3_600.0
"""Longer than any turn takes."""

Flow: TypeAlias = tuple[int, str]
"""(class, tenant)."""


def flow_of(turn: Turn) -> Flow:
    return turn.priority_class, turn.tenant


class Shares:
    """Of one queue. Until a turn is charged nothing is kept."""

    def __init__(self) -> None:
        self._got: dict[Flow, tuple[float, float]] = {}
        """What turns that ended took, over the weight, and as of when."""
        self._expected: dict[Flow, float] = {}
        """What those that have not ended are expected to take."""
        self._of_turn: dict[TurnId, float] = {}
        self._served_at: dict[Flow, float] = {}
        self._levels: dict[int, tuple[float, float]] = {}
        """Of each class: what the flow that was served last had got."""

    def got(self, flow: Flow, now: float) -> float:
        return _decayed(self._got.get(flow), now) + self._expected.get(flow, 0.0)

    def joined(self, flow: Flow, waiting: Iterable[Flow], now: float) -> None:
        """The flow begins to wait beside others. What those are only expected to take is not counted: it may turn
        out to be less, and until then they hold what is short."""
        if not self._levels:
            return
        others = [self._taken(other, now) for other in waiting if other[0] == flow[0] and other != flow]
        least = min(others) if others else _decayed(self._levels.get(flow[0]), now)
        self._got[flow] = max(least, self._taken(flow, now)), now

    def began(self, turn: Turn, expected: float, now: float) -> None:
        """A turn is served, and is expected to take so much."""
        flow = flow_of(turn)
        self._levels[flow[0]] = max(self._taken(flow, now), _decayed(self._levels.get(flow[0]), now)), now
        self._of_turn[turn.id] = expected / turn.weight
        self._expected[flow] = self._expected.get(flow, 0.0) + expected / turn.weight
        self._served_at[flow] = now

    def ended(self, turn: Turn, took: float, now: float) -> None:
        """It took so much."""
        flow, expected = flow_of(turn), self._of_turn.pop(turn.id, 0.0)
        if expected:
            self._expected[flow] -= expected
        self._got[flow] = self._taken(flow, now) + took / turn.weight, now

    def _taken(self, flow: Flow, now: float) -> float:
        return _decayed(self._got.get(flow), now)

    def in_order(self, flows: Collection[Flow], now: float) -> list[Flow]:
        """Higher classes first; in a class who got least, of equals who has not been served for longest."""
        if len(flows) == 1:
            return list(flows)

        def standing(flow: Flow) -> tuple[int, int, float]:
            return -flow[0], round(self.got(flow, now)), self._served_at.get(flow, -math.inf)

        return sorted(flows, key=standing)


def firsts(flows: Iterable[Flow]) -> list[Flow]:
    """Of flows in their order, the first of each class."""
    found: dict[int, Flow] = {}
    for flow in flows:
        found.setdefault(flow[0], flow)
    return list(found.values())


def _decayed(amount: tuple[float, float] | None, now: float) -> float:
    return 0.0 if amount is None else amount[0] * math.exp2((amount[1] - now) / HALF_LIFE_S)


class Tenants:
    """Who has sent turns, and whether several are about: then what one declares orders its own turns only."""

    def __init__(self) -> None:
        self.known: dict[str, tuple[float, int]] = {}
        """Weight and class of each, as of when its turns began to come after another one's."""
        self._latest: str | None = None
        self._latest_at = self._other_at = -math.inf

    def arrived(self, turn: Turn, now: float) -> None:
        if turn.tenant != self._latest:
            self.known[turn.tenant] = turn.weight, turn.priority_class
            self._latest, self._other_at = turn.tenant, self._latest_at
        self._latest_at = now

    def are_several(self, now: float) -> bool:
        return now - self._other_at < LATELY_S
