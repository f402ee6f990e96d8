"""The queue inside one engine, inferred from its calls and its polled counts: where the time of a call went."""

from __future__ import annotations

from collections import deque

from policies.learning import Pace
from policies.types import value

MAX_ENDS = 4_096
"""Ends of calls that are kept: more calls than this are never under way at one engine."""
LEAST_S, LEAST_SHARE = 0.1, 0.5
"""A first byte that came later than expected by less than this, or by less than this part of the expected time,
shows no queue: prefills differ by as much."""


@value
class EngineTime:
    """Seconds of one call at its engine. Their sum is the whole call."""

    queue_s: float
    """In the engine's own queue: inferred, since engines do not say it of a call."""
    prefill_s: float
    decode_s: float
    beside_s: float = 0.0
    """Part of the prefill that went to prompts of other calls, also while its own answer stood still for them."""
    queue_beside_s: float = 0.0
    """Part of the queue that went to them: more slots would not have shortened it."""


class EngineQueue:
    """The queue of one engine: first come, first served, with so many calls at once. Owned by its pool.

    A call begins once all but `slots - 1` of those before it have ended. So its wait follows from the times at
    which calls ended, even if the engine shows its queue only later.
    """

    def __init__(self) -> None:
        self.slots: int | None = None
        """Calls that it ran while others waited. None: it has never shown a queue."""
        self.waiting: int | None = None
        """In its queue at the last poll. None: it does not say."""
        self.num_polls = 0
        self._num_ended = 0
        self._ends: deque[float] = deque(maxlen=MAX_ENDS)

    def saw(self, running: int, waiting: int) -> None:
        """Record the counts of a poll. While a queue lasts its slots are the most that ran: a prefill that fills
        an iteration holds up calls that have a slot."""
        lasts = bool(self.waiting) and self.slots is not None
        self.waiting, self.num_polls = waiting, self.num_polls + 1
        if waiting and running:
            self.slots = max(self.slots or 0, running) if lasts else running
        elif self.slots is not None:
            self.slots = max(self.slots, running)

    def place(self, num_before: int) -> int:
        """Return the place of a call that is sent now, with so many under way before it."""
        return self._num_ended + num_before

    def ended(self, now: float) -> None:
        """Record that a call ended."""
        self._num_ended += 1
        self._ends.append(now)

    def is_queued(self, place: int) -> bool:
        """Whether a call that has no first byte waits in the queue now."""
        return bool(self.waiting) and self.slots is not None and place - self.slots >= self._num_ended

    def wait_s(self, place: int, sent_at: float) -> float:
        """Return how long a call that has begun waited for a slot."""
        if self.slots is None or place < self.slots:
            return 0.0
        index = place - self.slots - (self._num_ended - len(self._ends))
        return max(0.0, self._ends[index] - sent_at) if 0 <= index < len(self._ends) else 0.0

    def split(
        self,
        pace: Pace,
        place: int,
        num_polls: int,
        sent_at: float,
        first_byte_at: float | None,
        ended_at: float,
        computed_tokens: float,
        beside_s: float,
        stalled_s: float = 0.0,
    ) -> EngineTime:
        """Return where the time of a call went.

        `num_polls`: at the time when it was sent; `first_byte_at`: None for an answer that came whole;
        `computed_tokens`: of its prompt, without the cached ones; `beside_s`: how long other prompts were computed
        until its first byte; `stalled_s`: the same from then on. Its own answer stands still meanwhile, so this
        counts as `beside`, not as decode.

        Where no ends of calls explain a late first byte, the time beyond the learned speed of the prefill counts
        as queue, unless the engine says that nothing waits.
        """
        until = ended_at if first_byte_at is None else first_byte_at
        queue_s = 0.0 if self.slots is None else min(self.wait_s(place, sent_at), until - sent_at)
        expected_s = pace.prefill_s(computed_tokens)
        says_none = self.waiting == 0 and self.num_polls > num_polls
        if first_byte_at is not None and not queue_s and not says_none and pace.knows_prefill:
            late_s = until - sent_at - expected_s - beside_s
            queue_s = late_s if late_s > max(LEAST_S, LEAST_SHARE * expected_s) else 0.0
        left_s = until - sent_at - queue_s
        prefill_s = left_s if first_byte_at is not None else min(left_s, expected_s)
        decode_s = ended_at - sent_at - queue_s - prefill_s
        stalled_s = min(stalled_s, decode_s) if stalled_s > LEAST_S else 0.0
        if not beside_s and not stalled_s:
            return EngineTime(queue_s, prefill_s, decode_s)
        in_prefill_s = min(beside_s, max(0.0, prefill_s - expected_s))
        in_queue_s = min(beside_s - in_prefill_s, queue_s)
        prefill_s, decode_s = prefill_s + stalled_s, decode_s - stalled_s
        return EngineTime(queue_s, prefill_s, decode_s, in_prefill_s + stalled_s, in_queue_s)
