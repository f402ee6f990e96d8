"""The asyncio driver of the Scheduler: turns wait here for a replica, and give it back however they end."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeAlias

from gateway.drain import TurnedAway
from policies.scheduler import Scheduler
from policies.types import (
    Arrived,
    Decision,
    Dispatch,
    Ending,
    Fact,
    FirstByte,
    Left,
    Refusal,
    Reject,
    Release,
    SessionId,
    Tick,
    Turn,
    TurnId,
    Usage,
    WarmUp,
)
from policies.view import FleetView

Clock: TypeAlias = Callable[[], float]
"""Monotonic seconds."""
Listener: TypeAlias = Callable[[Fact, list[Decision], float, float], None]
"""Sees every fact with its decisions, its time, and the seconds that deciding took: metrics, the log of facts."""


KEPT_AGE_S = 600.0
"""A client that asks again within this time after its first request waits no longer for having asked twice."""
MOST_KEPT = 10_000


class Rejected(Exception):
    """The Scheduler refused the turn."""

    def __init__(self, refusal: Refusal, retry_after_s: float) -> None:
        super().__init__(refusal.value)
        self.refusal = refusal
        self.retry_after_s = retry_after_s


class Place:
    """One turn's place: in the queue until it is granted, at a replica after that."""

    def __init__(self, gate: Gate, turn: Turn, granted: asyncio.Future[Dispatch]) -> None:
        self._gate = gate
        self._turn_id = turn.id
        self._granted = granted
        self._left = Left(turn.id, Ending.CANCELLED)

    async def granted(self, timeout_s: float | None) -> Dispatch | None:
        """Wait for a replica; None when it is still queued after `timeout_s`. Raises Rejected, TurnedAway."""
        if not self._granted.done():
            await asyncio.wait([self._granted], timeout=timeout_s)
        return self._granted.result() if self._granted.done() else None

    def expected_wait_s(self) -> float:
        """The Scheduler's estimate of the wait that is left."""
        return self._gate.expected_wait_s(self._turn_id)

    def first_byte(self) -> None:
        """The engine has begun to answer."""
        self._gate.tell(FirstByte(self._turn_id))

    def left(
        self, ending: Ending, usage: Usage, tool_names: tuple[str, ...] = (), tool_s: float | None = None
    ) -> None:
        """Say how the call ended; told to the Scheduler when the place is given back."""
        self._left = Left(self._turn_id, ending, usage, tool_names, tool_s=tool_s)

    def give_up(self, keep_place_s: float) -> None:
        """Say that the turn leaves the queue unserved, and for how long its session keeps its place."""
        self._left = Left(self._turn_id, Ending.CANCELLED, keep_place_s=keep_place_s)

    @property
    def last_fact(self) -> Left:
        return self._left


class Gate:
    """Owns the Scheduler, its one timer, and the futures of those who wait."""

    def __init__(
        self,
        scheduler: Scheduler,
        clock: Clock,
        listener: Listener | None = None,
        errand: Callable[[Decision], None] | None = None,
    ) -> None:
        self._scheduler = scheduler
        self._clock = clock
        self._listener = listener
        self._errand = errand
        """Carries out what is decided about no turn."""
        self._waiting: dict[TurnId, asyncio.Future[Dispatch]] = {}
        self._begun: set[TurnId] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._wake_at: float | None = None
        self._given_up: OrderedDict[SessionId, float] = OrderedDict()
        """Sessions whose client stopped waiting, and when their turn had arrived: its retry is as old."""

    @contextmanager
    def turn(self, turn: Turn, has_begun: bool = False) -> Iterator[Place]:
        """Queue a turn for the body of a `with`. Leaving is synchronous and always gives back the place or the
        slot, so neither an error nor a cancellation can leak one. `has_begun`: its answer has parts already."""
        future: asyncio.Future[Dispatch] = asyncio.get_running_loop().create_future()
        first_at = self._given_up.pop(turn.session_id, turn.arrived_at)
        if turn.arrived_at - KEPT_AGE_S < first_at < turn.arrived_at:
            turn = replace(turn, arrived_at=first_at)
        self._waiting[turn.id] = future
        if has_begun:
            self._begun.add(turn.id)
        place = Place(self, turn, future)
        try:
            self.tell(Arrived(turn))
            yield place
        finally:
            self._waiting.pop(turn.id, None)
            self._begun.discard(turn.id)
            if not future.done():
                self._given_up[turn.session_id] = turn.arrived_at
                if len(self._given_up) > MOST_KEPT:
                    self._given_up.popitem(last=False)
            elif not future.cancelled():
                future.exception()  # a refusal that nobody waited for is not an error of the loop
            self.tell(place.last_fact)

    def turn_away(self) -> None:
        """Whoever waits for a replica and has no part of an answer is told TurnedAway, and leaves by itself."""
        for turn_id, future in self._waiting.items():
            if not future.done() and turn_id not in self._begun:
                future.set_exception(TurnedAway())

    def tell(self, fact: Fact) -> None:
        """Pass a fact on and carry out what the Scheduler decides."""
        now = self._clock()
        decisions, wake_at = self._scheduler.tell(fact, now)
        if self._listener is not None:
            self._listener(fact, decisions, now, self._clock() - now)
        for decision in decisions:
            self._carry_out(decision)
        if wake_at != self._wake_at:
            self._set_timer(wake_at, now)

    def expected_wait_s(self, turn_id: TurnId) -> float:
        return self._scheduler.expected_wait_s(turn_id, self._clock())

    def view(self, counts_sessions: bool = True, named: frozenset[SessionId] = frozenset()) -> FleetView:
        return self._scheduler.view(counts_sessions, named)

    def stop(self) -> None:
        """Cancel the timer; nothing is told any more by itself."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._wake_at = None

    def _carry_out(self, decision: Decision) -> None:
        if isinstance(decision, WarmUp | Release):
            if self._errand is not None:
                self._errand(decision)
            return
        future = self._waiting.get(decision.turn_id)
        if future is None or future.done():
            return  # it is leaving: its own Left follows
        match decision:
            case Dispatch():
                future.set_result(decision)
            case Reject(_, refusal, retry_after_s):
                future.set_exception(Rejected(refusal, retry_after_s))

    def _set_timer(self, wake_at: float | None, now: float) -> None:
        self.stop()
        if wake_at is not None:
            self._timer = asyncio.get_running_loop().call_later(max(0.0, wake_at - now), self._wake)
            self._wake_at = wake_at

    def _wake(self) -> None:
        self._wake_at = None
        self.tell(Tick())
