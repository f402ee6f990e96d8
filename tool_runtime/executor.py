"""Executes the calls of one tool within its limits."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tool_runtime.arguments import Schema
from tool_runtime.batching import Groups
from tool_runtime.calling import caught
from tool_runtime.durations import Durations
from tool_runtime.limits import Throttle, claim_of
from tool_runtime.tasks import Tasks
from tool_runtime.types import Context, Json, Tool


class Executor:
    """One tool, its places, and what is known of it. Raises ValueError if its schema is none."""

    def __init__(self, tool: Tool, clock: Callable[[], float], tasks: Tasks) -> None:
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

    async def execute(self, arguments: Json, told: Context, caller: Context, begin: Callable[[], None]) -> object:
        """What the tool returned or raised, exceptions as values. It is `told` a context, and its place is the
        `caller`'s; `begin` is called when it is started."""
        if self._groups is not None:
            return await self._groups.run(arguments, told, caller, begin)
        assert self.tool.run is not None, "a tool has `run` or `run_many`"
        async with self._throttle.place(claim_of(caller)):
            begin()
            return await caught(partial(self.tool.run, arguments, told))
