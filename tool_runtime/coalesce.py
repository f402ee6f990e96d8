"""Equal calls share one execution while it is in flight, and its result for a while after it."""

from __future__ import annotations

import asyncio
import sys
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from tool_runtime.arguments import Arguments, canonical_text
from tool_runtime.execution import Tasks
from tool_runtime.types import Context, Effect, Outcome, Refused, Scope, Tool, given_up, not_started, stopped


def shared_context(tool: Tool, context: Context) -> Context | None:
    """Return the part of the context that all callers of a shared execution have in common.

    None: the call may not be shared.
    """
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
    """Return a key that is equal for calls with the same result.

    It covers the whole context of the execution, so a caller that gets the result of another's call would have got
    the same one from a call of its own. Raises Refused if `tool.key` fails.
    """
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


class Flight:
    """One execution and the calls that wait for it. It belongs to none of them, and its outcome is set once."""

    def __init__(self, tool: Tool, clock: Callable[[], float]) -> None:
        loop = asyncio.get_running_loop()
        self.tool = tool
        self.task: asyncio.Task[None] | None = None
        self.num_joined = 0
        self.num_waiting = 0
        self.is_elsewhere = False
        """Whether another process, or an earlier attempt, executed it."""
        self._clock = clock
        self._begun_at: asyncio.Future[float] = loop.create_future()
        self._outcome: asyncio.Future[Outcome] = loop.create_future()

    def begin(self) -> None:
        """Note that the tool starts now."""
        self._begun_at.set_result(self._clock())

    @property
    def has_begun(self) -> bool:
        return self._begun_at.done()

    @property
    def ran_s(self) -> float:
        """Time that the tool has been running."""
        return self._clock() - self._begun_at.result() if self.has_begun else 0.0

    @property
    def has_ended(self) -> bool:
        return self._outcome.done()

    @property
    def is_open(self) -> bool:
        """Whether a call may join. No call joins an execution past its timeout: so a tool that hangs is tried
        again, and the hanging execution ends, since each call waits for one timeout at most."""
        return not self.has_ended and self.ran_s < self.tool.limits.timeout_s

    def end(self, outcome: Outcome) -> None:
        if not self.has_ended:
            self._outcome.set_result(outcome)

    def stop(self) -> None:
        """Give all waiting calls an outcome now."""
        self.end(stopped(self.tool, self.has_begun))

    async def wait(self, until: float) -> Outcome:
        """Return the outcome for a call that arrives now: the execution's, or a time-out of its own."""
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
        """Wait until the future or the outcome is set, or the time is over."""
        timeout_s = max(0.0, until - self._clock())
        await asyncio.wait({future, self._outcome}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)


class Flights:
    """The executions that calls wait for."""

    def __init__(self, tasks: Tasks, clock: Callable[[], float]) -> None:
        self._tasks = tasks
        self._clock = clock
        self._waited_for: set[Flight] = set()
        self._by_key: dict[bytes, Flight] = {}

    @contextmanager
    def joined(
        self, tool: Tool, key: bytes | None, execute: Callable[[Flight], Coroutine[Any, Any, None]]
    ) -> Iterator[Flight]:
        """Give the body of a `with` a flight to wait for: the open one of this key, else a new one.

        `execute` sets its outcome. Leaving is synchronous. The last call that leaves ends an unfinished execution.
        """
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
        """Give all waiting calls an outcome now."""
        for flight in self._waited_for:
            flight.stop()

    def _leave(self, flight: Flight, key: bytes | None) -> None:
        self._waited_for.discard(flight)
        if key is not None and self._by_key.get(key) is flight:
            del self._by_key[key]
        if not flight.has_ended and flight.task is not None:
            flight.task.cancel()


# ---- results of finished executions

ENTRY_BYTES = 500
"""Size of a key, of an outcome's other fields and of its place in the table."""


@dataclass(frozen=True, slots=True)
class _Entry:
    outcome: Outcome
    ends_at: float

    @property
    def num_bytes(self) -> int:
        return ENTRY_BYTES + sys.getsizeof(self.outcome.text)


class ResultCache:
    """Outcomes by `key_of`, each until its own end. Above `max_bytes` the least recently used one is evicted."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._entries: OrderedDict[bytes, _Entry] = OrderedDict()

    @property
    def num_bytes(self) -> int:
        return self._num_bytes

    def get(self, key: bytes, now: float) -> Outcome | None:
        entry = self._entries.get(key)
        if entry is None:
            return None
        if entry.ends_at <= now:
            self._evict(key)
            return None
        self._entries.move_to_end(key)
        return entry.outcome

    def put(self, key: bytes, outcome: Outcome, ends_at: float) -> None:
        if key in self._entries:
            self._evict(key)
        entry = self._entries[key] = _Entry(outcome, ends_at)
        self._num_bytes += entry.num_bytes
        while self._num_bytes > self._max_bytes:
            self._evict(next(iter(self._entries)))

    def _evict(self, key: bytes) -> None:
        self._num_bytes -= self._entries.pop(key).num_bytes
