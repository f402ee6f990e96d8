"""Laws of the fleet benchmark's own arithmetic: its floor, its fairness ratio, its order of cells, its store."""

import asyncio
from pathlib import Path

import pytest

from benchmarks.fleet import report
from benchmarks.fleet.cells import Cell, Figures, figures
from benchmarks.fleet.clients import SessionCapClient, SlotsClient
from benchmarks.fleet.fleets import FleetSpec, Job
from gateway.demo.agents import SessionRecord, TurnRecord
from gateway.demo.workload import PlannedSession, PlannedTurn, Shape
from tests.deadline import DEADLINE_S

FLEET = FleetSpec(Shape(2, (2,)), num_blocks=100)
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


def of(planned: list[PlannedSession], records: list[SessionRecord], hits_answers: bool = False) -> Figures:
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


def test_cells_run_seed_by_seed_each_starting_with_another_arm() -> None:
    job = Job("dynamo", "base", ("a", "b"), (1, 2), others=("c",), other_seeds=(2,))
    assert job.cells() == [("b", 1), ("a", 1), ("c", 2), ("a", 2), ("b", 2)]


def test_stored_cells_come_back_as_they_were(tmp_path: Path) -> None:
    found = of([session(0)], [record(session(0), 1.0)])
    cell = Cell("straight", 1, 0.5, 0.01, found, [[0.0, 1.0, 5.0, 2]], [])
    report.save(tmp_path / "cells.jsonl", {("straight", 1): cell})
    assert report.load(tmp_path / "cells.jsonl") == {("straight", 1): cell}


async def test_session_cap_lets_the_next_session_in_when_one_has_left() -> None:
    client = SessionCapClient(1)
    async with client.place(session(0), 0):
        pass
    waiting = asyncio.ensure_future(client.place(session(1), 0).__aenter__())
    await asyncio.sleep(0)
    assert not waiting.done()
    await client.left(session(0))
    await asyncio.wait_for(waiting, DEADLINE_S)


async def test_free_slot_goes_to_the_session_with_most_turns_done() -> None:
    client, order = SlotsClient(1), []

    async def turn(number: int, index: int) -> None:
        async with client.place(session(number), index):
            order.append(number)

    async with client.place(session(0), 0):
        waiting = [asyncio.ensure_future(turn(number, index)) for number, index in ((1, 0), (2, 1), (3, 1))]
        await asyncio.sleep(0)
    await asyncio.wait_for(asyncio.gather(*waiting), DEADLINE_S)
    assert order == [2, 3, 1]
