"""Identical calls in flight share one execution, which belongs to none of them: the last to leave ends it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from tool_runtime.outcome import Outcome, given_up, not_started, stopped
from tool_runtime.tasks import Tasks
from tool_runtime.types import Tool


class Flight:
    """One execution, and the calls that wait for it. Its outcome is set once."""

    def __init__(self, tool: Tool, clock: Callable[[], float]) -> None:
        loop = asyncio.get_running_loop()
        self.tool = tool
        self.task: asyncio.Task[None] | None = None
        self.num_joined = 0
        self.num_waiting = 0
        self.is_elsewhere = False
        """Another process executed it."""
        self._clock = clock
        self._begun_at: asyncio.Future[float] = loop.create_future()
        self._outcome: asyncio.Future[Outcome] = loop.create_future()

    def begin(self) -> None:
        """The tool is being started."""
        self._begun_at.set_result(self._clock())

    @property
    def has_begun(self) -> bool:
        return self._begun_at.done()

    @property
    def ran_s(self) -> float:
        """For how long the tool has been running."""
        return self._clock() - self._begun_at.result() if self.has_begun else 0.0

    @property
    def has_ended(self) -> bool:
        return self._outcome.done()

    @property
    def is_open(self) -> bool:
        """Whether a call may join. An execution past its timeout is not joined, so that a tool that hangs is tried
        anew, and so that it ends: each call waits for it for one timeout at most."""
        return not self.has_ended and self.ran_s < self.tool.limits.timeout_s

    def end(self, outcome: Outcome) -> None:
        if not self.has_ended:
            self._outcome.set_result(outcome)

    def stop(self) -> None:
        """Let nobody wait any longer."""
        self.end(stopped(self.tool, self.has_begun))

    async def wait(self, until: float) -> Outcome:
        """The outcome for a call that comes now: the execution's, or that its own time was over before."""
        limits, came_at = self.tool.limits, self._clock()
        if not self.has_begun:
            await self._either(self._begun_at, min(came_at + limits.queue_s, until))
        if self.has_begun and not self.has_ended:
            await self._either(self._outcome, min(max(came_at, self._begun_at.result()) + limits.timeout_s, until))
        if self.has_ended:
            return self._outcome.result()
        waited_s = self._clock() - came_at
        return given_up(self.tool, waited_s) if self.has_begun else not_started(self.tool, waited_s)

    async def _either(self, future: asyncio.Future[Any], until: float) -> None:
        """Until the future or the outcome is there, or the time is over."""
        timeout_s = max(0.0, until - self._clock())
        await asyncio.wait({future, self._outcome}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)


class Flights:
    """All executions that calls wait for."""

    def __init__(self, tasks: Tasks, clock: Callable[[], float]) -> None:
        self._tasks = tasks
        self._clock = clock
        self._waited_for: set[Flight] = set()
        self._by_key: dict[bytes, Flight] = {}

    @contextmanager
    def joined(
        self, tool: Tool, key: bytes | None, execute: Callable[[Flight], Coroutine[Any, Any, None]]
    ) -> Iterator[Flight]:
        """A flight to wait for in the body of a `with`: the one with this key, else a new one. `execute` sets its
        outcome. Leaving is synchronous; the last one that leaves cancels an execution that has not ended."""
        flight = self._by_key.get(key) if key is not None else None
        if flight is None or not flight.is_open:
            flight = Flight(tool, self._clock)
            flight.task = self._tasks.start(execute(flight))
            self._waited_for.add(flight)
            if key is not None:
                self._by_key[key] = flight
        flight.num_joined += 1
        flight.num_waiting += 1
        try:
            yield flight
        finally:
            flight.num_waiting -= 1
            if flight.num_waiting == 0:
                self._leave(flight, key)

    def stop(self) -> None:
        """Give an outcome to all who wait."""
        for flight in self._waited_for:
            flight.stop()

    def _leave(self, flight: Flight, key: bytes | None) -> None:
        self._waited_for.discard(flight)
        if key is not None and self._by_key.get(key) is flight:
            del self._by_key[key]
        if not flight.has_ended and flight.task is not None:
            flight.task.cancel()
