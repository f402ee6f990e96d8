"""Calls of destructive tools that lost answers have started in this process, until they are asked for again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from hashlib import blake2b

from tool_runtime.outcome import Outcome
from tool_runtime.shared import Claimed

KEPT_S = 1800.0
"""Whoever asks for the same after that means it anew, and not as a second attempt."""
MAX_LOST = 1_000
"""Different calls; the one that was lost first is forgotten first."""


def key_in(answer: bytes, key: bytes) -> bytes:
    """Of a call within an answer: whoever asks for the same answer again makes the same one."""
    return blake2b(answer + key, digest_size=16).digest()


@dataclass(slots=True)
class _Started:
    key: bytes
    outcome: Outcome


@dataclass(slots=True)
class _Lost:
    outcomes: list[Outcome]
    """Of equal calls, in the order in which they were started."""
    until: float


class LocalAttempts:
    """Makes the attempts of a process that shares with no other."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lost: OrderedDict[bytes, _Lost] = OrderedDict()

    def attempt(self, answer: bytes, is_retry: bool = False) -> LocalAttempt:
        return LocalAttempt(self, answer)

    def take(self, key: bytes) -> Outcome | None:
        """What is known of a call that a lost attempt has started; it is the taker's now."""
        lost = self._lost.get(key)
        if lost is None or lost.until <= self._clock():
            return None
        outcome = lost.outcomes.pop(0)
        if not lost.outcomes:
            del self._lost[key]
        return outcome

    def lose(self, key: bytes, outcome: Outcome) -> None:
        outcomes = lost.outcomes if (lost := self._lost.pop(key, None)) is not None else []
        self._lost[key] = _Lost([*outcomes, outcome], self._clock() + KEPT_S)
        if len(self._lost) > MAX_LOST:
            self._lost.popitem(last=False)


@dataclass(slots=True)
class LocalAttempt:
    """A `tool_runtime.shared.Attempt`."""

    attempts: LocalAttempts
    answer: bytes
    started: list[_Started] = field(default_factory=list)

    @asynccontextmanager
    async def claimed(self, key: bytes, unknown: Outcome) -> AsyncIterator[Claimed]:
        key = key_in(self.answer, key)
        claimed = Claimed(self.attempts.take(key))
        started = _Started(key, claimed.outcome or unknown)
        self.started.append(started)
        yield claimed
        started.outcome = claimed.kept or started.outcome

    def ended(self, is_whole: bool) -> None:
        started, self.started = self.started, []
        if not is_whole:
            for call in started:
                self.attempts.lose(call.key, call.outcome)
