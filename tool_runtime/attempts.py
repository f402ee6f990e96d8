"""Executions that outlive one answer or one process: an attempt that is lost, a call that another process runs."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Protocol

from tool_runtime.types import Outcome


@dataclass(slots=True)
class Claimed:
    """One call of this process, claimed before it runs."""

    outcome: Outcome | None = None
    """Its outcome in another process or attempt. None: this process executes it."""
    kept: Outcome | None = None
    """Its outcome here, for all that wait for it now and, for `ttl_s`, for later calls."""
    ttl_s: float = 0.0


class Attempt(Protocol):
    """One attempt to give an answer, which is lost with its client's connection or with its process.

    Law: when the client asks again, no call of a destructive tool is started twice. The first equal call of the
    next attempt gets the last known outcome of the call that was started.
    """

    def claimed(self, key: bytes, unknown: Outcome) -> AbstractAsyncContextManager[Claimed]:
        """Claim a call before it starts. `unknown` is its outcome until it ends."""
        ...

    def ended(self, is_whole: bool) -> None:
        """Note whether the client has got the whole answer, or it is lost. Never waits."""
        ...


class SharedExecutions(Protocol):
    """The store in which processes meet. While it cannot be reached, each process works as if it was alone."""

    def attempt(self, answer: bytes, is_retry: bool = False, lost_s: float | None = None) -> Attempt:
        """Return an attempt at an answer; `answer` is equal when the client asks for the same one again.

        As the client says, `is_retry`: it asks again; `lost_s`: it asked so long ago, and lost the connection.
        """
        ...

    def claimed(self, key: bytes) -> AbstractAsyncContextManager[Claimed]:
        """Claim a call once its outcome is known or no other process executes it.

        A process that dies while it executes a call loses its claim within seconds.
        """
        ...


# ---- the attempts of one process

KEPT_S = 1800.0
"""A later request for the same answer is a new one, and not a second attempt."""
_SLACK_S = 1.0
"""Largest difference between the client's time of an event and the time here."""
MAX_LOST = 1_000
"""Largest number of different lost calls. The one that was lost first is forgotten first."""


def key_in(answer: bytes, key: bytes) -> bytes:
    """Return the key of a call within an answer. It is equal in all attempts at this answer."""
    return blake2b(answer + key, digest_size=16).digest()


@dataclass(slots=True)
class _Started:
    key: bytes
    outcome: Outcome


@dataclass(slots=True)
class _Lost:
    outcomes: list[Outcome]
    """Outcomes of equal calls, in the order in which they were started."""
    until: float


class LocalAttempts:
    """The attempts of a process that shares with no other, and the calls that lost ones have started.

    Laws: an attempt that the client calls lost starts no further call. The next attempt knows all calls that it
    has started, also those that ended well. Where an earlier process may have had the lost request, the first of
    equal calls counts as started, since this process cannot know.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._began_at = clock()
        self._lost: OrderedDict[bytes, _Lost] = OrderedDict()
        self._latest: OrderedDict[bytes, LocalAttempt] = OrderedDict()
        """The latest attempt by answer, whether or not it has ended."""

    def attempt(self, answer: bytes, is_retry: bool = False, lost_s: float | None = None) -> LocalAttempt:
        now = self._clock()
        attempt = LocalAttempt(self, answer, now)
        if lost_s is not None:
            sent_at, earlier = now - lost_s - _SLACK_S, self._latest.get(answer)
            if earlier is not None and earlier.made_at >= sent_at:
                earlier.lose()
            attempt.may_have_begun = sent_at < self._began_at
        self._latest[answer] = attempt
        self._latest.move_to_end(answer)
        if len(self._latest) > MAX_LOST:
            self._latest.popitem(last=False)
        return attempt

    def take(self, key: bytes) -> Outcome | None:
        """Remove and return the outcome of a call that a lost attempt has started. None: there is no such call."""
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
    """An `Attempt` within one process."""

    attempts: LocalAttempts
    answer: bytes
    made_at: float
    may_have_begun: bool = False
    """An earlier process may have started its calls."""
    is_lost: bool = False
    started: list[_Started] = field(default_factory=list)
    _answered_unknown: set[bytes] = field(default_factory=set)
    """Calls that got an unknown outcome, since an earlier process may have started them."""

    @asynccontextmanager
    async def claimed(self, key: bytes, unknown: Outcome) -> AsyncIterator[Claimed]:
        key = key_in(self.answer, key)
        if self.is_lost:
            yield Claimed(unknown)
            return
        claimed = Claimed(self.attempts.take(key))
        if claimed.outcome is None and self.may_have_begun and key not in self._answered_unknown:
            claimed.outcome = unknown
            self._answered_unknown.add(key)
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
