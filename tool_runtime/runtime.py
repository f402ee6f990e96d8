"""Runs the tool calls of many sessions: from a call to its one result, by cache, shared or own execution."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from types import MappingProxyType

from tool_runtime.arguments import LONG_CHARS, Arguments
from tool_runtime.attempts import Attempt, Claimed, LocalAttempts, SharedExecutions
from tool_runtime.coalesce import Flight, Flights, ResultCache, key_of, shared_context
from tool_runtime.execution import Executor, Tasks, caught, in_thread
from tool_runtime.types import (
    NEVER,
    Approve,
    Call,
    Context,
    Effect,
    Execution,
    Json,
    Origin,
    Outcome,
    Refused,
    Result,
    Status,
    Tool,
    Tools,
    Verdict,
    not_started,
    outcome_of,
    stopped,
)

LOG = logging.getLogger(__name__)

CLOSE_S = 10.0
"""Longest wait for the processes and connections that tools keep between calls to end."""
MAX_NAME_CHARS = 64
"""Longest part of a tool name that a model made up, in the audit and in a refusal."""
MAX_APPROVAL_S = 600.0
"""Longest wait for an approval."""


@dataclass(frozen=True, slots=True)
class Request:
    """A call that may run."""

    executor: Executor
    call: Call
    context: Context
    arguments: Arguments
    shared: Context
    """The part of the context that its execution gets."""
    key: bytes | None
    """Key of the calls that it may share with. None: it shares with none."""
    claim: Callable[[], AbstractAsyncContextManager[Claimed]] | None
    """Claims its execution. None: no other process and no other attempt can have the same one."""


class ToolRuntime:
    """The tools that may be called, and their executions until `close`. It needs no start."""

    def __init__(
        self,
        tools: Iterable[Tool] = (),
        *,
        clock: Callable[[], float],
        approve: Approve | None = None,
        audit: Callable[[Execution], None] = lambda execution: None,
        answered: Callable[[Result], None] = lambda result: None,
        max_cache_bytes: int = 64 * 1024 * 1024,
        shared: SharedExecutions | None = None,
    ) -> None:
        """`audit` gets each execution and refusal, `answered` each result. Neither may raise.

        `shared` shares executions with other processes. Without `approve`, calls of tools that need approval are
        refused. Raises ValueError as `replace` does.
        """
        self._clock = clock
        self._approve = approve
        self._audit = audit
        self._answered = answered
        self._tasks = Tasks()
        self._flights = Flights(self._tasks, clock)
        self._cache = ResultCache(max_cache_bytes)
        self._shared = shared
        self._attempts = LocalAttempts(clock)
        self._executors: dict[str, Executor] = {}
        self._tools: dict[str, Tool] = {}
        self.tools: Tools = MappingProxyType(self._tools)
        """The present tools by name."""
        self._serve(self._with([], tools))

    @property
    def num_cached_bytes(self) -> int:
        """About the memory of results that are served again."""
        return self._cache.num_bytes

    def replace(self, source: str, tools: Iterable[Tool]) -> None:
        """Make `tools` all the tools of one source, e.g. when an MCP server starts, ends or changes its list.

        Raises ValueError, and changes nothing, if a name is taken or parameters are no JSON Schema.
        """
        others = [executor for executor in self._executors.values() if executor.tool.source != source]
        self._serve(self._with(others, tools))

    def attempt(self, answer: bytes, is_retry: bool = False, lost_s: float | None = None) -> Attempt:
        """Return an attempt for the calls of an answer. The arguments are those of `SharedExecutions.attempt`."""
        return (self._shared or self._attempts).attempt(answer, is_retry, lost_s)

    async def run(
        self, call: Call, context: Context, *, timeout_s: float | None = None, attempt: Attempt | None = None
    ) -> Result:
        """Return the result of a call within `timeout_s`, or within the tool's own limits if that is None.

        Raises nothing but CancelledError: errors are results that the model can read.
        """
        came_at = self._clock()
        until = math.inf if timeout_s is None else came_at + timeout_s
        try:
            request = await self._accepted(call, context, until, attempt)
        except Refused as refusal:
            result = self._refused(call, context, str(refusal))
        else:
            result = await self._result(request, until)
        result = replace(result, seconds=self._clock() - came_at)
        self._answered(result)
        return result

    def refuse(self, call: Call, context: Context, reason: str) -> Result:
        """Return the result of a call that its caller may not make, and audit it."""
        result = self._refused(call, context, reason)
        self._answered(result)
        return result

    def expected_s(self, name: str) -> float | None:
        """Return how long nearly all executions of a tool take, as learned. None: not known yet."""
        executor = self._executors.get(name)
        return executor.durations.expected_s if executor is not None else None

    async def close(self) -> None:
        """End all executions. Waiting calls get an outcome, and later calls are refused."""
        kept = [tool.close for tool in self._tools.values() if tool.close is not None]
        self._serve({})
        self._flights.stop()
        await self._tasks.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await asyncio.gather(*map(caught, kept))

    def _serve(self, executors: dict[str, Executor]) -> None:
        self._executors = executors
        self._tools.clear()
        self._tools.update({name: executor.tool for name, executor in executors.items()})

    def _with(self, executors: Iterable[Executor], tools: Iterable[Tool]) -> dict[str, Executor]:
        by_name = {executor.tool.name: executor for executor in executors}
        for tool in tools:
            if other := by_name.get(tool.name):
                raise ValueError(f"two tools are named {tool.name!r}: of {other.tool.source} and of {tool.source}")
            old = self._executors.get(tool.name)
            is_same = old is not None and old.tool == tool
            by_name[tool.name] = old if old and is_same else Executor(tool, self._clock, self._tasks)
        return by_name

    async def _accepted(self, call: Call, context: Context, until: float, attempt: Attempt | None) -> Request:
        """Raises Refused for a call that may not run."""
        executor = self._executors.get(call.name)
        if executor is None:
            raise Refused(f"there is no tool {call.name[:MAX_NAME_CHARS]!r}")
        tool = executor.tool
        read = partial(executor.schema.read, call.arguments)
        arguments = read() if len(call.arguments) <= LONG_CHARS else await in_thread(read)
        shared = shared_context(tool, context)
        key = None if shared is None else key_of(tool, arguments, shared)
        if tool.limits.approval != NEVER:
            verdict = await self._verdict(tool, arguments.value, context, until - self._clock())
            if not verdict.is_approved:
                raise Refused(f"{tool.name} was not run: {verdict.reason}")
        if self._executors.get(call.name) is not executor:
            raise Refused(f"{tool.name} is gone")
        claim = self._claim(tool, arguments, context, key, attempt)
        return Request(executor, call, context, arguments, context if shared is None else shared, key, claim)

    async def _verdict(self, tool: Tool, arguments: Json, context: Context, timeout_s: float) -> Verdict:
        """Return whether a call is approved. Never raises: without a clear yes it is not."""
        if self._approve is None:
            return Verdict(False, "it needs approval, and there is no way to give it here")
        try:
            async with asyncio.timeout(min(timeout_s, MAX_APPROVAL_S)):
                return await self._approve(tool, arguments, context)
        except TimeoutError:
            return Verdict(False, "it needs approval, and none came in time")
        except Exception as error:
            LOG.warning("asking for approval of tool %s failed: %s", tool.name, type(error).__name__)
            return Verdict(False, "it needs approval, and asking for it failed")

    def _claim(
        self, tool: Tool, arguments: Arguments, context: Context, key: bytes | None, attempt: Attempt | None
    ) -> Callable[[], AbstractAsyncContextManager[Claimed]] | None:
        if key is not None:
            return None if self._shared is None else partial(self._shared.claimed, key)
        if attempt is None or tool.effect is not Effect.DESTRUCTIVE:
            return None
        same = key_of(tool, arguments, Context(context.tenant))
        return partial(attempt.claimed, same, stopped(tool, has_begun=True))

    def _refused(self, call: Call, context: Context, reason: str) -> Result:
        executor = self._executors.get(call.name)
        refusal = Execution(
            tool=call.name[:MAX_NAME_CHARS],
            source=executor.tool.source if executor is not None else "",
            call_id=call.id,
            context=replace(context, history=None),
            arguments_sha256=_sha256(call.arguments),
            started_at=self._clock(),
            seconds=0.0,
            status=Status.REFUSED,
            shared_by=1,
        )
        self._audit(refusal)
        return Result(call=call, status=Status.REFUSED, text=f"Error: {reason}")

    async def _result(self, request: Request, until: float) -> Result:
        if request.key is not None and (cached := self._cache.get(request.key, self._clock())) is not None:
            return _result(request.call, cached, Origin.CACHED)
        tool = request.executor.tool
        if self._clock() >= until:
            return _result(request.call, not_started(tool, 0.0), Origin.NONE)
        with self._flights.joined(tool, request.key, partial(self._execute, request)) as flight:
            is_first = flight.num_joined == 1
            outcome = await flight.wait(until)
            origin = Origin.EXECUTED if is_first and not flight.is_elsewhere else Origin.COALESCED
            is_there = flight.has_begun or flight.is_elsewhere
            return _result(request.call, outcome, origin if is_there else Origin.NONE, flight.num_joined)

    async def _execute(self, request: Request, flight: Flight) -> None:
        """Set the outcome of the flight, whatever happens."""
        outcome = None
        try:
            if request.claim is None:
                outcome = await self._execute_here(request, flight)
            else:
                outcome = await self._execute_once(request.claim(), request, flight)
        finally:
            if outcome is not None:
                flight.end(outcome)
            else:
                flight.stop()
            if flight.has_begun:
                self._audit(self._record(request, flight, outcome))

    async def _execute_here(self, request: Request, flight: Flight) -> Outcome:
        executor = request.executor
        value = await executor.execute(request.arguments.value, request.shared, request.context, flight.begin)
        outcome = outcome_of(executor.tool, value, flight.ran_s)
        self._learn(request, outcome)
        return outcome

    async def _execute_once(
        self, claim: AbstractAsyncContextManager[Claimed], request: Request, flight: Flight
    ) -> Outcome:
        """Execute the call here, unless another process or attempt has executed it."""
        async with claim as claimed:
            if claimed.outcome is not None:
                flight.is_elsewhere = True
                return claimed.outcome
            outcome = await self._execute_here(request, flight)
            claimed.kept, claimed.ttl_s = outcome, self._ttl_s(request, outcome)
            return outcome

    def _ttl_s(self, request: Request, outcome: Outcome) -> float:
        limits = request.executor.tool.limits
        return limits.ttl_s if outcome.status is Status.OK else limits.negative_ttl_s

    def _record(self, request: Request, flight: Flight, outcome: Outcome | None) -> Execution:
        tool, seconds = request.executor.tool, flight.ran_s
        lost = Status.UNKNOWN if tool.effect is Effect.DESTRUCTIVE else Status.CANCELLED
        return Execution(
            tool=tool.name,
            source=tool.source,
            call_id=request.call.id,
            context=replace(request.context, history=None),
            arguments_sha256=_sha256(request.arguments.canonical),
            started_at=self._clock() - seconds,
            seconds=seconds,
            status=lost if outcome is None else outcome.status,
            shared_by=flight.num_joined,
            error="" if outcome is None else outcome.error,
        )

    def _learn(self, request: Request, outcome: Outcome) -> None:
        if outcome.status is Status.OK:
            request.executor.durations.saw(outcome.seconds)
        ttl_s = self._ttl_s(request, outcome)
        if request.key is not None and ttl_s > 0:
            self._cache.put(request.key, outcome, self._clock() + ttl_s)


def _result(call: Call, outcome: Outcome, origin: Origin, shared_by: int = 1) -> Result:
    return Result(
        call=call,
        status=outcome.status,
        text=outcome.text,
        origin=origin,
        saved_s=outcome.seconds if origin in (Origin.COALESCED, Origin.CACHED) else 0.0,
        is_truncated=outcome.is_truncated,
        shared_by=shared_by,
    )


def _sha256(text: str) -> str:
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
