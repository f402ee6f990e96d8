"""The asyncio driver of the Scheduler: turns wait here for a replica, and give it back however they end."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import TypeAlias

from gateway.request.drain import TurnedAway
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


_ERRANDS = (WarmUp, Release)
KEPT_AGE_S = 600.0
"""A client that asks again within this time after its first request waits no longer for having asked twice."""
MOST_KEPT = 10_000


class Rejected(Exception):
    """The Scheduler refused the turn."""

    def __init__(self, refusal: Refusal, retry_after_s: float) -> None:
        super().__init__(refusal.value)
        self.refusal = refusal
        self.retry_after_s = retry_after_s


class Ticket:
    """One turn's place, for the body of a `with`: in the queue until it is granted, at a replica after that.

    Leaving is synchronous and always gives back the place or the slot, so neither an error nor a cancellation can
    leak one.
    """

    def __init__(self, gate: Gate, turn: Turn, has_begun: bool) -> None:
        self._gate = gate
        self._turn = turn
        self._turn_id = turn.id
        self.has_begun = has_begun
        """Whether its answer has parts already."""
        self.decided: Dispatch | Rejected | TurnedAway | None = None
        """None: it waits."""
        self._news: asyncio.Event | None = None
        self._left: Left | None = None
        """None: nobody has said how it ended."""

    def __enter__(self) -> Ticket:
        try:
            self._gate.enter(self, self._turn)
        except BaseException:
            self._gate.leave(self, self._turn)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._gate.leave(self, self._turn)

    def decide(self, decided: Dispatch | Rejected | TurnedAway) -> None:
        """Nothing changes it any more."""
        self.decided = decided
        if self._news is not None:
            self._news.set()

    def granted(self) -> Dispatch | None:
        """Its replica; None while it is queued. Raises Rejected, TurnedAway."""
        if isinstance(self.decided, Exception):
            raise self.decided
        return self.decided

    async def decision(self, timeout_s: float | None) -> None:
        """Returns once there is one, or after `timeout_s`."""
        if self.decided is None:
            self._news = self._news or asyncio.Event()
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._news.wait()

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
        return self._left or Left(self._turn_id, Ending.CANCELLED)


class Gate:
    """Owns the Scheduler, its one timer, and the places of those who wait."""

    def __init__(
        self,
        scheduler: Scheduler,
        clock: Clock,
        listener: Listener | None = None,
        errand: Callable[[Decision], None] | None = None,
    ) -> None:
        self._scheduler = scheduler
        self._clock = clock
        self.listener = listener
        """May be set once, before the first fact."""
        self._errand = errand
        """Carries out what is decided about no turn."""
        self._places: dict[TurnId, Ticket] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._wake_at: float | None = None
        self._given_up: OrderedDict[SessionId, float] = OrderedDict()
        """Sessions whose client stopped waiting, and when their turn had arrived: its retry is as old."""

    def turn(self, turn: Turn, has_begun: bool = False) -> Ticket:
        """A place for a turn. `has_begun`: its answer has parts already."""
        first_at = self._given_up.pop(turn.session_id, None)
        if first_at is not None and turn.arrived_at - KEPT_AGE_S < first_at < turn.arrived_at:
            turn = replace(turn, arrived_at=first_at)
        return Ticket(self, turn, has_begun)

    def enter(self, place: Ticket, turn: Turn) -> None:
        """The place's turn begins to wait."""
        self._places[turn.id] = place
        self.tell(Arrived(turn))

    def leave(self, place: Ticket, turn: Turn) -> None:
        """However it ended."""
        self._places.pop(turn.id, None)
        if place.decided is None:
            self._given_up[turn.session_id] = turn.arrived_at
            if len(self._given_up) > MOST_KEPT:
                self._given_up.popitem(last=False)
        self.tell(place.last_fact)

    def turn_away(self) -> None:
        """Whoever waits for a replica and has no part of an answer is told TurnedAway, and leaves by itself."""
        for place in self._places.values():
            if place.decided is None and not place.has_begun:
                place.decide(TurnedAway())

    def tell(self, fact: Fact) -> None:
        """Pass a fact on and carry out what the Scheduler decides."""
        now = self._clock()
        decisions, wake_at = self._scheduler.tell(fact, now)
        if self.listener is not None:
            self.listener(fact, decisions, now, self._clock() - now)
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
        if isinstance(decision, _ERRANDS):
            if self._errand is not None:
                self._errand(decision)
            return
        place = self._places.get(decision.turn_id)
        if place is None or place.decided is not None:
            return  # it is leaving: its own Left follows
        place.decide(
            Rejected(decision.refusal, decision.retry_after_s) if isinstance(decision, Reject) else decision
        )

    def _set_timer(self, wake_at: float | None, now: float) -> None:
        self.stop()
        if wake_at is not None:
            self._timer = asyncio.get_running_loop().call_later(max(0.0, wake_at - now), self._wake)
            self._wake_at = wake_at

    def _wake(self) -> None:
        self._wake_at = None
        self.tell(Tick())
