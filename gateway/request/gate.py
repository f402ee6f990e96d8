"""The gate: turns wait here for a replica, and give it back however they end. It drives the Scheduler in asyncio.

Also here: the Scheduler that a configuration asks for, and the drain of requests when the gateway stops.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from typing import Any, TypeAlias, cast

from gateway.config import loading, settings
from gateway.config.memory import MemoryBounds
from gateway.config.settings import Settings
from gateway.core.errors import ConfigError, Failure, Outcome, Refused
from gateway.telemetry.factlog import Header
from policies.admission import Limits
from policies.engine_queue import EngineTime
from policies.fleet import FleetView
from policies.placement import Place, by_prefix
from policies.policy import Policy
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
    SessionForgotten,
    SessionId,
    Switched,
    Tick,
    Turn,
    TurnId,
    Usage,
)

LOG = logging.getLogger(__name__)

RETRY_AFTER_S = 1.0
"""Another gateway, or the next process of this one, takes over after about this time."""
TURNED_AWAY_S = 3.0
"""The same for turns that waited here. The next gateway has no memory, and admits sessions as they come: those
whose turn runs now, and whose cache is warm, are to come before (`benchmarks.simulation restart`)."""


class TurnedAway(Exception):
    """A turn waited for a replica when the gateway began to stop."""


class Drain:
    """Counts the requests of clients that are under way. A stop waits for those."""

    def __init__(self) -> None:
        self.is_on = False
        self.num_running = 0
        self._is_idle: asyncio.Event | None = None

    def left(self, num: int) -> None:
        self.num_running -= num
        if self._is_idle is not None and not self.num_running:
            self._is_idle.set()

    async def until_idle(self, grace_s: float) -> None:
        """Return when no request is under way any more, or when the time is over."""
        self._is_idle = asyncio.Event()
        if self.num_running:
            LOG.info("stopping: %d requests under way may take %g s more", self.num_running, grace_s)
            try:
                async with asyncio.timeout(grace_s):
                    await self._is_idle.wait()
            except TimeoutError:  # the server cancels the rest with their connections
                LOG.warning("stopping: %d requests are cut off, their time is over", self.num_running)


def stopping(retry_after_s: float = RETRY_AFTER_S) -> Refused:
    text = "This gateway is stopping. Try again: another one, or its successor, will answer."
    failure = Failure(503, "server_error", text, code="stopping", retry_after_s=retry_after_s)
    return Refused(Outcome.REJECTED_STOPPING, failure)


# ---- the Scheduler that a configuration asks for

POLICIES = {
    "turns": "policies.turns:Turns",
    "observe": "policies.fifo:Observe",
    "fifo": "policies.fifo:Fifo",
    "passthrough": "policies.fifo:Passthrough",
    "deadline": "policies.deadline:EarliestDeadline",
}
"""Import paths of the policies that have a short name."""


def limits_of(settings: Settings) -> Limits:
    """Return the limits that hold for every policy."""
    if settings.policy.price is not None:
        LOG.warning("policy.price has no effect and will be removed: the gateway measures what an eviction costs")
    if settings.policy.warm_up_bytes is not None:
        LOG.warning("policy.warm_up_bytes has no effect and will be removed: no session is prefilled ahead")
    return Limits(
        ceiling=settings.policy.ceiling,
        hold_bound_s=settings.policy.hold_bound_s,
        max_queue=settings.limits.queue_turns,
        max_sessions=settings.identity.max_sessions,
        max_family_bytes=MemoryBounds.of(settings).families,
        sub_agents_return=settings.policy.sub_agents_return,
    )


def recorded(settings: Settings) -> Header:
    """Return what `limits_of` and `policy_of` read, for the log of facts."""
    sections = ("policy", "limits", "identity")
    return Header({name: getattr(settings, name).model_dump(mode="json", exclude={"secret"}) for name in sections})


def policy_of(section: settings.Policy) -> Policy:
    """Return the policy of a short name, or of an import path `package.module:Name`. Raises ConfigError."""
    if section.name in POLICIES:
        return cast(Policy, _imported(POLICIES[section.name])(_place_of(section.placement)))
    if ":" not in section.name:
        known = ", ".join(POLICIES)
        meant = loading.did_you_mean(section.name, POLICIES)
        raise ConfigError(f"policy.name {section.name!r} is none of {known}, nor a module:Name{meant}")
    try:
        return cast(Policy, _imported(section.name)(**section.options))
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise ConfigError(f"policy.name {section.name!r}: {error}") from None


def _place_of(placement: str) -> Place:
    if placement == "prefix":
        return by_prefix
    try:
        return cast(Place, _imported(placement))
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"policy.placement {placement!r}: {error}") from None


def _imported(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)


# ---- the gate

Clock: TypeAlias = Callable[[], float]
"""Monotonic seconds."""
Listener: TypeAlias = Callable[[Fact, list[Decision], float, float], None]
"""Gets every fact with its decisions, its time, and the seconds that deciding took."""


KEPT_AGE_S = 600.0
"""A client that gave up and asks again within this time keeps the arrival of its first request."""
MOST_KEPT = 10_000


class Rejected(Exception):
    """The Scheduler refused the turn."""

    def __init__(self, refusal: Refusal, retry_after_s: float) -> None:
        super().__init__(refusal.value)
        self.refusal = refusal
        self.retry_after_s = retry_after_s


class Ticket:
    """The place of one turn, for the body of a `with`: first in the queue, then at a replica.

    The end of the `with` is synchronous and always gives the place back, so that no error and no cancellation
    leaks a slot.
    """

    def __init__(self, gate: Gate, turn: Turn, has_begun: bool) -> None:
        self._gate = gate
        self._turn = turn
        self.has_begun = has_begun
        """Whether its answer has parts already."""
        self.decided: Dispatch | Exception | None = None
        """None: it waits. An exception other than Rejected and TurnedAway is an error in the decision itself."""
        self.decided_at: float | None = None
        self._news: asyncio.Event | None = None
        self._left: Left | None = None
        """None: `leave_as` was not called."""

    def __enter__(self) -> Ticket:
        try:
            self._gate.enter(self, self._turn)
        except BaseException:
            self._gate.leave(self, self._turn)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._gate.leave(self, self._turn)
        self.decided = None  # the traceback of an error holds the frames that it passed, and those hold the ticket

    def decide(self, decided: Dispatch | Exception) -> None:
        """Set the decision, once."""
        self.decided, self.decided_at = decided, self._gate.clock()
        if self._news is not None:
            self._news.set()

    def granted(self) -> Dispatch | None:
        """Return the replica; None while the turn is queued. Raises Rejected, TurnedAway, and an error in the
        decision."""
        if isinstance(self.decided, Exception):
            raise self.decided
        return self.decided

    async def decision(self, timeout_s: float | None) -> None:
        """Return once there is a decision, or after `timeout_s`."""
        if self.decided is None:
            self._news = self._news or asyncio.Event()
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._news.wait()

    def expected_wait_s(self) -> float:
        """Return the Scheduler's estimate of the remaining wait."""
        return self._gate.expected_wait_s(self._turn.id)

    def first_byte(self) -> None:
        """Report that the engine has begun to answer."""
        self._gate.tell(FirstByte(self._turn.id))

    def engine_time(self, usage: Usage, is_whole: bool) -> EngineTime | None:
        """Return where the time of the call went, which ends now. `is_whole`: its answer came at once."""
        return self._gate.engine_time(self._turn.id, usage, is_whole)

    def leave_as(
        self, ending: Ending, usage: Usage, tool_names: tuple[str, ...] = (), tool_s: float | None = None
    ) -> None:
        """Note how the call ended. The Scheduler hears it when the place is given back."""
        self._left = Left(self._turn.id, ending, usage, tool_names, tool_s=tool_s)

    def give_up(self, keep_place_s: float) -> None:
        """Note that the turn leaves the queue unserved, and how long its session keeps its place."""
        self._left = Left(self._turn.id, Ending.CANCELLED, keep_place_s=keep_place_s)

    @property
    def last_fact(self) -> Left:
        return self._left or Left(self._turn.id, Ending.CANCELLED)


SWITCHED = {
    True: "the gate of %s opens: all sessions together are faster than those that fit; net so far %+.0f s",
    False: "the gate of %s holds again: those that fit are faster than all sessions; net so far %+.0f s",
}
"""Seconds of sessions that it saved, less those that it cost."""


class Gate:
    """Owns the Scheduler, its one timer, and the tickets of turns."""

    def __init__(self, scheduler: Scheduler, clock: Clock) -> None:
        self._scheduler = scheduler
        self.clock = clock
        self._listeners: list[Listener] = []
        self.background: Callable[[Release], None] | None = None
        """Tells engines which sessions they need not keep. None: releases are left out."""
        self._tickets: dict[TurnId, Ticket] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._wake_at: float | None = None
        self._given_up: OrderedDict[SessionId, float] = OrderedDict()
        """Sessions whose client stopped waiting, and the arrival of their turn, which a retry inherits."""
        scheduler.on_error = self._fail

    def connect(self, background: Callable[[Release], None], *listeners: Listener) -> None:
        """Let `background` carry out releases, and listeners see every fact, in this order."""
        self.background = background
        self._listeners += listeners

    def ticket(self, turn: Turn, has_begun: bool = False) -> Ticket:
        """Return a ticket for a turn. `has_begun`: its answer has parts already."""
        first_at = self._given_up.pop(turn.session_id, None)
        if first_at is not None and turn.arrived_at - KEPT_AGE_S < first_at < turn.arrived_at:
            turn = replace(turn, arrived_at=first_at)
        return Ticket(self, turn, has_begun)

    def enter(self, ticket: Ticket, turn: Turn) -> None:
        """Let the turn of a ticket begin to wait."""
        self._tickets[turn.id] = ticket
        self.tell(Arrived(turn))

    def leave(self, ticket: Ticket, turn: Turn) -> None:
        """Give the place of a ticket back, however its turn ended."""
        self._tickets.pop(turn.id, None)
        if ticket.decided is None:
            self._given_up[turn.session_id] = turn.arrived_at
            if len(self._given_up) > MOST_KEPT:
                self._given_up.popitem(last=False)
        self.tell(ticket.last_fact)

    def forget_session(self, _tenant: str, session_id: SessionId) -> None:
        self._given_up.pop(session_id, None)
        self.tell(SessionForgotten(session_id))

    def turn_away(self) -> None:
        """Refuse all turns that wait for a replica and have no part of an answer, with TurnedAway."""
        for ticket in self._tickets.values():
            if ticket.decided is None and not ticket.has_begun:
                ticket.decide(TurnedAway())

    def tell(self, fact: Fact) -> None:
        """Pass a fact to the Scheduler and carry out its decisions."""
        now = self.clock()
        decisions, wake_at = self._scheduler.tell(fact, now)
        took_s = self.clock() - now
        for listener in self._listeners:
            listener(fact, decisions, now, took_s)
        for decision in decisions:
            self._carry_out(decision)
        if wake_at != self._wake_at:
            self._set_timer(wake_at, now)

    def expected_wait_s(self, turn_id: TurnId) -> float:
        return self._scheduler.expected_wait_s(turn_id, self.clock())

    def engine_time(self, turn_id: TurnId, usage: Usage, is_whole: bool) -> EngineTime | None:
        return self._scheduler.engine_time(turn_id, usage, is_whole, self.clock())

    def replica_view(self) -> FleetView:
        """Return the view without a count of sessions, which takes time that grows with their number."""
        return self._scheduler.view(counts_sessions=False)

    def view(self, counts_sessions: bool = True, named: frozenset[SessionId] = frozenset()) -> FleetView:
        return self._scheduler.view(counts_sessions, named)

    def stop(self) -> None:
        """Cancel the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._wake_at = None

    def _carry_out(self, decision: Decision) -> None:
        if isinstance(decision, Release):
            if self.background is not None:
                self.background(decision)
            return
        if isinstance(decision, Switched):
            LOG.info(SWITCHED[decision.is_open], decision.replica_id, decision.net_s)
            return
        ticket = self._tickets.get(decision.turn_id)
        if ticket is None or ticket.decided is not None:
            return  # it is leaving, and its own Left follows
        ticket.decide(
            Rejected(decision.refusal, decision.retry_after_s) if isinstance(decision, Reject) else decision
        )

    def _fail(self, turn_id: TurnId | None, error: Exception) -> None:
        """End the request of a turn with the error that a decision on it met; log one that ends no request."""
        ticket = self._tickets.get(turn_id or "")
        if ticket is not None and ticket.decided is None:
            ticket.decide(error)
        else:
            LOG.error("a decision of the Scheduler failed", exc_info=error)

    def _set_timer(self, wake_at: float | None, now: float) -> None:
        self.stop()
        if wake_at is not None:
            self._timer = asyncio.get_running_loop().call_later(max(0.0, wake_at - now), self._wake)
            self._wake_at = wake_at

    def _wake(self) -> None:
        self._wake_at = None
        self.tell(Tick())
