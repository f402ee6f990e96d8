"""One coarse timer for all time-outs of a transport, since a timer per request would be too expensive."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto

PERIOD_S = 1.0
_TICKS_PER_TIMEOUT = 4


class Sweep:
    """Calls `tick(now)` every `PERIOD_S`, and more often for shorter time-outs.

    So a time-out fires up to a quarter of its length, or a second, late.
    """

    def __init__(self, tick: Callable[[float], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._tick = tick
        self._period_s = PERIOD_S
        self.now = self._loop.time()
        """Time of the latest tick."""
        self._timer = self._loop.call_later(self._period_s, self._run)

    def serves(self, timeout_s: float | None) -> None:
        """Tick often enough for time-outs of this length from now on."""
        if timeout_s is not None and timeout_s < self._period_s * _TICKS_PER_TIMEOUT:
            self._period_s = max(timeout_s / _TICKS_PER_TIMEOUT, 0.001)
            self._timer.cancel()
            self._timer = self._loop.call_later(self._period_s, self._run)

    def stop(self) -> None:
        self._timer.cancel()

    def _run(self) -> None:
        self.now = self._loop.time()
        self._timer = self._loop.call_later(self._period_s, self._run)
        self._tick(self.now)


# ---- the time-out of a client's connection, by the phase that it is in


class ConnectionPhase(Enum):
    """The event that a connection waits for."""

    IDLE = auto()
    HEAD = auto()
    BODY = auto()
    WORK = auto()
    WRITE = auto()
    REST = auto()
    CLOSE = auto()


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Bounds on a client, in seconds."""

    head_s: float = 30.0
    """From a request's first byte to the end of its headers."""
    idle_s: float = 75.0
    """Between two requests."""
    body_s: float = 60.0
    """Without a byte of a body that the handler waits for."""
    write_s: float = 120.0
    """Without taking a byte of an answer."""
    close_s: float = 5.0
    """To close after an answer that ends the connection, and to send the rest of a body that is discarded."""

    def of(self, phase: ConnectionPhase) -> float | None:
        """Return the bound of a phase; None while the handler works."""
        return {
            ConnectionPhase.IDLE: self.idle_s,
            ConnectionPhase.HEAD: self.head_s,
            ConnectionPhase.BODY: self.body_s,
            ConnectionPhase.WRITE: self.write_s,
            ConnectionPhase.REST: self.close_s,
            ConnectionPhase.CLOSE: self.close_s,
        }.get(phase)


_BYTES_COUNT = frozenset((ConnectionPhase.IDLE, ConnectionPhase.BODY))
"""Phases that each byte of the client restarts. The bytes of a head do not: they could drip for ever."""


class ConnectionWatch:
    """Checks a connection once per sweep. Between two checks the connection only notes that bytes have come."""

    __slots__ = ("_limits", "_phase", "_since", "_unsent_bytes", "has_heard")

    def __init__(self, limits: ConnectionLimits) -> None:
        self.has_heard = False
        self._limits = limits
        self._phase: ConnectionPhase | None = None
        self._since = 0.0
        self._unsent_bytes = 0

    def restart(self) -> None:
        """Note that a phase has ended, even if the next check finds the same phase again."""
        self._phase = None

    def is_overdue(self, phase: ConnectionPhase, unsent_bytes: int, now: float) -> bool:
        has_moved = unsent_bytes != self._unsent_bytes or (self.has_heard and phase in _BYTES_COUNT)
        self.has_heard, self._unsent_bytes = False, unsent_bytes
        if phase is not self._phase or has_moved:
            self._phase, self._since = phase, now
            return False
        limit_s = self._limits.of(phase)
        return limit_s is not None and now - self._since > limit_s
