"""Laws of the shadow clocks: what the ledger of time says of simulated fleets is what the gate really saved."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.simulation import fleets
from benchmarks.simulation.fleets import FLEETS, AgentFleet, fixed
from benchmarks.simulation.gate_ledger import of_fleet
from benchmarks.simulation.router import Ungated
from benchmarks.simulation.simulator import Decider, Simulation
from gateway.embedded.model import EngineSpec
from policies.admission import Limits
from policies.scheduler import Scheduler
from policies.shadow_clocks import MOST_STEPS, STEP_S, Population
from policies.turns import Turns
from policies.types import (
    BLOCK_CHARS,
    Arrived,
    Decision,
    Dispatch,
    Fact,
    FirstByte,
    ReplicaReported,
    SessionForgotten,
)
from tests.policies.turns_of import done, turn


@pytest.mark.parametrize("name", ["base", "mixed"])
def test_the_net_is_near_what_the_gate_saved(name: str) -> None:
    assert of_fleet(FLEETS[name], [1, 2]).error <= 0.3


@pytest.mark.parametrize("name", ["n80", "w2", "giant", "chat"])
def test_the_net_has_the_sign_of_what_the_gate_saved(name: str) -> None:
    assert of_fleet(FLEETS[name], [1]).has_sign


@pytest.mark.parametrize("name", ["subf", "fam4hi"])
def test_little_is_claimed_where_prefixes_of_families_leave_little_room_and_little_was_saved(name: str) -> None:
    found = of_fleet(FLEETS[name], [1])
    assert abs(found.net_s - found.difference_s) <= 0.1 * found.straight_s


class Bounding:
    """Clients that bound their answers as a demo does."""

    def __init__(self, decider: Decider, output_tokens: int) -> None:
        self._decider, self._output_tokens = decider, output_tokens

    def tell(self, fact: Fact, now: float) -> tuple[list[Decision], float | None]:
        if isinstance(fact, Arrived):
            fact = Arrived(replace(fact.turn, max_output_tokens=self._output_tokens))
        return self._decider.tell(fact, now)


@pytest.mark.parametrize("num_blocks", [1_500, 1_750, 2_000])
def test_the_block_in_which_a_prefix_ends_holds_nothing_and_claims_nothing_where_all_fit(num_blocks: int) -> None:
    """A hundred agents as in `turngate demo tools`. Their prefix fills all but 15 characters of its last block."""
    agents = fleets.Population(
        num_sessions=100,
        turns=fixed(2),
        shared_tokens=2_160,
        first_tokens=fixed(48),
        append_tokens=fixed(30),
        output_tokens=fixed(64),
        gap_s=fixed(0.8),
    )
    fleet = AgentFleet([agents], replace(FLEETS["base"].world, spec=EngineSpec(num_blocks)))
    scheduler = Scheduler(Turns(), Limits())
    gated = Simulation(Bounding(scheduler, 64), fleet.world).run(fleet.draw(1))
    assert gated.makespan_s == pytest.approx(Simulation(Ungated(), fleet.world).run(fleet.draw(1)).makespan_s)
    [replica] = scheduler.view().replicas
    assert (replica.gate_held_s, replica.gate_saved_s) == pytest.approx((0.0, 0.0), abs=1.0)


def test_the_first_session_of_a_family_holds_no_more_of_its_own_than_the_second_one() -> None:
    scheduler = Scheduler(Turns(), Limits())
    scheduler.tell(ReplicaReported("r", capacity_tokens=100_000, slots=8), 0.0)
    clocks = scheduler._clocks
    for number in range(2):
        parts = ("shared", 40), (f"own{number}", 4)
        scheduler.tell(Arrived(turn(f"t{number}", *parts, session=f"s{number}", at=1.0)), 1.0)
    one, other = clocks._clocks["s0"], clocks._clocks["s1"]
    assert (one.own_tokens, one.shared_chars) == (other.own_tokens, 40 * BLOCK_CHARS)
    assert clocks._population.now == pytest.approx((2, 2 * other.own_tokens))
    assert not clocks._firsts


@pytest.mark.parametrize("name", ["ctl", "bursts"])
def test_where_everything_fits_nothing_is_held_and_nothing_saved(name: str) -> None:
    found = of_fleet(FLEETS[name], [1])
    assert found.held_s == found.saved_s == pytest.approx(0.0, abs=1e-6)


def test_where_the_gate_opens_for_good_little_is_held_or_saved() -> None:
    found = of_fleet(FLEETS["pauses"], [1])
    assert abs(found.net_s) <= 0.05 * found.straight_s


def test_a_forgotten_session_leaves_nothing() -> None:
    scheduler = Scheduler(Turns(), Limits())
    scheduler.tell(ReplicaReported("r", capacity_tokens=1_000, slots=8), 0.0)
    for number in range(3):
        at, session = 10.0 * number, f"s{number}"
        decisions, _ = scheduler.tell(Arrived(turn(f"t{number}", session=session, at=at)), at)
        assert isinstance(decisions[0], Dispatch)
        scheduler.tell(FirstByte(f"t{number}"), at + 1)
        scheduler.tell(done(f"t{number}", 128, 10), at + 2)
        scheduler.tell(SessionForgotten(session), at + 3)
    clocks = scheduler._clocks
    assert not clocks._clocks
    assert not clocks._families
    assert not clocks._firsts
    assert clocks._population.now == pytest.approx((0.0, 0.0))


Change = tuple[float, float]


@given(st.lists(st.tuples(st.floats(0, 300), st.floats(1, 300)), min_size=1, max_size=60), st.floats(0, 700))
def test_the_population_counts_those_that_live_at_a_time(lives: list[Change], at: float) -> None:
    """To a step."""
    population = Population()
    for begin, lasts_s in lives:
        population.change(begin, 1, 100.0)
        population.change(begin + lasts_s, -1, -100.0)
    step = int(at / STEP_S)
    living = sum(int(begin / STEP_S) <= step < int((begin + lasts_s) / STEP_S) for begin, lasts_s in lives)
    assert population.at(at) == (living, 100.0 * living)
    assert population.now == (0, 0.0)


@given(st.lists(st.floats(0, 1e7), min_size=1, max_size=30))
def test_the_population_takes_no_more_memory_as_time_goes_by(times: list[float]) -> None:
    population = Population()
    for at in times:
        population.change(at, 1, 1.0)
    assert all(len(changes) <= MOST_STEPS + 1 for changes in (population._nums, population._tokens))
    assert population.at(max(times))[0] == len(times)
