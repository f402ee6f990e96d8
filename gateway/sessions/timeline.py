"""The last turns, each with the times at which it changed its phase. Bounded; no content."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator
from typing import NamedTuple, TypeAlias

from gateway.core.errors import Outcome
from gateway.exchange import Exchange

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

    def ended(self, exchange: Exchange, now: float) -> None:
        """A turn of a recognised session is over, however."""
        self._ended.append(_values(exchange, now))

    def of(self, session_ids: Collection[str], since: float) -> Iterator[Span]:
        """Ended turns of these sessions that ended since then, newest first."""
        for ended in map(Span._make, reversed(self._ended)):
            if ended.ended_at is not None and ended.ended_at < since:
                return
            if ended.session_id in session_ids:
                yield ended


def span(exchange: Exchange, ended_at: float | None) -> Span:
    """A turn that has ended, or one that is in the gateway now."""
    return Span(*_values(exchange, ended_at))


def _values(exchange: Exchange, ended_at: float | None) -> _Values:
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
        exchange.outcome is Outcome.ANSWERED,
    )
