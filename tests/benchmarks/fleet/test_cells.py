"""Laws of the figures of a cell: its floor, its means, its fairness ratio."""

from dataclasses import replace

import pytest

from benchmarks.fleet.cells import FleetFigures, figures, workload_of
from benchmarks.simulation.fleets import AgentFleet, Population
from benchmarks.simulation.simulator import World
from benchmarks.simulation.workloads import AgentRun, ModelCall, Text
from gateway.cli.demo_fleet import SessionRecord, TurnRecord

BLOCK_TOKENS = 16


def session(number: int, arrives_at: float = 0.0, label: str = "agent") -> AgentRun:
    text = Text((800, "family"), (1_600, f"s{number}"))
    calls = (ModelCall(text, 1_000, 100, 0.5), ModelCall(text, 1_500, 100, 0.5))
    return AgentRun(f"s{number}", "family", arrives_at, calls, label)


def record(planned: AgentRun, first_token_at: float, failure: str | None = None) -> SessionRecord:
    start = planned.arrives_at
    turns = [
        TurnRecord(0, start, start, first_token_at, first_token_at + 1, 1_000, 0),
        TurnRecord(
            1, first_token_at + 2, first_token_at + 2.5, first_token_at + 3, first_token_at + 4, 1_500, 992
        ),
    ]
    return SessionRecord(planned.id, start, turns, failure)


def of(planned: list[AgentRun], records: list[SessionRecord], hits_answers: bool = False) -> FleetFigures:
    of_run = {record.id: record for record in records}
    return figures(planned, of_run, BLOCK_TOKENS, preemptions=0, hits_answers=hits_answers)


def test_floor_counts_each_distinct_prompt_token_once_in_whole_blocks() -> None:
    planned = [session(0), session(1)]
    found = of(planned, [record(one, 1.0) for one in planned])
    assert found.floor_tokens == 1_000 + (1_500 - 992) + (1_000 - 800) + (1_500 - 992)


def test_floor_leaves_out_answers_that_the_engine_finds_again() -> None:
    assert of([session(0)], [record(session(0), 1.0)], hits_answers=True).floor_tokens == 1_000 + 1_500 - 1_088


def test_sessions_that_fail_are_counted_and_have_no_part_in_the_means() -> None:
    planned = [session(0), session(1)]
    found = of(planned, [record(planned[0], 1.0), record(planned[1], 50.0, "answered 500")])
    assert (found.errors, found.makespan_s) == (1, 5.0)


def test_starts_in_order_of_arrival_are_one_fifo_wait() -> None:
    planned = [session(number, arrives_at=float(number)) for number in range(3)]
    found = of(planned, [record(one, 10.0 + number) for number, one in enumerate(planned)])
    assert found.worst_wait_over_fifo == pytest.approx(1.0)


def test_overtaken_session_is_measured_against_the_start_of_its_place() -> None:
    planned = [session(0), session(1, arrives_at=1.0)]
    found = of(planned, [record(planned[0], 20.0), record(planned[1], 10.0)])
    assert found.worst_wait_over_fifo == pytest.approx(20.0 / 10.0)


def forking(shared: Text, prefix_tokens: int) -> AgentRun:
    """Its first answer starts one sub-agent, which begins with the first tokens of that text."""
    child = AgentRun("c", "family", 0.0, (ModelCall(shared.upto(prefix_tokens, (1_500, "c")), 1_200, 100),))
    first, last = session(0).calls
    return replace(session(0), calls=(replace(first, children=(child,)), last))


@pytest.mark.parametrize(
    ("shared", "prefix_tokens", "found_tokens"),
    [(session(0).calls[0].text, 1_000, 992), (Text((300, "sub")), 300, 0), (Text((800, "family")), 800, 800)],
    ids=["of its parent", "of a family of its own", "of its parent's family"],
)
def test_prompt_that_a_sub_agent_continues_is_no_part_of_its_floor(
    shared: Text, prefix_tokens: int, found_tokens: int
) -> None:
    parent = forking(shared, prefix_tokens)
    turn = TurnRecord(0, 2.0, 2.0, 2.5, 3.0, 1_200, 0)
    found = of([parent], [record(parent, 1.0), SessionRecord("c", 2.0, [turn])])
    assert found.floor_tokens == 1_000 + (1_500 - 992) + (1_200 - found_tokens)


def test_sub_agents_count_by_their_tokens_and_waiting_and_not_as_sessions() -> None:
    parent = forking(session(0).calls[0].text, 1_000)
    turn = TurnRecord(0, 2.0, 2.0, 12.0, 13.0, 1_200, 0)
    found = of([parent], [record(parent, 1.0), SessionRecord("c", 2.0, [turn])])
    assert (found.mean_session_s, found.p99_ttft_first_s, found.prompt_tokens) == (5.0, 1.0, 3_700)
    assert (found.waited_s, found.held_s) == (1.0 + 1.0 + 10.0, 0.5)


def test_each_class_of_sessions_has_its_own_mean() -> None:
    planned = [session(0), session(1, label="chat")]
    found = of(planned, [record(planned[0], 1.0), record(planned[1], 11.0)])
    assert found.mean_of_class_s == {"agent": 5.0, "chat": 15.0}


def test_cell_stands_for_its_fleet_while_sessions_and_engines_are_the_same() -> None:
    fleet = AgentFleet([Population(3)], World())
    other = AgentFleet([Population(3, append_tokens=lambda _: 401.0)], World())
    assert workload_of(fleet, 1) == workload_of(fleet, 1)
    assert len({workload_of(fleet, 1), workload_of(fleet, 2), workload_of(other, 1)}) == 3
    assert workload_of(fleet, 1) != workload_of(replace(fleet, world=World(num_replicas=2)), 1)
