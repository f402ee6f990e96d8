"""Executes tools: foreign code whose errors become values, blocking functions in threads, calls in groups."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from tool_runtime.arguments import Schema
from tool_runtime.places import Claim, Throttle, claim_of
from tool_runtime.types import Context, Json, OutcomeUnknown, RunMany, Tool, ToolError

T = TypeVar("T")


async def caught(call: Callable[[], Awaitable[object]]) -> object:
    """Return the value of `call`, or the exception that it raised. Only a cancellation of this task passes."""
    try:
        return await call()
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        return OutcomeUnknown("the tool cancelled itself")  # the leaking cancel scope of a library
    except (Exception, SystemExit) as error:
        return error


async def in_thread(call: Callable[[], T]) -> T:
    """Return or raise what a blocking `call` does.

    A thread cannot be stopped. When cancelled, this ends with the call, so that its place stays taken until then.
    A second cancellation leaves the thread behind.
    """
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    values: list[T] = []
    errors: list[BaseException] = []

    def target() -> None:
        try:
            values.append(call())
        except BaseException as error:  # raised in the caller's task
            errors.append(error)
        with suppress(RuntimeError):  # the loop was closed and the thread left behind
            loop.call_soon_threadsafe(ended.set)

    # A thread of its own: a pool would bound all tools together, and the exit of the process would wait for it.
    threading.Thread(target=contextvars.copy_context().run, args=(target,), name="tool", daemon=True).start()
    try:
        await ended.wait()
    except asyncio.CancelledError:
        await ended.wait()
        raise
    if errors:
        raise errors[0]
    return values[0]


GRACE_S = 5.0
"""Time for tools to end after they were cancelled. A thread that runs longer is left behind."""


class Tasks:
    """Tasks that outlive the calls that started them, and end together."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    async def close(self) -> None:
        """Cancel all tasks, and a second time those that did not end."""
        for timeout_s in (GRACE_S, 0.1):
            for task in self._running:
                task.cancel()
            if self._running:
                await asyncio.wait(self._running, timeout=timeout_s)


REMEMBERED = 64
QUANTILE = 0.9


class Durations:
    """How long the last executions of one tool took, which foretells the next one."""

    def __init__(self) -> None:
        self._seconds: deque[float] = deque(maxlen=REMEMBERED)

    def saw(self, seconds: float) -> None:
        self._seconds.append(seconds)

    @property
    def expected_s(self) -> float | None:
        """The duration that nine in ten of the last executions kept. None: there was none."""
        ordered = sorted(self._seconds)
        return ordered[int(QUANTILE * (len(ordered) - 1) + 0.5)] if ordered else None


# ---- calls of one tool that come close together become one call of its `run_many`


@dataclass(slots=True, eq=False)
class _Member:
    arguments: Json
    begin: Callable[[], None]
    value: asyncio.Future[object] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    """Result or exception; cancelled when its call is."""


@dataclass(slots=True, eq=False)
class _Group:
    claim: Claim
    """The claim of all tenants that have a call in the group."""
    members: list[_Member] = field(default_factory=list)
    is_full: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None


class Groups:
    """The open groups of one tool, one per context. A group admits calls until it has a place."""

    def __init__(
        self, run_many: RunMany, window_s: float, max_size: int, throttle: Throttle, tasks: Tasks
    ) -> None:
        self._run_many = run_many
        self._window_s = window_s
        self._max_size = max_size
        self._throttle = throttle
        self._tasks = tasks
        self._open: dict[Context, _Group] = {}

    async def run(self, arguments: Json, context: Context, caller: Context, begin: Callable[[], None]) -> object:
        """Return the group's value at this call's position, or the exception. `begin` is called at its start."""
        group = self._open.get(context) or self._opened(context, caller)
        self._throttle.join(group.claim, caller)
        member = _Member(arguments, begin)
        group.members.append(member)
        if len(group.members) >= self._max_size:
            self._shut(context, group)
        try:
            return await member.value
        except asyncio.CancelledError:
            if group.task is not None and all(m.value.done() for m in group.members):
                group.task.cancel()  # its last waiting call has left
                self._shut(context, group)
            raise

    def _opened(self, context: Context, caller: Context) -> _Group:
        group = self._open[context] = _Group(claim_of(caller))
        group.task = self._tasks.start(self._execute(context, group))
        return group

    def _shut(self, context: Context, group: _Group) -> None:
        group.is_full.set()
        if self._open.get(context) is group:
            del self._open[context]

    async def _execute(self, context: Context, group: _Group) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(self._window_s):
                await group.is_full.wait()
        async with self._throttle.place(group.claim):
            self._shut(context, group)
            members = [member for member in group.members if not member.value.done()]
            for member in members:
                member.begin()
            many = [member.arguments for member in members]
            values = _by_position(await caught(partial(self._run_many, many, context)), len(members))
        for member, value in zip(members, values, strict=True):
            if not member.value.done():
                member.value.set_result(value)


def _by_position(values: object, size: int) -> Sequence[object]:
    if isinstance(values, BaseException):
        return [values] * size
    if isinstance(values, Sequence) and not isinstance(values, str | bytes) and len(values) == size:
        return values
    given = f"{len(values)} results" if isinstance(values, list | tuple) else type(values).__name__
    return [
        ToolError(f"the tool answered {size} calls at once with {given}, so none can be matched to its call")
    ] * size


class Executor:
    """One tool with its schema, its places and its past durations."""

    def __init__(self, tool: Tool, clock: Callable[[], float], tasks: Tasks) -> None:
        """Raises ValueError if the tool's parameters are no JSON Schema."""
        self.tool = tool
        self.durations = Durations()
        try:
            self.schema = Schema(tool.parameters)
        except ValueError as error:
            raise ValueError(f"tool {tool.name!r}: {error}") from None
        self._throttle = Throttle(tool.limits, clock)
        self._groups: Groups | None = None
        if tool.run_many is not None:
            self._groups = Groups(tool.run_many, tool.batch_window_s, tool.max_batch, self._throttle, tasks)

    async def execute(
        self, arguments: Json, context: Context, caller: Context, begin: Callable[[], None]
    ) -> object:
        """Return what the tool returned or raised, exceptions as values.

        The tool gets `context`, and `caller` pays for its place. `begin` is called when the tool starts.
        """
        if self._groups is not None:
            return await self._groups.run(arguments, context, caller, begin)
        assert self.tool.run is not None, "a tool has `run` or `run_many`"
        async with self._throttle.place(claim_of(caller)):
            begin()
            return await caught(partial(self.tool.run, arguments, context))
