"""Executions that processes share: what is asked before a call that may be shared runs, and told after it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Protocol

from tool_runtime.outcome import Outcome


@dataclass(slots=True)
class Claimed:
    """One call in this process."""

    outcome: Outcome | None = None
    """Of another process or attempt; None: this one executes it."""
    kept: Outcome | None = None
    """It has been executed here. Told to those who wait for it now and, for `ttl_s`, to those who come."""
    ttl_s: float = 0.0


class Attempt(Protocol):
    """One attempt to give an answer. Where it is lost, with its client's connection or its process, and the client
    asks again, no call of a destructive tool is started twice: the first equal call of the next attempt gets what
    is known of the one that was started."""

    def claimed(self, key: bytes, unknown: Outcome) -> AbstractAsyncContextManager[Claimed]:
        """Entered before a call starts. `unknown`: what is known of it until it ends."""
        ...

    def ended(self, is_whole: bool) -> None:
        """The client has got the whole answer, or it is lost. Never waits."""
        ...


class Shared(Protocol):
    """Where processes meet. A failure of the way to it is as if nobody else was there."""

    def attempt(self, answer: bytes, is_retry: bool = False, lost_s: float | None = None) -> Attempt:
        """`answer`: equal when the same one is asked for again. `is_retry`: the client says that it is;
        `lost_s`: that it asked so long ago, and lost the connection over it."""
        ...

    def claimed(self, key: bytes) -> AbstractAsyncContextManager[Claimed]:
        """Entered once the outcome is known or nobody else executes the call. Who dies while executing it loses
        its claim within seconds."""
        ...


# ---- calls of destructive tools that lost answers have started in this process, until they are asked for again

KEPT_S = 1800.0
"""Whoever asks for the same after that means it anew, and not as a second attempt."""
_SLACK_S = 1.0
"""By which a client's and our times of one event may differ."""
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
    """Makes the attempts of a process that shares with no other.

    Law: what a client says that it has lost starts nothing any more, and all that it has started is known to the
    next attempt, also where it had ended well. If it may have been asked of a process before this one, the first
    of equal calls counts as started: whether it was is not known.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._began_at = clock()
        self._lost: OrderedDict[bytes, _Lost] = OrderedDict()
        self._latest: OrderedDict[bytes, LocalAttempt] = OrderedDict()
        """By answer, whether or not it has ended."""

    def attempt(self, answer: bytes, is_retry: bool = False, lost_s: float | None = None) -> LocalAttempt:
        now = self._clock()
        attempt = LocalAttempt(self, answer, now)
        if lost_s is not None:
            asked_at, earlier = now - lost_s - _SLACK_S, self._latest.get(answer)
            if earlier is not None and earlier.made_at >= asked_at:
                earlier.lose()
            attempt.may_have_begun = asked_at < self._began_at
        self._latest[answer] = attempt
        self._latest.move_to_end(answer)
        if len(self._latest) > MAX_LOST:
            self._latest.popitem(last=False)
        return attempt

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


@dataclass(slots=True, eq=False)
class LocalAttempt:
    """A `tool_runtime.attempts.Attempt`."""

    attempts: LocalAttempts
    answer: bytes
    made_at: float
    may_have_begun: bool = False
    """A process before this one may have started its calls."""
    is_lost: bool = False
    started: list[_Started] = field(default_factory=list)
    _told: set[bytes] = field(default_factory=set)
    """Calls that were told as unknown, as a process before this one may have started them."""

    @asynccontextmanager
    async def claimed(self, key: bytes, unknown: Outcome) -> AsyncIterator[Claimed]:
        key = key_in(self.answer, key)
        if self.is_lost:
            yield Claimed(unknown)
            return
        claimed = Claimed(self.attempts.take(key))
        if claimed.outcome is None and self.may_have_begun and key not in self._told:
            claimed.outcome = unknown
            self._told.add(key)
        started = _Started(key, claimed.outcome or unknown)
        self.started.append(started)
        yield claimed
        started.outcome = claimed.kept or started.outcome

    def ended(self, is_whole: bool) -> None:
        if not is_whole:
            self.lose()

    def lose(self) -> None:
        self.is_lost = True
        started, self.started = self.started, []
        for call in started:
            self.attempts.lose(call.key, call.outcome)
