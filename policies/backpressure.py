"""Backpressure of one engine: what keeps a turn at the gate though its replica has a slot. Its own queue is full,
or calls go there whose rank it does not use, so that the gate has to keep the order."""

from __future__ import annotations

import math

from policies.types import NO_LIMITS, QueueLimits, Turn, TurnId, value

SHORT_S = 60.0
"""How long the queue is kept short after a call that the engine does not rank."""
SHORT_PART = 8
LEAST_SHORT = 2
"""A short queue holds this part of the calls that the engine runs at once, and at least so many. No slot is to
stay free, or to go to a batch, until the gate has sent the next call."""
CERTAIN_POLLS = 3
"""Polls after which a call that was sent before is in their counts. The first may have been under way then, and
the engine may have counted some time before the second."""


@value
class _Sent:
    """A call without a first byte."""

    num_polls: int
    """That had come when it was sent."""
    prompt_tokens: float
    is_last: bool
    """Whether the engine puts it behind all calls that it does not rank."""


class Backpressure:
    """Counts the calls that may wait in the queue of one engine. Owned by its pool.

    A call may wait there until its first byte comes; one whose answer comes whole, while polls see a queue.
    """

    def __init__(self) -> None:
        self.is_on = False
        """Whether calls are counted."""
        self.limits = NO_LIMITS
        self._share = 1.0
        self._short_until = -math.inf
        self._unstarted: dict[TurnId, _Sent] = {}
        self._num_polls = 0
        self._num_started = 0
        """Since the last poll."""
        self._waiting = 0
        """In the engine's queue at the last poll."""
        self._num_strangers = 0
        """Those of them that were not sent from here, at least."""
        self._has_refused = False
        """Whether it refused a call, and none has begun or ended since, nor did a poll come."""

    def state(self, limits: QueueLimits, share: float) -> None:
        """Set the limits that the engine states, and the part of them that is this gateway's."""
        self.limits, self._share = limits, share
        self.is_on = self.is_on or limits != NO_LIMITS

    def keep_short(self, now: float) -> None:
        """Keep the queue short for a while: a turn comes that the engine does not rank."""
        self.is_on, self._short_until = True, now + SHORT_S

    def saw(self, waiting: int) -> None:
        """Record the count of a poll."""
        self._waiting, self._num_polls, self._num_started = waiting, self._num_polls + 1, 0
        self._num_strangers = max(0, waiting - len(self._unstarted))
        self._has_refused = False
        if self._unstarted and not waiting:
            self._unstarted = {
                turn_id: sent for turn_id, sent in self._unstarted.items() if not self._is_counted(sent)
            }

    def sent(self, turn: Turn, prompt_tokens: float) -> None:
        self._unstarted[turn.id] = _Sent(self._num_polls, prompt_tokens, turn.priority_class < 0)

    def started(self, turn_id: TurnId) -> bool:
        """Record the first byte, or the end, of a call. Return whether another one may have a place now."""
        if self._unstarted.pop(turn_id, None) is not None:
            self._num_started += 1
        self._has_refused = False
        return self.is_on

    def refused(self, turn_id: TurnId) -> None:
        """Record that the engine refused a call, for lack of room: what is counted here was too little."""
        self._unstarted.pop(turn_id, None)
        self._has_refused = True

    def has_place(self, now: float, num_running: int, prefill_tokens: int, engine_slots: int | None) -> bool:
        """Whether one more call may be sent. `num_running`: calls under way; `prefill_tokens`: of their prompts,
        still to be computed; `engine_slots`: calls that it was seen to run while others waited.

        One call may always go, as only its fate shows that there is room again.
        """
        limits = self.limits
        if num_running and (limits.is_full or self._has_refused):
            return False
        if not self._unstarted:
            return True
        if limits.waiting is not None and self._most_waiting() >= self._own(limits.waiting):
            return False
        if limits.prefill_tokens is not None and prefill_tokens >= self._own(limits.prefill_tokens):
            return False
        if limits.prompt_tokens is not None and self._prompt_tokens() >= self._own(limits.prompt_tokens):
            return False
        return not self.is_short(now) or self._ahead() < max(LEAST_SHORT, (engine_slots or 0) // SHORT_PART)

    def is_short(self, now: float) -> bool:
        """Whether the queue of the engine is kept short now. Then all calls but batches get one rank there: it
        would take those that it ranks before those that it does not."""
        return self._waiting > 0 and now < self._short_until

    def _own(self, limit: int) -> int:
        return max(1, round(self._share * limit))

    def _is_counted(self, sent: _Sent) -> bool:
        """Whether the last poll counted the call, if it waited."""
        return self._num_polls - sent.num_polls >= CERTAIN_POLLS

    def _most_waiting(self) -> int:
        """Return the calls that may wait there now, at most."""
        num_counted = sum(map(self._is_counted, self._unstarted.values()))
        num_recent = len(self._unstarted) - num_counted
        return self._num_strangers + num_recent + min(num_counted, self._waiting)

    def _prompt_tokens(self) -> float:
        return sum(sent.prompt_tokens for sent in self._unstarted.values())

    def _ahead(self) -> int:
        """Return the calls that are likely to wait there now, without those that wait behind all the others."""
        ahead = [sent for sent in self._unstarted.values() if not sent.is_last]
        num_recent = sum(sent.num_polls == self._num_polls for sent in ahead)
        num_seen = self._waiting - self._num_started - (len(self._unstarted) - len(ahead))
        return num_recent + min(len(ahead) - num_recent, max(0, num_seen))
