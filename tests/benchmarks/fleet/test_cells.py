"""Laws of the figures of a cell: its floor, its means, its fairness ratio."""

import pytest

from benchmarks.fleet.cells import FleetFigures, figures
from benchmarks.fleet.fleets import FleetSpec
from gateway.cli.demo_fleet import FleetShape, PlannedSession, PlannedTurn, SessionRecord, TurnRecord

FLEET = FleetSpec(FleetShape(2, (2,)), num_blocks=100)
TURNS = (PlannedTurn(1_000, 100, 0.5), PlannedTurn(1_500, 100, 0.5))


def session(number: int, arrives_at: float = 0.0) -> PlannedSession:
    return PlannedSession(f"s{number}", "family", arrives_at, 800, TURNS)


def record(planned: PlannedSession, first_token_at: float, failure: str | None = None) -> SessionRecord:
    start = planned.arrives_at
    turns = [
        TurnRecord(0, start, start, first_token_at, first_token_at + 1, 1_000, 0),
        TurnRecord(1, first_token_at + 2, 0, first_token_at + 3, first_token_at + 4, 1_500, 992),
    ]
    return SessionRecord(planned.id, start, turns, failure)


def of(planned: list[PlannedSession], records: list[SessionRecord], hits_answers: bool = False) -> FleetFigures:
    return figures(FLEET, planned, records, preemptions=0, hits_answers=hits_answers)


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
