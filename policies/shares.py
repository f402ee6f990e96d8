"""Fair queueing between tenants: the next turn belongs to the tenant that got least, over its weight.

A flow is the turns of one tenant in one priority class. Higher classes go first. In a class the flow that got
least goes first: the cost of its past turns, halved every few minutes, and the expected cost of its running ones.
A flow that begins to wait starts no lower than the least of those that wait, or than the one served last: silence
earns no credit (Sheng et al., Fairness in Serving Large Language Models, OSDI 2024). So nothing that a client
declares moves a turn of another tenant.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from typing import TypeAlias

from policies.types import Turn, TurnId

HALF_LIFE_S = 300.0
LATELY_S = 3_600.0
"""Longer than any turn takes."""
LEAST_OPEN = 0.5
"""Of a turn: below it the sum is none, but for rounding."""
WEIGHT = 0.1
"""Of a new turn in running means."""

Flow: TypeAlias = tuple[int, str]
"""(class, tenant)."""


def flow_of(turn: Turn) -> Flow:
    return turn.priority_class, turn.tenant


class Shares:
    """The shares of one queue. Until a turn is charged nothing is kept."""

    def __init__(self) -> None:
        self._got: dict[Flow, tuple[float, float]] = {}
        """Cost of the turns that ended, over the weight; and as of when."""
        self._expected: dict[Flow, float] = {}
        """Expected cost of the running turns, likewise."""
        self._num_running: dict[Flow, int] = {}
        self._of_turn: dict[TurnId, float] = {}
        self._served_at: dict[Flow, float] = {}
        self._levels: dict[int, tuple[float, float]] = {}
        """By class: what the flow that was served last had got."""

    def got(self, flow: Flow, now: float) -> float:
        return _decayed(self._got.get(flow), now) + self._expected.get(flow, 0.0)

    def joined(self, flow: Flow, waiting: Iterable[Flow], now: float) -> None:
        """Record that the flow begins to wait beside others. The expected cost of the others' running turns does
        not count: it may turn out to be less. A flow with running turns was not silent."""
        if not self._levels or self._num_running.get(flow):
            return
        others = [self._taken(other, now) for other in waiting if other[0] == flow[0] and other != flow]
        least = min(others) if others else _decayed(self._levels.get(flow[0]), now)
        self._got[flow] = max(least, self._taken(flow, now)), now

    def began(self, turn: Turn, expected: float, now: float) -> None:
        """Charge the expected cost of a turn that begins."""
        flow = flow_of(turn)
        self._levels[flow[0]] = max(self._taken(flow, now), _decayed(self._levels.get(flow[0]), now)), now
        self._of_turn[turn.id] = expected / turn.weight
        self._num_running[flow] = self._num_running.get(flow, 0) + 1
        self._expected[flow] = self._expected.get(flow, 0.0) + expected / turn.weight
        self._served_at[flow] = now

    def ended(self, turn: Turn, took: float, now: float) -> None:
        """Charge the cost of a turn that ended, in the place of the expected one."""
        flow, expected = flow_of(turn), self._of_turn.pop(turn.id, None)
        if expected is not None:
            self._expected[flow] -= expected
            self._num_running[flow] -= 1
        self._got[flow] = self._taken(flow, now) + took / turn.weight, now

    def is_ahead(self, flow: Flow, now: float) -> bool:
        """Whether the flow got more than another one of no lower class that has running turns."""
        got = self.got(flow, now)
        return any(
            num and other[0] >= flow[0] and self.got(other, now) < got for other, num in self._num_running.items()
        )

    def _taken(self, flow: Flow, now: float) -> float:
        return _decayed(self._got.get(flow), now)

    def in_order(self, flows: Collection[Flow], now: float) -> list[Flow]:
        """Return the flows in order: higher classes first; in a class the flow that got least; of equals the one
        that was not served for longest."""
        if len(flows) == 1:
            return list(flows)

        def standing(flow: Flow) -> tuple[int, int, float]:
            return -flow[0], round(self.got(flow, now)), self._served_at.get(flow, -math.inf)

        return sorted(flows, key=standing)


RANK_STEP = 0.1
"""Part by which ranks have to differ."""


def coarse(rank: float) -> float:
    """Return a rank to within RANK_STEP: equal turns are ranked differently by what was learned between them, and
    the older ones would wait for all newer ones. The order of ranks that differ by more is kept."""
    if not rank or math.isinf(rank):
        return rank
    return math.copysign(math.exp(RANK_STEP * round(math.log(abs(rank)) / RANK_STEP)), rank)


class Rates:
    """How many tokens one replica computes for each tenant per second of its slots.

    Shares go by tokens. A flood of long answers takes few tokens in much time, and would take the slots with them.
    So the tenant that wants most tokens is charged for its slots' time, too: as many tokens as the other that
    computes fewest would have got in that time. Any other tenant is charged its tokens, whatever they take.
    """

    def __init__(self) -> None:
        self._means: dict[str, tuple[float, float]] = {}
        """Tokens and seconds of a turn of each tenant."""

    def saw(self, tenant: str, tokens: float, slot_s: float) -> None:
        """Record a turn that ended."""
        old_tokens, old_s = self._means.get(tenant, (tokens, slot_s))
        self._means[tenant] = old_tokens + WEIGHT * (tokens - old_tokens), old_s + WEIGHT * (slot_s - old_s)

    def charge(self, turn: Turn, tokens: float, slot_s: float | None, open_turns: Mapping[str, float]) -> float:
        """Return what a turn of so many tokens is charged. `slot_s`: None where it is not known yet; `open_turns`:
        of each tenant, over its weight."""
        own_tokens, own_s = self._means.get(turn.tenant, (tokens, 0.0))
        wanted_tokens, rates = own_tokens * open_turns.get(turn.tenant, 0.0), []
        for tenant, num in open_turns.items():
            if tenant != turn.tenant and (mean := self._means.get(tenant)) is not None:
                if mean[0] * num >= wanted_tokens:
                    return tokens
                rates.append(mean[0] / mean[1])
        return max(tokens, (own_s if slot_s is None else slot_s) * min(rates, default=0.0))


def firsts(flows: Iterable[Flow]) -> list[Flow]:
    """Return the first flow of each class; `flows` are in order."""
    found: dict[int, Flow] = {}
    for flow in flows:
        found.setdefault(flow[0], flow)
    return list(found.values())


def _decayed(amount: tuple[float, float] | None, now: float) -> float:
    return 0.0 if amount is None else amount[0] * math.exp2((amount[1] - now) / HALF_LIFE_S)


class Tenants:
    """The tenants that have sent turns. While several do, the declarations of one order its own turns only."""

    def __init__(self) -> None:
        self.known: dict[str, tuple[float, int]] = {}
        """Weight and class of each, as of the last time that its turns followed another tenant's."""
        self.open_turns: dict[str, float] = {}
        """Turns of each that wait or run, over its weight. Tenants without one are left out."""
        self._usual_open: dict[str, float] = {}
        """Their mean as of the last arrivals: a tenant whose turns are refused together is no small one."""
        self._latest: str | None = None
        self._latest_at = self._other_at = -math.inf

    def arrived(self, turn: Turn, now: float) -> None:
        if turn.tenant != self._latest:
            self.known[turn.tenant] = turn.weight, turn.priority_class
            self._latest, self._other_at = turn.tenant, self._latest_at
        self._latest_at = now
        num = self.open_turns[turn.tenant] = self.open_turns.get(turn.tenant, 0.0) + 1 / turn.weight
        usual = self._usual_open.get(turn.tenant, num)
        self._usual_open[turn.tenant] = usual + WEIGHT * (num - usual)

    def usually_open(self) -> dict[str, float]:
        """Return how many turns are usually open of each tenant that has one, over its weight."""
        return {tenant: self._usual_open[tenant] for tenant in self.open_turns}

    def left(self, turn: Turn) -> None:
        num = self.open_turns[turn.tenant] - 1 / turn.weight
        if num < LEAST_OPEN / turn.weight:
            del self.open_turns[turn.tenant]
        else:
            self.open_turns[turn.tenant] = num

    @property
    def are_rivals(self) -> bool:
        """Whether more than one has sent turns since the start. Then each has its part of every pool."""
        return len(self.known) > 1

    def are_several(self, now: float) -> bool:
        return now - self._other_at < LATELY_S
