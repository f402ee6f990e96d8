"""Between tenants the fair share decides, whatever the policy, and whatever any of them declares."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.admission import Limits
from policies.policy import Policy
from policies.turns import Turns
from policies.types import Arrived, Dispatch, Fact, Hints, Turn
from tests.contract.test_policies import IDS, POLICIES, Play
from tests.policies.tenants import Agents, Declared, Tenants

SHAPES: dict[str, dict[str, Any]] = {
    "few slots": {"slots": 4},
    "slots not stated": {"slots": 4, "states_slots": False},
    "small cache": {"slots": 40, "capacity_tokens": 8_000},
}
FLOOD, QUIET = "flood", "quiet"
PLAYED_S = 100.0
LEAST = 0.8
"""Of the turns that the other tenant gets while nothing is declared."""

DECLARED = st.builds(
    Declared,
    remaining=st.none() | st.sampled_from([0, 0, 1, 3, 50, 999_999_999]),
    keeps_session=st.booleans(),
    names_parent=st.booleans(),
    is_side=st.booleans(),
    deadline_s=st.none() | st.sampled_from([0.0, 0.5, 5.0, 1e6]),
    says_retry=st.booleans(),
    is_final=st.booleans(),
    max_output_tokens=st.none() | st.sampled_from([1, 1_000_000]),
    tells_history=st.booleans(),
)


@cache
def turns_of_the_quiet(number: int, shape: str, declared: Declared) -> int:
    agents = [
        Agents(FLOOD, 24, declared=declared),
        Agents(QUIET, 1, num_turns=12, gap_s=0.3, append_tokens=100),
    ]
    return Tenants(POLICIES[number](), agents, **SHAPES[shape]).play(PLAYED_S)[QUIET]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("number", range(len(POLICIES)), ids=IDS)
@given(declared=DECLARED)
@settings(max_examples=6, deadline=None)
def test_what_one_tenant_declares_takes_no_turns_from_another(number: int, shape: str, declared: Declared) -> None:
    assert turns_of_the_quiet(number, shape, declared) >= LEAST * turns_of_the_quiet(number, shape, Declared())


@pytest.mark.parametrize("shape", ["few slots", "small cache"])
def test_one_agent_has_its_turns_beside_a_flood(shape: str) -> None:
    """Nothing is declared; the sessions of the flood are as short as sessions can be, and learned to be."""
    alone = Tenants(Turns(), [Agents(QUIET, 1, num_turns=12, gap_s=0.3)], **SHAPES[shape])
    beside = Tenants(Turns(), [Agents(FLOOD, 40), Agents(QUIET, 1, num_turns=12, gap_s=0.3)], **SHAPES[shape])
    assert beside.play(PLAYED_S)[QUIET] >= 0.25 * alone.play(PLAYED_S)[QUIET]
    assert max(beside.waited_s[QUIET]) < 3.0


BUSY = [Agents(f"busy{number}", 8, num_turns=6, gap_s=0.2) for number in range(3)]
FLOODS = {
    "nothing": Declared(),
    "no turns to follow": Declared(remaining=0),
    "sub-agents that end": Declared(names_parent=True, remaining=999, is_final=True),
    "side requests": Declared(is_side=True),
}


@cache
def beside(shape: str, flood: Agents) -> Tenants:
    """Three tenants that always have work, and one more."""
    play = Tenants(Turns(), [flood, *BUSY], **SHAPES[shape])
    play.play(60.0)
    return play


def p99_s(waits_s: list[float]) -> float:
    return sorted(waits_s)[int(0.99 * len(waits_s))]


@pytest.mark.parametrize("declared", FLOODS.values(), ids=FLOODS)
@pytest.mark.parametrize(
    ("shape", "least"), [("few slots", 0.9), ("slots not stated", 0.9), ("small cache", 0.85)]
)
def test_a_flood_leaves_each_of_four_tenants_its_part_of_the_tokens_and_its_wait(
    shape: str, least: float, declared: Declared
) -> None:
    """From the first turn on; `test_tenant_shares.py` has longer turns and other numbers of tenants."""
    calm, flooded = (
        beside(shape, replace(BUSY[0], tenant=FLOOD)),
        beside(shape, Agents(FLOOD, 80, declared=declared)),
    )
    part = sum(flooded.computed_tokens.values()) / 4
    for one in BUSY:
        assert flooded.computed_tokens[one.tenant] >= least * part
        assert p99_s(flooded.begun_s[one.tenant]) <= 2 * p99_s(calm.begun_s[one.tenant])


@pytest.mark.parametrize("make", POLICIES[2:], ids=IDS[2:])
def test_tenants_that_all_have_work_get_tokens_by_their_weights(make: Callable[[], Policy]) -> None:
    agents = [
        Agents("light", 30, weight=1, declared=Declared(remaining=0)),
        Agents("heavy", 10, weight=3, num_turns=5),
        Agents("batch", 10, priority_class=-10, declared=Declared(remaining=0)),
        Agents("single", 1, gap_s=1.0, num_turns=9),
    ]
    play = Tenants(make(), agents, slots=4)
    done = play.play(PLAYED_S)
    assert play.computed_tokens["heavy"] / play.computed_tokens["light"] == pytest.approx(3, rel=0.15)
    assert max(play.waited_s["single"]) < 3.0
    assert done["batch"] <= 4


@pytest.mark.parametrize("shape", ["few slots", "small cache"])
def test_who_comes_late_or_again_has_neither_credit_nor_debt(shape: str) -> None:
    """One works alone for a minute; the other begins, leaves, and comes back. Once it is known how long its
    sessions pause, both have their half at any time."""
    agents = [
        Agents("first", 20),
        Agents("later", 20, begins_at=60.0, ends_at=120.0),
        Agents("later", 20, begins_at=180.0),
    ]
    play = Tenants(Turns(), agents, **SHAPES[shape])
    play.play(240.0)
    for since in (80, 90, 100, 110, 182, 192, 202, 212, 222):
        halves = [play.num_done(name, since, since + 10.0) for name in ("first", "later")]
        assert min(halves) >= 0.6 * max(halves), (since, halves)


def test_a_flood_keeps_nobody_else_out_of_the_queue() -> None:
    """Neither by filling it, nor by making the wait look long to others."""
    limits = Limits(max_queue=20)
    agents = [
        Agents(FLOOD, 60, max_wait_s=10.0),
        Agents(QUIET, 1, num_turns=1, gap_s=0.3, max_wait_s=10.0),
    ]
    play = Tenants(Turns(), agents, slots=40, capacity_tokens=4_000, limits=limits)
    play.play(PLAYED_S)
    assert play.refused[FLOOD] > 20
    assert not play.refused[QUIET]


class Company(Play):
    """A random life of several tenants. No turn has more urgency than one of another tenant, of its class or a
    higher one, that an engine was sent before and still has."""

    def __init__(self, policy: Policy, seed: int) -> None:
        self.turns: dict[str, Turn] = {}
        self.hints: dict[str, Hints] = {}
        super().__init__(policy, seed, slots=5)

    def tell(self, fact: Fact) -> None:
        if isinstance(fact, Arrived):
            priority_class = self.rng.choice([0, 0, 0, 1, -10])
            tenant = self.rng.choice("aabc")
            turn = fact.turn
            fact = Arrived(
                replace(
                    turn,
                    tenant=tenant,
                    session_id=f"{tenant}/{turn.session_id}",
                    family_id=f"{tenant}/{turn.family_id}",
                    priority_class=priority_class,
                )
            )
            self.turns[turn.id] = fact.turn
        known = len(self.decisions)
        super().tell(fact)
        for decision in self.decisions[known:]:
            if isinstance(decision, Dispatch):
                self.check_urgency(decision)

    def check_urgency(self, decision: Dispatch) -> None:
        turn = self.turns[decision.turn_id]
        for other_id in self.running.keys() & self.hints.keys():
            other = self.turns[other_id]
            if other.tenant != turn.tenant and other.priority_class >= turn.priority_class:
                assert decision.hints.urgency <= self.hints[other_id].urgency, (turn, other)
        self.hints[decision.turn_id] = decision.hints


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("make", POLICIES, ids=IDS)
def test_in_an_engines_queue_no_tenant_overtakes_another(make: Callable[[], Policy], seed: int) -> None:
    play = Company(make(), seed)
    for _ in range(300):
        play.step()
    assert len({play.turns[turn_id].tenant for turn_id in play.hints}) == 3
