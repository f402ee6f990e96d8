"""Calls, departures, time, errors, crashes and restarts in any order, against the laws of sharing."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from functools import partial

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.tool_runtime.stage import QUEUE_S, TIMEOUT_S, TTL_S, Stage, Started
from tests.tool_runtime.virtual import VirtualLoop
from tool_runtime.runtime import ToolRuntime
from tool_runtime.types import (
    Call,
    Context,
    Effect,
    Execution,
    Origin,
    OutcomeUnknown,
    Result,
    Status,
    Tool,
    ToolError,
)

PICK = st.integers(0, 99)
WISH = st.tuples(
    st.sampled_from([0, 0, 1, 1, 2, 3, 4]),
    st.sampled_from("aaab"),
    st.sampled_from(["acme", "acme", "rival"]),
    st.sampled_from([None, None, 0.0, 1.0, 12.0, 40.0]),
)
"""What somebody calls: tool, key, tenant, own timeout."""


@dataclass(eq=False)
class Caller:
    """One request for a call."""

    id: str
    tool: Tool
    key: str
    context: Context
    came_at: float
    timeout_s: float | None
    task: asyncio.Task[Result]
    has_left: bool = False
    ended_at: float = field(default=0.0)

    @property
    def latest(self) -> float:
        """When it has its outcome at the latest: it may wait for a place, and then for an end."""
        own = QUEUE_S + TIMEOUT_S
        return self.came_at + (own if self.timeout_s is None else min(own, self.timeout_s))

    @property
    def is_waiting(self) -> bool:
        return not self.task.done()


class Calls(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = VirtualLoop()
        self.callers: list[Caller] = []
        self.results: list[Result] = []
        self.audited: list[Execution] = []
        self.broken_at: set[float] = set()
        """When an execution failed, or the runtime was closed."""
        self.stage = Stage(self.loop)
        self.tools = self.stage.tools()
        self.runtime = self.make_runtime()

    def make_runtime(self) -> ToolRuntime:
        return ToolRuntime(
            self.tools, clock=self.loop.time, audit=self.audited.append, answered=self.results.append
        )

    def settle(self, seconds: float = 0.0) -> None:
        async def pass_by() -> None:
            await asyncio.sleep(seconds)
            for _ in range(20):  # longer than any chain of callbacks
                await asyncio.sleep(0)

        self.loop.run_until_complete(pass_by())

    @property
    def waiting(self) -> list[Caller]:
        return [caller for caller in self.callers if caller.is_waiting]

    # -- what can happen

    @rule(wishes=st.lists(WISH, min_size=1, max_size=4))
    def call(self, wishes: list[tuple[int, str, str, float | None]]) -> None:
        for which, key, tenant, timeout_s in wishes:
            tool = self.tools[which]
            call = Call(f"call-{len(self.callers)}", tool.name, f'{{"key": "{key}"}}')
            context = Context(tenant, f"session of {tenant}", turn_id=call.id)
            task = self.loop.create_task(self.runtime.run(call, context, timeout_s=timeout_s))
            caller = Caller(call.id, tool, key, context, self.loop.time(), timeout_s, task)
            task.add_done_callback(partial(self.ended, caller))
            self.callers.append(caller)
        self.settle()

    def ended(self, caller: Caller, task: asyncio.Task[Result]) -> None:
        caller.ended_at = self.loop.time()

    @precondition(lambda self: self.waiting)
    @rule(pick=PICK)
    def leave(self, pick: int) -> None:
        caller = self.waiting[pick % len(self.waiting)]
        caller.has_left = True
        caller.task.cancel()
        self.settle()

    @rule(seconds=st.sampled_from([0.125, 0.625, 4.0, 6.0, 9.0]))
    def wait(self, seconds: float) -> None:
        self.settle(seconds)

    @precondition(lambda self: self.stage.running)
    @rule(pick=PICK, error=st.none() | st.sampled_from([ToolError("no"), OutcomeUnknown("crashed")]))
    def end(self, pick: int, error: Exception | None) -> None:
        started = self.stage.running[pick % len(self.stage.running)]
        if error is None:
            started.end.set_result(None)
        else:
            started.end.set_exception(error)
            self.broken_at.add(self.loop.time())
        self.settle()

    @precondition(lambda self: self.stage.running)
    @rule(pick=PICK, in_time=st.booleans())
    def end_as_a_caller_leaves(self, pick: int, in_time: bool) -> None:
        """Both in one step of the loop, in either order."""
        started, waiting = self.stage.running[pick % len(self.stage.running)], self.waiting
        caller = waiting[pick % len(waiting)]
        for step in (True, False) if in_time else (False, True):
            if step:
                started.end.set_result(None)
            else:
                caller.has_left = True
                caller.task.cancel()
        self.settle()

    @precondition(lambda self: len(self.callers) % 5 == 4)  # now and then, so that much can happen in between
    @rule()
    def restart(self) -> None:
        before = self.waiting
        self.loop.run_until_complete(self.runtime.close())
        self.settle()
        assert self.stage.running == []
        for caller in before:
            assert caller.task.result().status in (Status.ERROR, Status.UNKNOWN)
        self.runtime = self.make_runtime()
        self.broken_at.add(self.loop.time())

    # -- what holds

    @invariant()
    def every_caller_gets_one_outcome_in_time(self) -> None:
        told = Counter(result.call.id for result in self.results)
        for caller in self.callers:
            assert caller.is_waiting or caller.ended_at <= caller.latest
            assert not caller.is_waiting or self.loop.time() < caller.latest
            if not caller.is_waiting:
                assert caller.task.cancelled() <= caller.has_left
                assert told[caller.id] == (0 if caller.task.cancelled() else 1)

    @invariant()
    def nobody_is_failed_by_another_who_leaves(self) -> None:
        for caller in self.callers:
            if caller.is_waiting or caller.task.cancelled():
                continue
            waited_s, status = caller.ended_at - caller.came_at, caller.task.result().status
            patience_s = TIMEOUT_S if caller.timeout_s is None else min(TIMEOUT_S, caller.timeout_s)
            is_timeout = waited_s >= patience_s
            assert status is Status.OK or caller.ended_at in self.broken_at or is_timeout

    @invariant()
    def nothing_runs_for_more_than_two_timeouts(self) -> None:
        assert all(self.loop.time() < started.at + 2 * TIMEOUT_S for started in self.stage.running)

    @invariant()
    def a_destructive_call_is_started_once_or_its_caller_knows_that_it_was_not(self) -> None:
        starts = Counter(started.context.turn_id for started in self.stage.started if started.tool == "write")
        for caller in self.callers:
            if caller.tool.effect is not Effect.DESTRUCTIVE:
                continue
            assert starts[caller.id] <= 1
            if not caller.is_waiting and not caller.task.cancelled():
                result = caller.task.result()
                never_ran = result.status in (Status.TIMEOUT, Status.REFUSED) or result.origin is Origin.NONE
                assert starts[caller.id] == (0 if never_ran else 1)

    @invariant()
    def a_result_is_of_the_same_call_of_the_same_tenant(self) -> None:
        for caller in self.callers:
            if caller.is_waiting or caller.task.cancelled() or caller.task.result().status is not Status.OK:
                continue
            result = caller.task.result()
            number, _, key = result.text.partition("/")
            started = self.stage.started[int(number)]
            assert (started.tool, key, started.context.tenant) == (
                caller.tool.name,
                caller.key,
                caller.context.tenant,
            )
            if result.origin is Origin.CACHED:
                assert caller.came_at < started.ended_at + TTL_S
            else:
                assert started.ended_at >= caller.came_at
            if caller.tool.effect is Effect.DESTRUCTIVE:
                assert started.context == caller.context

    @invariant()
    def identical_calls_run_once_until_a_timeout_is_over(self) -> None:
        young = Counter(
            (started.tool, key, started.context.tenant)
            for started in self.stage.running
            for key in started.keys
            if started.tool != "write" and self.loop.time() - started.at < TIMEOUT_S
            if not self.was_left(started, key)
        )
        assert all(number == 1 for number in young.values())

    def was_left(self, started: Started, key: str) -> bool:
        """A group runs on for its other members when nobody waits for one of them any more."""
        return started.tool == "rows" and not any(
            (caller.tool.name, caller.key, caller.context.tenant) == ("rows", key, started.context.tenant)
            for caller in self.waiting
            if caller.came_at <= started.at
        )

    @invariant()
    def nothing_runs_that_nobody_waits_for(self) -> None:
        wanted = {(caller.tool.name, caller.key, caller.context.tenant) for caller in self.waiting}
        for started in self.stage.running:
            assert any((started.tool, key, started.context.tenant) in wanted for key in started.keys)

    @invariant()
    def every_start_that_has_ended_was_audited(self) -> None:
        ended = Counter(
            started.tool for started in self.stage.started for _ in started.keys if not started.is_running
        )
        assert Counter(record.tool for record in self.audited) >= ended

    def teardown(self) -> None:
        self.restart()
        self.every_caller_gets_one_outcome_in_time()
        assert asyncio.all_tasks(self.loop) == set()
        self.loop.close()


TestCalls = Calls.TestCase
TestCalls.settings = settings(max_examples=150, stateful_step_count=40)
