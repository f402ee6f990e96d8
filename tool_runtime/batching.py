"""Calls of one tool that come close together become one call of its `run_many`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from tool_runtime.calling import caught
from tool_runtime.limits import Claim, Throttle, claim_of
from tool_runtime.tasks import Tasks
from tool_runtime.types import Context, Json, RunMany, ToolError


@dataclass(slots=True, eq=False)
class _Member:
    arguments: Json
    begin: Callable[[], None]
    value: asyncio.Future[object] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    """Result or exception; cancelled when its call is."""


@dataclass(slots=True, eq=False)
class _Group:
    claim: Claim
    """For all tenants that have a call in it."""
    members: list[_Member] = field(default_factory=list)
    is_full: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None


class Groups:
    """A group is told one context. It takes members for its window, and on while it waits for a place."""

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
        """What the group's call gave at this call's position, exceptions as values; `begin` is told its start."""
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
                group.task.cancel()  # nobody is left who waits for it
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
    return [ToolError(f"the tool answered {size} calls at once with {given}, so they cannot be told apart")] * size
