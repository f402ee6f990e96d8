"""Laws of the simulator: deterministic, fast, and a fleet behaves as its plan says."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest

from benchmarks.simulation.fleets import FLEETS, AgentFleet, Population, SubAgents, fixed
from benchmarks.simulation.simulator import (
    DOWN_S,
    CachedTokens,
    Decider,
    Restart,
    Simulation,
    SimulationResult,
    World,
)
from benchmarks.simulation.workloads import BOUNDED, HEAVY, AgentRun, ModelCall, Text, mixed, plain, with_children
from gateway.cli.demo_fleet import FleetShape
from gateway.embedded.model import EngineSpec
from policies.admission import Limits
from policies.deadline import EarliestDeadline
from policies.fifo import Passthrough
from policies.scheduler import Scheduler
from policies.turns import Turns
from policies.types import Arrived, Decision, Fact, Left, Refusal, Reject, ReplicaReported, SessionEnded, TurnKind

WORLD = World(EngineSpec(2_500))


class Listener:
    """Keeps every fact that the Scheduler gets."""

    def __init__(self, decider: Decider) -> None:
        self._decider = decider
        self.facts: list[tuple[float, Fact]] = []

    def tell(self, fact: Fact, now: float) -> tuple[list[Decision], float | None]:
        self.facts.append((now, fact))
        return self._decider.tell(fact, now)


def turns() -> Scheduler:
    return Scheduler(Turns(), Limits())


def straight() -> Scheduler:
    return Scheduler(Passthrough(), Limits())


def facts_of(runs: Sequence[AgentRun], world: World = WORLD) -> list[Fact]:
    listener = Listener(turns())
    Simulation(listener, world).run(runs)
    return [fact for _, fact in listener.facts]


def test_equal_fleets_have_equal_fates() -> None:
    def fate() -> SimulationResult:
        return Simulation(turns(), WORLD).run(with_children(plain(FleetShape(40, (2, 4, 8)), 1), 0.5, 1))

    assert fate() == fate()


def test_running_iterations_as_one_changes_nothing_but_speed() -> None:
    class Plodding(Simulation):
        def _horizon_s(self) -> float:
            return 0.0

    runs = plain(FleetShape(30, arrival_rate_per_s=1.0), 1)
    quick, slow = Simulation(straight(), WORLD).run(runs), Plodding(straight(), WORLD).run(runs)
    assert quick.uncached_tokens == slow.uncached_tokens
    for one, other in zip(quick.turns, slow.turns, strict=True):
        assert (one.session_id, one.index) == (other.session_id, other.index)
        assert abs(one.done_at - other.done_at) < 1e-6


def test_two_hundred_sessions_of_four_turns_take_less_than_a_second() -> None:
    runs = plain(FleetShape(200, arrival_rate_per_s=1.0), 1)
    spent_s = []
    for _ in range(3):
        began = time.process_time()
        Simulation(turns(), WORLD).run(runs)
        spent_s.append(time.process_time() - began)
    assert min(spent_s) < 1.0


def test_a_parent_waits_for_its_sub_agents_and_they_share_its_prefix() -> None:
    runs = with_children(plain(FleetShape(4), 1), 1.0, 1)
    result = Simulation(straight(), World(EngineSpec(20_000))).run(runs)
    of = {(turn.session_id, turn.index): turn for turn in result.turns}
    for run in runs:
        (at,) = (index for index, call in enumerate(run.calls) if call.children)
        for child in run.calls[at].children:
            assert of[run.id, at + 1].wanted_at >= of[child.id, len(child.calls) - 1].done_at
            assert of[child.id, 0].wanted_at == of[run.id, at].done_at
            assert of[child.id, 0].cached_tokens >= run.calls[at].prompt_tokens - WORLD.spec.block_tokens


def test_calls_with_a_deadline_wait_less_under_the_policy_for_deadlines() -> None:
    world = replace(WORLD, spec=replace(WORLD.spec, num_blocks=WORLD.spec.num_blocks // 3))
    runs = plain(FleetShape(60), 1)
    urgent = {run.id for run in runs[::3]}
    runs = [replace(run, deadline_s=40.0) if run.id in urgent else run for run in runs]
    waits = {}
    for policy in (Turns(), EarliestDeadline()):
        result = Simulation(Scheduler(policy, Limits()), world).run(runs)
        first = [turn for turn in result.turns if turn.index == 0 and turn.session_id in urgent]
        waits[policy.name] = sum(turn.dispatched_at - turn.wanted_at for turn in first) / len(first)
    assert waits["deadline"] < 0.8 * waits["turns"]


def test_a_closed_loop_keeps_as_many_sessions_running_as_it_should() -> None:
    result = Simulation(straight(), WORLD).run(plain(FleetShape(20), 1), 5)
    changes = [(s.arrived_at, 1) for s in result.sessions] + [(s.done_at, -1) for s in result.sessions]
    at_once, most = 0, 0
    for _, change in sorted(changes):
        at_once += change
        most = max(most, at_once)
    assert most == 5
    assert len(result.sessions) == 20


def test_side_requests_are_told_as_such_and_do_not_move_their_session() -> None:
    text = Text((500, "title"))
    runs = [replace(run, side=(ModelCall(text, 450, 20),)) for run in plain(FleetShape(3), 1)]
    kinds = [fact.turn.kind for fact in facts_of(runs) if isinstance(fact, Arrived)]
    assert kinds.count(TurnKind.SIDE) == 3
    assert kinds.count(TurnKind.SINGLE) == 3
    assert kinds.count(TurnKind.AGENT) == 9


def test_ends_and_remaining_turns_are_told_only_by_clients_that_cooperate() -> None:
    runs = plain(FleetShape(3), 1)
    silent = facts_of(runs)
    assert not any(isinstance(fact, SessionEnded) for fact in silent)
    assert {fact.turn.remaining_turns for fact in silent if isinstance(fact, Arrived)} == {None}
    open_minded = facts_of(runs, replace(WORLD, declares_end=True, declares_turns=True))
    assert sum(isinstance(fact, SessionEnded) for fact in open_minded) == 3
    assert {fact.turn.remaining_turns for fact in open_minded if isinstance(fact, Arrived)} == {3, 2, 1, 0}


def test_engines_report_what_the_world_says_that_they_report() -> None:
    def cached(how: CachedTokens) -> set[int | None]:
        facts = facts_of(plain(FleetShape(2), 1), replace(WORLD, cached_tokens=how))
        return {fact.usage.cached_tokens for fact in facts if isinstance(fact, Left)}

    assert cached(CachedTokens.ABSENT) == {None}
    assert cached(CachedTokens.ZERO) == {0}
    assert len(cached(CachedTokens.REPORTED)) > 2
    (reported,) = [
        fact
        for fact in facts_of(
            plain(FleetShape(1), 1), replace(WORLD, stated_capacity=1.2, sample_chars_per_token=5.0)
        )
        if isinstance(fact, ReplicaReported)
    ]
    assert reported.capacity_tokens == 48_000
    assert reported.tokens_per_char == 0.2


def test_an_engine_that_finds_its_own_answers_again_computes_less() -> None:
    runs, roomy = plain(FleetShape(5), 1), World(EngineSpec(20_000))
    never = Simulation(straight(), roomy).run(runs).uncached_tokens
    always = Simulation(straight(), replace(roomy, rehits_outputs=True)).run(runs).uncached_tokens
    answers = sum(call.output_tokens for run in runs for call in run.calls[:-1])
    assert 0.9 * answers < never - always < 1.1 * answers


def test_an_answer_takes_room_in_the_cache_until_it_is_evicted() -> None:
    def session(name: str, *sizes: tuple[int, int, float], arrives_at: float = 0.0) -> AgentRun:
        text = Text((640, name))
        return AgentRun(name, name, arrives_at, tuple(ModelCall(text, *size) for size in sizes))

    returning = session("returning", (320, 1, 60.0), (330, 1, 0.0))
    runs = [
        returning,
        session("talks", (17, 300, 0.0), arrives_at=1.0),
        session("asks", (161, 1, 0.0), arrives_at=30),
    ]
    result = Simulation(straight(), World(EngineSpec(40))).run(runs)
    [last] = [turn for turn in result.turns if turn.session_id == "returning" and turn.index == 1]
    assert last.cached_tokens == 320 - 10 * 16


def test_a_refused_client_comes_back_and_its_wait_counts_from_the_first_time() -> None:
    class Refusing:
        def __init__(self) -> None:
            self._scheduler = straight()
            self._refused: set[str] = set()

        def tell(self, fact: Fact, now: float) -> tuple[list[Decision], float | None]:
            if isinstance(fact, Arrived) and fact.turn.session_id not in self._refused:
                self._refused.add(fact.turn.session_id)
                return [Reject(fact.turn.id, Refusal.TOO_LONG, 7.0)], None
            return self._scheduler.tell(fact, now)

    result = Simulation(Refusing(), WORLD).run(plain(FleetShape(3), 1))
    assert result.rejections == 3
    assert all(turn.ttft_s > 7.0 for turn in result.turns if turn.index == 0)


def test_many_replicas_share_the_work_and_sessions_stay_where_their_prefix_is() -> None:
    world = World(EngineSpec(2_500), num_replicas=8)
    result = Simulation(turns(), world).run(plain(FleetShape(80), 1))
    homes: dict[str, set[str]] = {}
    for turn in result.turns:
        homes.setdefault(turn.session_id, set()).add(turn.replica_id)
    assert len(set().union(*homes.values())) == 8
    assert sum(len(replicas) == 1 for replicas in homes.values()) > 70


def test_classes_tenants_and_families_reach_the_scheduler() -> None:
    runs = [replace(run, tenant=run.label) for run in mixed((BOUNDED, HEAVY), 6, 1, 0.05, 0.1)]
    arrived = [fact.turn for fact in facts_of(runs) if isinstance(fact, Arrived)]
    assert {(turn.tenant, turn.family_id) for turn in arrived} == {("bounded", "bounded"), ("heavy", "heavy")}


def test_parent_reaches_the_scheduler_where_a_gateway_can_know_it() -> None:
    shape = Population(4, fixed(2), sub_agents=SubAgents(1, fixed(1), fixed(1)))
    forked = AgentFleet([shape], WORLD).draw(1)
    own = AgentFleet([replace(shape, sub_agents=SubAgents(1, fixed(1), fixed(1), 60))], WORLD).draw(1)
    for runs, is_known in ((forked, True), (own, False)):
        children = {child.id: run.id for run in runs for call in run.calls for child in call.children}
        told = {t.session_id: t.parent_id for f in facts_of(runs) if isinstance(f, Arrived) for t in [f.turn]}
        assert [told[child] for child in children] == [
            parent if is_known else None for parent in children.values()
        ]


def test_calls_that_come_together_are_read_one_after_the_other() -> None:
    runs = [AgentRun(f"s{n}", "f", 0.0, (ModelCall(Text((20, f"s{n}")), 16, 1),)) for n in range(3)]
    at_once = Simulation(straight(), WORLD).run(runs)
    read = Simulation(straight(), replace(WORLD, frontend_s=2.0)).run(runs)
    assert len({turn.first_token_at for turn in at_once.turns}) == 1
    assert [round(turn.ttft_s) for turn in read.turns] == [2, 4, 6]


# ---- a gateway that is restarted in mid-fleet


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_restart_of_the_gateway_loses_no_turn_and_no_session(is_killed: bool) -> None:
    runs = FLEETS["base"].draw(1)
    listener = Listener(turns())
    restart = Restart(9.0, lambda: listener, is_killed)
    result = Simulation(turns(), FLEETS["base"].world, restart).run(runs)
    served = Counter((turn.session_id, turn.index) for turn in result.turns)
    assert served == Counter((run.id, index) for run in runs for index in range(len(run.calls)))
    begun = [fact.turn for at, fact in listener.facts if isinstance(fact, Arrived)]
    told = Counter(turn.session_id for turn in begun if turn.history is not None)
    assert set(told.values()) == {1}
    assert min(at for at, fact in listener.facts if isinstance(fact, Arrived)) >= 9.0 + DOWN_S * is_killed


def test_a_turn_that_ran_while_the_gateway_was_killed_is_computed_again_and_waits_since_the_first_time() -> None:
    runs = FLEETS["base"].draw(1)
    world = FLEETS["base"].world
    (whole, killed) = (Simulation(turns(), world, each).run(runs) for each in (None, Restart(9.0, turns, True)))
    assert killed.makespan_s > whole.makespan_s
    assert max(turn.done_at - turn.wanted_at for turn in killed.turns if turn.wanted_at < 9.0 < turn.done_at) > 3.0
