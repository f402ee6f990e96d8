"""Attempts at one answer in one process: what a lost one has started is not started again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tool_runtime import attempts
from tool_runtime.attempts import LocalAttempts
from tool_runtime.runtime import ToolRuntime
from tool_runtime.types import Call, Context, Effect, Outcome, Result, Status, Tool

UNKNOWN = Outcome(Status.UNKNOWN, "nobody knows")


class Ordering:
    """A runtime whose tool counts."""

    def __init__(self, effect: Effect = Effect.DESTRUCTIVE) -> None:
        self.num_runs = 0
        self.now = 0.0
        order = Tool(name="order", description="", parameters={"type": "object"}, run=self._order, effect=effect)
        self.runtime = ToolRuntime([order], clock=lambda: self.now)

    async def _order(self, arguments: Any, context: Context) -> str:
        self.num_runs += 1
        return f"order {self.num_runs}"

    async def lose(self, num_calls: int) -> None:
        """An answer with so many calls, whose client does not get it."""
        attempt = self.runtime.attempt(b"one")
        for _ in range(num_calls):
            await self.runtime.run(Call("c", "order", "{}"), Context("a"), attempt=attempt)
        attempt.ended(is_whole=False)

    async def again(self, num_calls: int) -> list[str]:
        attempt = self.runtime.attempt(b"one")
        call = Call("c", "order", "{}")
        results: list[Result] = [
            await self.runtime.run(call, Context("a"), attempt=attempt) for _ in range(num_calls)
        ]
        attempt.ended(is_whole=True)
        return [result.text for result in results]


async def test_each_call_of_a_lost_answer_stands_for_one_of_the_next() -> None:
    ordering = Ordering()
    await ordering.lose(2)
    assert await ordering.again(3) == ["order 1", "order 2", "order 3"]
    assert ordering.num_runs == 3
    assert await ordering.again(1) == ["order 4"], "that one arrived: this is a new one"


async def test_what_is_lost_twice_is_still_known() -> None:
    ordering = Ordering()
    await ordering.lose(1)
    await ordering.lose(1)
    assert await ordering.again(1) == ["order 1"]


async def test_calls_that_may_be_repeated_are() -> None:
    ordering = Ordering(Effect.IDEMPOTENT)
    await ordering.lose(1)
    assert await ordering.again(1) == ["order 2"]


async def test_nothing_is_known_after_hours() -> None:
    ordering = Ordering()
    await ordering.lose(1)
    ordering.now += attempts.KEPT_S
    assert await ordering.again(1) == ["order 2"]


async def test_a_call_that_was_interrupted_is_told_as_unknown() -> None:
    kept = LocalAttempts(lambda: 0.0)
    lost = kept.attempt(b"one")
    with pytest.raises(asyncio.CancelledError):
        async with lost.claimed(b"key", UNKNOWN):
            raise asyncio.CancelledError
    lost.ended(is_whole=False)
    async with kept.attempt(b"one").claimed(b"key", UNKNOWN) as claimed:
        assert claimed.outcome == UNKNOWN


async def test_what_was_lost_first_is_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "MAX_LOST", 2)
    kept = LocalAttempts(lambda: 0.0)
    for key in (b"1", b"2", b"3"):
        kept.lose(key, UNKNOWN)
    assert [kept.take(key) for key in (b"1", b"2", b"3")] == [None, UNKNOWN, UNKNOWN]


async def of(kept: LocalAttempts, lost_s: float | None = None, num: int = 1) -> list[Outcome | None]:
    """What an attempt is told of so many equal calls; None: it starts the call."""
    attempt, told = kept.attempt(b"one", lost_s=lost_s), []
    for _ in range(num):
        async with attempt.claimed(b"key", UNKNOWN) as claimed:
            told.append(claimed.outcome)
            claimed.kept = Outcome(Status.OK, "done")
    return told


async def test_what_a_process_before_this_one_may_have_started_is_not_started_again() -> None:
    now = [1000.0]
    kept = LocalAttempts(lambda: now[0])
    now[0] += 25.0
    assert await of(kept, lost_s=40.0, num=2) == [UNKNOWN, None], (
        "the model was told, and asks for it all the same"
    )
    now[0] += 100.0
    assert await of(kept, lost_s=90.0) == [None], "that was asked of this process, which has not started it"


async def test_an_attempt_that_its_client_has_lost_starts_nothing_any_more() -> None:
    now = [1000.0]
    kept = LocalAttempts(lambda: now[0])
    now[0] += 3600.0
    lost = kept.attempt(b"one")
    async with lost.claimed(b"key", UNKNOWN) as first:
        assert first.outcome is None
    now[0] += 5.0
    assert await of(kept, lost_s=5.2) == [UNKNOWN]
    async with lost.claimed(b"other", UNKNOWN) as late:
        assert late.outcome == UNKNOWN
    lost.ended(is_whole=False)


async def test_what_an_answer_has_started_that_ended_well_and_was_lost_on_its_way_is_known() -> None:
    now = [1000.0]
    kept = LocalAttempts(lambda: now[0])
    now[0] += 3600.0
    assert await of(kept) == [None]
    kept._latest[b"one"].ended(is_whole=True)
    now[0] += 1.0
    assert await of(kept, lost_s=1.1) == [Outcome(Status.OK, "done")]
    kept._latest[b"one"].ended(is_whole=True)
    now[0] += 60.0
    assert await of(kept) == [None], "and asked once more, it is another one"
