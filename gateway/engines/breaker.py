"""A circuit breaker: when a replica that fails too often gets no calls, and when it is tried again. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import StrEnum

MAX_CALLS = 64
"""The last calls of a replica that count."""


class BreakerState(StrEnum):
    """What the replica gets."""

    CLOSED = "closed"  # calls
    OPEN = "open"  # no calls
    HALF_OPEN = "half_open"  # one call at a time, which shows whether it works again


@dataclass(frozen=True, slots=True)
class BreakerRules:
    """When a circuit opens, and for how long."""

    failures: int = 5
    """Failed calls that open it, if they are at least half of the calls in the window."""
    window_s: float = 10.0
    open_s: float = 5.0
    """How long it is open the first time; twice as long each time that its trial fails."""
    max_open_s: float = 60.0


USUAL = BreakerRules()


class Breaker:
    """The circuit of one replica, from the results of its calls.

    Law: while it is closed it has no effect. Only a call that works closes it again.
    """

    def __init__(self, rules: BreakerRules) -> None:
        self._rules = rules
        self._calls: deque[tuple[float, bool]] = deque(maxlen=MAX_CALLS)
        """When each call ended, and whether it worked."""
        self._open_until: float | None = None
        self._num_opened = 0
        """Times that it opened in a row, without a call that worked in between."""

    def state(self, now: float) -> BreakerState:
        if self._open_until is None:
            return BreakerState.CLOSED
        return BreakerState.OPEN if now < self._open_until else BreakerState.HALF_OPEN

    def worked(self, now: float) -> bool:
        """A call began to be answered. Returns whether this closes the circuit. While it is open, only calls from
        before can be answered, and they do not count."""
        if self.state(now) is BreakerState.OPEN:
            return False
        was_open = self._open_until is not None
        self._open_until, self._num_opened = None, 0
        if was_open:
            self._calls.clear()
        self._calls.append((now, True))
        return was_open

    def failed(self, now: float, may_open: bool = True) -> bool:
        """A call failed. Returns whether this opens the circuit, if it may open."""
        state = self.state(now)
        self._calls.append((now, False))
        if (
            not may_open
            or state is BreakerState.OPEN
            or (state is BreakerState.CLOSED and not self._is_too_much(now))
        ):
            return False
        open_s = min(self._rules.max_open_s, self._rules.open_s * 2.0 ** min(self._num_opened, 20))
        self._open_until = now + open_s
        self._num_opened += 1
        return True

    def _is_too_much(self, now: float) -> bool:
        while self._calls and self._calls[0][0] < now - self._rules.window_s:
            self._calls.popleft()
        num_failed = sum(not worked for _, worked in self._calls)
        return num_failed >= self._rules.failures and 2 * num_failed >= len(self._calls)
