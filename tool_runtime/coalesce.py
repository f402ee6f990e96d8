"""What two calls must have in common to share an execution, and what a shared execution is told of its callers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from hashlib import blake2b
from typing import Any

from tool_runtime.arguments import Arguments, canonical_text
from tool_runtime.outcome import Outcome, given_up, not_started, stopped
from tool_runtime.tasks import Tasks
from tool_runtime.types import Context, Effect, Refused, Scope, Tool


def told(tool: Tool, context: Context) -> Context | None:
    """As much of the context as everybody has who may share an execution. None: it may not be shared."""
    history = context.history if tool.is_stateful else None
    if tool.effect is Effect.DESTRUCTIVE or (tool.is_stateful and history is None):
        return None
    match tool.limits.scope:
        case Scope.GLOBAL:
            return Context("", history=history)
        case Scope.TENANT:
            return Context(context.tenant, history=history)
        case Scope.SESSION:
            return Context(context.tenant, context.session_id, history=history) if context.session_id else None


def key_of(tool: Tool, arguments: Arguments, shared: Context) -> bytes:
    """Equal for calls that give the same result. It covers all that the execution is told, so that whoever gets
    a result of another's call would have got it from a call of their own. Raises Refused if `tool.key` fails."""
    try:
        same = arguments.canonical if tool.key is None else tool.key(arguments.value)
    except Exception as error:
        raise Refused(f"{tool.name} cannot tell its calls apart: {type(error).__name__}: {error}") from None
    digest = blake2b(digest_size=32)
    for part in (
        tool.source,
        tool.name,
        shared.tenant,
        shared.session_id,
        same,
        *map(canonical_text, shared.history or ()),
    ):
        data = part.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.digest()


# ---- identical calls in flight share one execution, which belongs to none of them


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
