"""The one table of sessions: which ones there are, their last turns, and when each is forgotten.

The table alone decides how long a session is remembered. Recognition, the Scheduler and others keep their own
parts of it under its id. A part may hold less, by bounds of its own, but never longer: when the table forgets a
session, all parts do. No content is kept here.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import NamedTuple, Protocol, TypeAlias, TypeVar

from gateway.exchange import Exchange, Recognition
from policies.types import SIDE, SessionId, SessionState, TurnKind

MAX_TURNS = 5_000
SESSION_BYTES = 5_000
"""About what a session takes in the table, the Scheduler and other parts, without its prompt."""
BLOCK_BYTES = 8
"""Of a block of its latest prompt."""
ENDED_KEPT_S = 60.0
"""How long a session is remembered after its client said that it has ended: some clients go on all the same."""


class Span(NamedTuple):
    """One turn, with the times at which it changed its phase. Monotonic seconds; None: not reached."""

    session_id: str
    turn: int
    replica: str
    began_at: float
    leased_at: float | None
    first_byte_at: float | None
    ended_at: float | None
    tools_at: tuple[float, ...]
    """Begin and end of each time that the gateway ran its tools; the last end may be missing."""
    is_answered: bool


Of = TypeVar("Of")
_Phases: TypeAlias = tuple[Of, int, str, float, float | None, float | None, float | None, tuple[float, ...], bool]
"""The values of a Span, of the session in any form."""


class Timeline:
    """The last turns of all sessions. Spans are made when they are read.

    It holds the entries of sessions, not their ids: the turns of a session are gone when the table has emptied its
    entry.
    """

    def __init__(self, max_turns: int = MAX_TURNS) -> None:
        self._ended: deque[_Phases[SessionEntry]] = deque(maxlen=max_turns)

    def ended(self, entry: SessionEntry, exchange: Exchange, is_answered: bool, now: float) -> None:
        """Keep the span of a turn that is over."""
        self._ended.append(_phases(entry, exchange, now, is_answered))

    def of(self, session_ids: Collection[str], since: float) -> Iterator[Span]:
        """Return the turns of these sessions that have ended since then, newest first."""
        for turn in reversed(self._ended):
            entry, span = turn[0], Span(turn[0].id, *turn[1:])
            if span.ended_at is not None and span.ended_at < since:
                return
            if entry.id in session_ids:
                yield span


def running_span(exchange: Exchange) -> Span:
    """Return the span of a turn that is in the gateway now."""
    assert exchange.recognition is not None
    return Span(*_phases(exchange.recognition.session_id, exchange, None, is_answered=False))


def _phases(of: Of, exchange: Exchange, ended_at: float | None, is_answered: bool) -> _Phases[Of]:
    recognition, times, dispatch = exchange.recognition, exchange.timings, exchange.dispatch
    assert recognition is not None
    return (
        of,
        recognition.turn_index,
        dispatch.replica_id if dispatch is not None else "",
        times.received_at,
        times.leased_at,
        times.first_byte_at,
        ended_at,
        tuple(exchange.tools_at),
        is_answered,
    )


# ---- the table


class SessionPart(Protocol):
    """Keeps something under the ids of sessions."""

    def forget_session(self, tenant: str, session_id: SessionId) -> None:
        """Drop all that is kept of the session; it has no request in the gateway."""
        ...


@dataclass(slots=True, eq=False)
class SessionEntry:
    """What the gateway itself knows of one session. The family and the parent are those of its first request."""

    recognition: Recognition
    """Of its latest turn; of a side request only while there is no turn."""
    tenant: str
    first_at: float
    last_at: float
    num_turns: int = 0
    num_side_requests: int = 0
    model: str = ""
    replica: str = ""
    prompt_tokens: int | None = None
    agent: str = ""
    client_session: str | None = None
    client_hash: str | None = None
    """These three as in a Recognition, of the latest request that gave them."""
    open: tuple[Exchange, ...] = ()
    """Its requests that are in the gateway now."""
    num_bytes: int = 0

    @property
    def id(self) -> SessionId:
        return self.recognition.session_id

    @property
    def state(self) -> SessionState:
        if any(exchange.timings.leased_at is not None for exchange in self.open):
            return SessionState.RUNNING
        return SessionState.WAITING if self.open else SessionState.IDLE


_FORGOTTEN = Recognition(
    session_id="",
    family_id="",
    parent_id=None,
    turn_index=0,
    kind=TurnKind.SIDE,
    source="",
    confidence=0.0,
    is_retry=False,
    blocks=(),
    chars=0,
)
"""Of an entry that the table no longer has."""


class SessionTable:
    """Holds at most `limit` sessions, about `max_bytes` of them in all parts but recognition, and none that had no
    request for `ttl_s`; the least recently used one is forgotten first. A session with a request in the gateway is
    never forgotten."""

    def __init__(
        self,
        limit: int,
        ttl_s: float,
        own: Sequence[SessionPart] = (),
        shared: Sequence[SessionPart] = (),
        max_bytes: float = math.inf,
    ) -> None:
        """`own`: parts that hold sessions of this table alone; `shared`: those that hold sessions of others,
        too."""
        self._limit = limit
        self._ttl_s = ttl_s
        self._max_bytes = max_bytes
        self.num_bytes = 0
        self._own, self._shared = own, shared
        self._entries: OrderedDict[SessionId, SessionEntry] = OrderedDict()
        self._busy: dict[SessionId, SessionEntry] = {}
        """Sessions with a request in the gateway."""
        self._ended: OrderedDict[SessionId, float] = OrderedDict()
        """Sessions whose clients said that they have ended, and when."""
        self.timeline = Timeline(min(MAX_TURNS, limit))

    def beside(self, limit: int, ttl_s: float, identity: SessionPart, max_bytes: float = math.inf) -> SessionTable:
        """Return a table with other bounds and another identity, for sessions that must not displace these."""
        return SessionTable(limit, ttl_s, [identity], self._shared, max_bytes)

    def open_request(self, exchange: Exchange, now: float) -> None:
        """Record the arrival of a request; its session is remembered from now on."""
        recognition = exchange.recognition
        assert recognition is not None
        session_id = recognition.session_id
        entry = self._entries.get(session_id)
        if entry is None:
            entry = self._entries[session_id] = SessionEntry(recognition, exchange.caller.tenant, now, now)
        if recognition.kind is SIDE:
            entry.num_side_requests += 1
        else:
            entry.recognition = recognition
            entry.num_turns = max(entry.num_turns, recognition.turn_index + 1)
        entry.agent = recognition.agent or entry.agent
        if recognition.client_session is not None:
            entry.client_session, entry.client_hash = recognition.client_session, recognition.client_hash
        entry.model = exchange.payload.engine_model
        entry.open = (*entry.open, exchange)
        num_bytes = SESSION_BYTES + BLOCK_BYTES * len(recognition.blocks)
        self.num_bytes += num_bytes - entry.num_bytes
        entry.num_bytes = num_bytes
        self._busy[session_id] = entry
        entry.last_at = now
        self._entries.move_to_end(session_id)
        if self._ended:
            self._ended.pop(session_id, None)
        self._forget_old(now)

    def close_request(self, exchange: Exchange, is_answered: bool, now: float) -> None:
        """Record the end of a request; harmless for one that was never recognised."""
        recognition, dispatch = exchange.recognition, exchange.dispatch
        entry = self._entries.get(recognition.session_id) if recognition is not None else None
        if entry is None or exchange not in entry.open:
            return
        entry.open = () if len(entry.open) == 1 else tuple([one for one in entry.open if one is not exchange])
        if not entry.open:
            del self._busy[entry.id]
        self.timeline.ended(entry, exchange, is_answered, now)
        if dispatch is not None:
            entry.replica = dispatch.replica_id
        prompt_tokens = exchange.reply.usage.prompt_tokens
        if prompt_tokens is not None and entry.recognition is recognition:
            entry.prompt_tokens = prompt_tokens
        entry.last_at = now
        self._entries.move_to_end(entry.id)

    def end_session(self, session_id: SessionId, now: float) -> None:
        """Record that its client said that the session has ended. It is forgotten ENDED_KEPT_S later, unless it
        sends a request before."""
        self._ended[session_id] = now
        self._ended.move_to_end(session_id)

    def of_tenant(self, tenant: str | None) -> list[SessionEntry]:
        """Return the sessions of one tenant, None: of all; in order of first arrival."""
        own = (entry for entry in self._entries.values() if tenant in (None, entry.tenant))
        return sorted(own, key=lambda entry: entry.first_at)

    def page(self, tenant: str | None, offset: int, limit: int) -> tuple[list[SessionEntry], int]:
        """Return some sessions of one tenant, None: of all; and how many there are. Those with a request in the
        gateway come first, then the most recently used."""
        entries, is_all = self._entries.values(), tenant is None
        rest = (entry for entry in reversed(entries) if not entry.open)
        own = (entry for entry in chain(self._busy.values(), rest) if is_all or entry.tenant == tenant)
        num = len(entries) if is_all else sum(entry.tenant == tenant for entry in entries)
        return list(islice(own, offset, offset + limit)), num

    def _forget_old(self, now: float) -> None:
        while self._ended and next(iter(self._ended.values())) <= now - ENDED_KEPT_S:
            session_id, _ = self._ended.popitem(last=False)
            entry = self._entries.get(session_id)
            if entry is not None and not entry.open:
                self._forget(entry)
        while len(self._entries) > len(self._busy):
            oldest = next(iter(self._entries.values()))
            if oldest.open:
                self._entries.move_to_end(oldest.id)
            elif (
                len(self._entries) > self._limit
                or self.num_bytes > self._max_bytes
                or oldest.last_at < now - self._ttl_s
            ):
                self._forget(oldest)
            else:
                return

    def _forget(self, entry: SessionEntry) -> None:
        del self._entries[entry.id]
        self.num_bytes -= entry.num_bytes
        self._ended.pop(entry.id, None)
        for part in (*self._own, *self._shared):
            part.forget_session(entry.tenant, entry.id)
        entry.recognition = _FORGOTTEN  # the timeline still holds the entry
        entry.client_session = entry.client_hash = None
