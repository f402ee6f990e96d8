"""Laws of warm-ups: who lost its cache while its tool ran has it again before the tool returns, if that pays."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from policies.admission import Limits
from policies.scheduler import Scheduler
from policies.turns import Turns
from policies.types import (
    Arrived,
    CacheLost,
    Decision,
    Dispatch,
    Ending,
    FirstByte,
    Left,
    ReplicaReported,
    Tick,
    Usage,
    WarmedUp,
    WarmUp,
)
from policies.warmup import PAYS
from tests.policies.turns_of import TOKENS_PER_BLOCK, TOKENS_PER_CHAR, turn

TOOL_S = 30.0
BLOCKS = 20
CAPACITY_TOKENS = 50 * TOKENS_PER_BLOCK


class Agent:
    """One session whose tool takes TOOL_S, and the Scheduler that serves it."""

    def __init__(self, warms_up: bool = True) -> None:
        self.scheduler = Scheduler(Turns(), Limits(warms_up=warms_up))
        self.scheduler.tell(ReplicaReported("r", None, CAPACITY_TOKENS, 8, 0, TOKENS_PER_CHAR), 0.0)
        self.now, self.number = 0.0, 0

    def turn(self, tool_s: float | None = TOOL_S) -> Dispatch:
        """Its next call, answered after a second; then its tool runs."""
        self.number += 1
        name, tokens = f"t{self.number}", BLOCKS * TOKENS_PER_BLOCK
        arriving = turn(name, ("own", BLOCKS), session="s", at=self.now)
        [dispatch] = (d for d in self.tell(Arrived(arriving)) if isinstance(d, Dispatch))
        self.tell(FirstByte(name))
        self.now += 1.0
        self.tell(Left(name, Ending.COMPLETE, Usage(tokens, tokens, 10), ("build",), tool_s=tool_s))
        return dispatch

    def evicted(self) -> None:
        """The engine needed the room, and said so."""
        self.tell(CacheLost("r", {"s": 0}))

    def tell(self, fact: object) -> list[Decision]:
        return self.scheduler.tell(fact, self.now)[0]  # type: ignore[arg-type]

    def wakes(self, until_s: float) -> Iterator[Decision]:
        """What is decided by itself up to a time."""
        while True:
            decisions, wake_at = self.scheduler.tell(Tick(), self.now)
            yield from decisions
            if wake_at is None or wake_at > until_s:
                self.now = until_s
                return
            self.now = max(self.now, wake_at)


@pytest.fixture
def agent() -> Agent:
    agent = Agent()
    for _ in range(3):
        agent.turn()
        agent.now += TOOL_S
    agent.turn()
    return agent


def warm_ups(decisions: Iterator[Decision]) -> list[WarmUp]:
    return [decision for decision in decisions if isinstance(decision, WarmUp)]


def test_what_was_lost_while_a_tool_ran_is_computed_again_just_before_it_returns(agent: Agent) -> None:
    agent.evicted()
    returns_at = agent.now + TOOL_S
    [warm_up] = warm_ups(agent.wakes(returns_at))
    assert warm_up == WarmUp("s", "r", BLOCKS * TOKENS_PER_BLOCK)
    agent.tell(WarmedUp("s", is_done=True))
    assert agent.turn().expected_cached_tokens == BLOCKS * TOKENS_PER_BLOCK


def test_nobody_who_kept_its_cache_is_warmed_up(agent: Agent) -> None:
    assert not warm_ups(agent.wakes(agent.now + 2 * TOOL_S))


def test_while_anybody_runs_a_prefill_it_is_put_off(agent: Agent) -> None:
    agent.evicted()
    agent.tell(Arrived(turn("other", ("other", 10), at=agent.now)))
    assert not warm_ups(agent.wakes(agent.now + TOOL_S))


def test_a_warm_up_that_failed_leaves_nothing_behind(agent: Agent) -> None:
    agent.evicted()
    assert warm_ups(agent.wakes(agent.now + TOOL_S))
    agent.tell(WarmedUp("s", is_done=False))
    [replica] = agent.scheduler.view().replicas
    assert (replica.slots_used, replica.residency_tokens) == (0, 0)


def test_what_does_not_pay_is_hardly_tried(agent: Agent) -> None:
    """Its guard: sessions that are warmed up and lose it again before they come back."""
    num_done = []
    for _ in range(40):
        agent.evicted()
        done = warm_ups(agent.wakes(agent.now + TOOL_S - 0.1))
        num_done.append(len(done))
        for _ in done:
            agent.tell(WarmedUp("s", is_done=True))
        agent.evicted()
        agent.now += 1.0
        agent.turn()
    assert sum(num_done[:8]) > 4
    assert sum(num_done[-16:]) <= 16 * (1 - PAYS)


def test_without_a_driver_for_it_nothing_is_warmed_up() -> None:
    agent = Agent(warms_up=False)
    agent.turn()
    agent.evicted()
    assert not warm_ups(agent.wakes(agent.now + 2 * TOOL_S))
