"""Identical calls in flight: who runs, who waits, who leaves."""

from __future__ import annotations

import asyncio

import pytest

from tests.tool_runtime.fakes import ANN, BOB, Observed, Slow, leave, raising
from tests.tool_runtime.virtual import virtual
from tool_runtime.types import Effect, Origin, Status, ToolError

SHARED = (Effect.READ_ONLY, Effect.IDEMPOTENT)


@pytest.mark.parametrize("effect", SHARED)
@virtual
async def test_identical_calls_in_flight_run_once(effect: Effect) -> None:
    slow = Slow()
    observed = Observed(slow.tool(effect))
    calls = [observed.begin('{"a": 1, "b": 2}'), observed.begin('{"b":2,"a":1}', BOB)]
    first, second = await asyncio.gather(*calls)
    assert [first.text, second.text] == ["answer 1", "answer 1"]
    assert [first.origin, second.origin] == [Origin.EXECUTED, Origin.COALESCED]
    assert [first.saved_s, second.saved_s] == [0.0, 1.0]
    assert second.shared_by == 2
    assert [record.shared_by for record in observed.audited] == [2]


@virtual
async def test_different_calls_run_side_by_side() -> None:
    slow = Slow()
    observed = Observed(slow.tool())
    results = await asyncio.gather(observed.begin('{"a": 1}'), observed.begin('{"a": 2}'))
    assert [result.text for result in results] == ["answer 1", "answer 2"]
    assert asyncio.get_running_loop().time() == 1.0


@virtual
async def test_a_destructive_call_shares_with_nobody() -> None:
    slow = Slow()
    observed = Observed(slow.tool(Effect.DESTRUCTIVE))
    results = await asyncio.gather(observed.begin(), observed.begin())
    assert {result.text for result in results} == {"answer 1", "answer 2"}


@virtual
async def test_a_first_caller_that_leaves_hands_over() -> None:
    slow = Slow()
    observed = Observed(slow.tool())
    first, second = observed.begin(), observed.begin(context=BOB)
    await asyncio.sleep(0.5)
    await leave(first)
    assert (await second).text == "answer 1"
    assert (len(slow.started), slow.num_cancelled) == (1, 0)


@virtual
async def test_a_first_caller_whose_time_is_over_hands_over() -> None:
    slow = Slow(seconds=3.0)
    observed = Observed(slow.tool())
    first, second = observed.begin(timeout_s=1.0), observed.begin(context=BOB)
    assert (await first).status is Status.TIMEOUT
    assert asyncio.get_running_loop().time() == 1.0
    assert (await second).text == "answer 1"
    assert len(slow.started) == 1


@virtual
async def test_a_later_caller_has_a_timeout_of_its_own() -> None:
    slow = Slow(seconds=12.0)
    observed = Observed(slow.tool(timeout_s=10.0))
    first = observed.begin()
    await asyncio.sleep(5.0)
    second = observed.begin()
    assert (await first).status is Status.TIMEOUT
    assert (await second).status is Status.OK
    assert asyncio.get_running_loop().time() == 12.0


@virtual
async def test_an_execution_past_its_timeout_is_joined_by_nobody() -> None:
    slow = Slow(seconds=1_000.0)
    observed = Observed(slow.tool(timeout_s=10.0))
    first = observed.begin()
    await asyncio.sleep(9.0)
    second = observed.begin()
    await first
    assert (slow.num_running, slow.num_cancelled) == (1, 0)
    slow.seconds = 1.0
    assert (await observed.begin()).text == "answer 2"
    assert (await second).status is Status.TIMEOUT
    await asyncio.sleep(0)
    assert (slow.num_running, slow.num_cancelled) == (0, 1)


@virtual
async def test_the_end_of_an_old_execution_leaves_its_successor_open() -> None:
    slow = Slow(seconds=12.0)
    observed = Observed(slow.tool(timeout_s=10.0))
    observed.begin()
    await asyncio.sleep(9.0)
    second = observed.begin()
    await asyncio.sleep(2.0)
    slow.seconds = 5.0
    third = observed.begin()
    assert (await second).text == "answer 1"
    fourth = observed.begin()
    assert (await third).text == (await fourth).text == "answer 2"


@virtual
async def test_the_last_caller_that_leaves_ends_the_execution() -> None:
    slow = Slow()
    observed = Observed(slow.tool())
    callers = [observed.begin(), observed.begin()]
    await asyncio.sleep(0.5)
    await leave(callers[0])
    assert slow.num_running == 1
    await leave(callers[1])
    assert slow.num_running == 0
    assert [record.status for record in observed.audited] == [Status.CANCELLED]


@virtual
async def test_a_call_after_the_last_one_left_runs_anew() -> None:
    slow = Slow()
    observed = Observed(slow.tool())
    await leave(observed.begin())
    first = observed.begin()
    await asyncio.sleep(0.5)
    await leave(first)
    assert (await observed.begin()).text == "answer 2"


@virtual
async def test_an_error_is_shared_but_not_kept() -> None:
    slow = Slow(answer=raising(ToolError("no such page")))
    observed = Observed(slow.tool())
    results = await asyncio.gather(observed.begin(), observed.begin())
    assert [(result.status, result.text) for result in results] == [(Status.ERROR, "Error: no such page")] * 2
    await observed.begin()
    assert len(slow.started) == 2


@virtual
async def test_a_caller_without_time_starts_nothing() -> None:
    slow = Slow()
    observed = Observed(slow.tool())
    assert (await observed.begin(context=ANN, timeout_s=0.0)).origin is Origin.NONE
    assert slow.started == []
    assert observed.audited == []
