"""The last turns, each with the times at which it changed its phase. Bounded; no content."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from typing import NamedTuple, TypeAlias

from gateway.exchange import Exchange, Recognition
from policies.types import SessionState, TurnKind

MAX_TURNS = 5_000

_Values: TypeAlias = tuple[str, int, str, float, float | None, float | None, float | None, tuple[float, ...], bool]
"""Those of a Span."""


class Span(NamedTuple):
    """One turn; monotonic seconds, None: not reached."""

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


class Timeline:
    """Of one gateway. Spans are made for whoever looks at them."""

    def __init__(self, max_turns: int = MAX_TURNS) -> None:
        self._ended: deque[_Values] = deque(maxlen=max_turns)

    def ended(self, exchange: Exchange, is_answered: bool, now: float) -> None:
        """Keep the span of a turn that is over."""
        self._ended.append(_values(exchange, now, is_answered))

    def of(self, session_ids: Collection[str], since: float) -> Iterator[Span]:
        """Ended turns of these sessions that ended since then, newest first."""
        for ended in map(Span._make, reversed(self._ended)):
            if ended.ended_at is not None and ended.ended_at < since:
                return
            if ended.session_id in session_ids:
                yield ended


def running_span(exchange: Exchange) -> Span:
    """Return the span of a turn that is in the gateway now."""
    return Span(*_values(exchange, None, is_answered=False))


def _values(exchange: Exchange, ended_at: float | None, is_answered: bool) -> _Values:
    who, times, dispatch = exchange.recognition, exchange.timings, exchange.dispatch
    assert who is not None
    return (
        who.session_id,
        who.turn_index,
        dispatch.replica_id if dispatch is not None else "",
        times.received_at,
        times.leased_at,
        times.first_byte_at,
        ended_at,
        tuple(exchange.tools_at),
        is_answered,
    )


# ---- who is here


@dataclass(slots=True, eq=False)
class Seen:
    """One session. The family and the parent are those of its first request."""

    who: Recognition
    """Of its latest turn; of a side request only while there is no turn."""
    tenant: str
    first_at: float
    last_at: float
    num_turns: int = 0
    num_side_requests: int = 0
    model: str = ""
    replica: str = ""
    prompt_tokens: int | None = None
    open: tuple[Exchange, ...] = ()
    """Its requests that are in the gateway now."""

    @property
    def state(self) -> SessionState:
        if any(exchange.timings.leased_at is not None for exchange in self.open):
            return SessionState.RUNNING
        return SessionState.WAITING if self.open else SessionState.IDLE


class Sessions:
    """At most `limit`, none that was not heard of for `ttl_s`; the least recently heard of goes first."""

    def __init__(self, limit: int, ttl_s: float) -> None:
        self._limit = limit
        self._ttl_s = ttl_s
        self._seen: OrderedDict[str, Seen] = OrderedDict()
        self._busy: dict[str, Seen] = {}
        """Those with a request in the gateway."""
        self.timeline = Timeline()

    def recognised(self, exchange: Exchange, now: float) -> None:
        """A request of a session has arrived."""
        who = exchange.recognition
        assert who is not None
        seen = self._seen.get(who.session_id)
        if seen is None:
            seen = self._seen[who.session_id] = Seen(who, exchange.caller.tenant, now, now)
        if who.kind is TurnKind.SIDE:
            seen.num_side_requests += 1
        else:
            seen.who = who
            seen.num_turns = max(seen.num_turns, who.turn_index + 1)
        seen.model = exchange.payload.engine_model
        seen.open = (*seen.open, exchange)
        self._busy[who.session_id] = seen
        seen.last_at = now
        self._seen.move_to_end(who.session_id)
        self._forget(now)

    def finished(self, exchange: Exchange, is_answered: bool, now: float) -> None:
        """It has ended; harmless for what was never recognised."""
        who = exchange.recognition
        seen = self._seen.get(who.session_id) if who is not None else None
        if seen is None or exchange not in seen.open:
            return
        seen.open = () if len(seen.open) == 1 else tuple([one for one in seen.open if one is not exchange])
        if not seen.open:
            self._busy.pop(seen.who.session_id, None)
        self.timeline.ended(exchange, is_answered, now)
        if exchange.dispatch is not None:
            seen.replica = exchange.dispatch.replica_id
        if exchange.reply.usage.prompt_tokens is not None and seen.who is who:
            seen.prompt_tokens = exchange.reply.usage.prompt_tokens
        seen.last_at = now
        self._seen.move_to_end(seen.who.session_id)

    def of_tenant(self, tenant: str | None) -> list[Seen]:
        """Return the sessions of one tenant, None: of all; in order of first arrival."""
        own = (seen for seen in self._seen.values() if tenant in (None, seen.tenant))
        return sorted(own, key=lambda seen: seen.first_at)

    def page(self, tenant: str | None, offset: int, limit: int) -> tuple[list[Seen], int]:
        """Some of one tenant's, None: of all; and how many there are. Those with a request in the gateway come
        first, then the latest heard of."""
        seen, everybody = self._seen.values(), tenant is None
        rest = (each for each in reversed(seen) if not each.open)
        mine = (each for each in chain(self._busy.values(), rest) if everybody or each.tenant == tenant)
        num = len(seen) if everybody else sum(each.tenant == tenant for each in seen)
        return list(islice(mine, offset, offset + limit)), num

    def _forget(self, now: float) -> None:
        while self._seen:
            oldest = next(iter(self._seen.values()))
            if len(self._seen) <= self._limit and oldest.last_at >= now - self._ttl_s:
                return
            session_id, _ = self._seen.popitem(last=False)
            self._busy.pop(session_id, None)
