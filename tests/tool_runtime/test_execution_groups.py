from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.tool_runtime.fakes import ANN, ANY_OBJECT, BOB, EVE, Observed, leave
from tests.tool_runtime.virtual import virtual
from tool_runtime.types import Context, Effect, Json, Limits, Result, Status, Tool, ToolError


@dataclass
class Rows:
    """Looks up several ids in one query that takes a second."""

    answer: Callable[[list[Json]], object] = lambda many: [f"row {one['id']}" for one in many]
    groups: list[list[int]] = field(default_factory=list)
    num_running: int = 0

    async def run_many(self, many: list[Json], context: Context) -> Sequence[object]:
        self.groups.append([one["id"] for one in many])
        self.num_running += 1
        try:
            await asyncio.sleep(1.0)
        finally:
            self.num_running -= 1
        answer: Any = self.answer(many)
        return answer  # type: ignore[no-any-return]

    def tool(self, effect: Effect = Effect.READ_ONLY, max_batch: int = 64, **limits: Any) -> Tool:
        return Tool(
            name="slow",
            description="",
            parameters=ANY_OBJECT,
            run_many=self.run_many,
            effect=effect,
            batch_window_s=0.01,
            max_batch=max_batch,
            limits=Limits(**limits),
        )


def look_up(observed: Observed, row: int, context: Context = ANN) -> asyncio.Task[Result]:
    return observed.begin(f'{{"id": {row}}}', context)


@virtual
async def test_calls_within_the_window_become_one_and_each_gets_its_own_result() -> None:
    rows = Rows()
    observed = Observed(rows.tool())
    calls = [look_up(observed, 1), look_up(observed, 2)]
    await asyncio.sleep(0.005)
    calls.append(look_up(observed, 3, BOB))
    assert [result.text for result in await asyncio.gather(*calls)] == ["row 1", "row 2", "row 3"]
    assert rows.groups == [[1, 2, 3]]
    await look_up(observed, 4)
    assert rows.groups == [[1, 2, 3], [4]]


@virtual
async def test_the_same_call_is_in_a_group_once() -> None:
    rows = Rows()
    observed = Observed(rows.tool())
    results = await asyncio.gather(*(look_up(observed, row) for row in (7, 7, 8, 7)))
    assert [result.text for result in results] == ["row 7", "row 7", "row 8", "row 7"]
    assert rows.groups == [[7, 8]]


@virtual
async def test_destructive_calls_are_in_a_group_as_often_as_they_were_made() -> None:
    rows = Rows()
    observed = Observed(rows.tool(Effect.DESTRUCTIVE))
    await asyncio.gather(look_up(observed, 7), look_up(observed, 7))
    assert rows.groups == [[7, 7]]


@virtual
async def test_a_full_group_does_not_wait_for_its_window() -> None:
    rows = Rows()
    observed = Observed(rows.tool(max_batch=2))
    await asyncio.gather(*(look_up(observed, row) for row in (1, 2)))
    assert asyncio.get_running_loop().time() == 1.0
    await asyncio.gather(*(look_up(observed, row) for row in (1, 2, 3)))
    assert rows.groups == [[1, 2], [1, 2], [3]]


@virtual
async def test_a_group_grows_while_it_waits_for_a_place() -> None:
    rows = Rows()
    observed = Observed(rows.tool(concurrency=1))
    calls = [look_up(observed, 1)]
    for row in (2, 3):
        await asyncio.sleep(0.3)
        calls.append(look_up(observed, row))
    await asyncio.gather(*calls)
    assert rows.groups == [[1], [2, 3]]


@virtual
async def test_tenants_are_not_in_one_group() -> None:
    rows = Rows()
    observed = Observed(rows.tool())
    await asyncio.gather(look_up(observed, 1), look_up(observed, 2, EVE))
    assert sorted(rows.groups) == [[1], [2]]


@virtual
async def test_one_error_does_not_fail_the_group() -> None:
    rows = Rows(answer=lambda many: ["fine", ToolError("no row 2")])
    observed = Observed(rows.tool())
    good, bad = await asyncio.gather(look_up(observed, 1), look_up(observed, 2))
    assert [(good.status, good.text), (bad.status, bad.text)] == [
        (Status.OK, "fine"),
        (Status.ERROR, "Error: no row 2"),
    ]


def fail(many: list[Json]) -> object:
    raise ToolError("the database is down")


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (fail, "the database is down"),
        (lambda many: ["only one"], "answered 2 calls at once with 1 results"),
        (lambda many: "ab", "answered 2 calls at once with str"),
        (lambda many: None, "answered 2 calls at once with NoneType"),
    ],
)
@virtual
async def test_a_group_that_fails_tells_every_member(answer: Callable[[list[Json]], object], said: str) -> None:
    observed = Observed(Rows(answer).tool())
    for result in await asyncio.gather(look_up(observed, 1), look_up(observed, 2)):
        assert result.status is Status.ERROR
        assert said in result.text


@virtual
async def test_who_leaves_before_the_start_is_not_in_the_group() -> None:
    rows = Rows()
    observed = Observed(rows.tool(Effect.DESTRUCTIVE))
    gone, stays = look_up(observed, 1), look_up(observed, 2)
    await asyncio.sleep(0.005)
    await leave(gone)
    await stays
    assert rows.groups == [[2]]
    assert [record.call_id for record in observed.audited] == ["call"]


@virtual
async def test_a_group_that_all_have_left_is_ended() -> None:
    rows = Rows()
    observed = Observed(rows.tool())
    callers = [look_up(observed, 1), look_up(observed, 2)]
    await asyncio.sleep(0.5)
    await leave(callers[0])
    await asyncio.sleep(0)
    assert rows.num_running == 1
    await leave(callers[1])
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert rows.num_running == 0


@virtual
async def test_a_group_that_all_have_left_before_its_start_is_not_started() -> None:
    rows = Rows()
    observed = Observed(rows.tool())
    caller = look_up(observed, 1)
    await asyncio.sleep(0.005)
    await leave(caller)
    assert (await look_up(observed, 2)).text == "row 2"
    assert rows.groups == [[2]]
