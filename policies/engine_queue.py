"""The queue inside one engine, inferred from its calls and its polled counts: where the time of a call went."""

from __future__ import annotations

import math
from collections import deque
from itertools import islice

from policies.learning import Pace
from policies.types import value

MAX_ENDS = 4_096
"""Ends of calls that are kept: more calls than this are never under way at one engine."""
MAX_POLLS = 1_024
"""Polls that are kept."""
LEAST_S, LEAST_SHARE = 0.1, 0.5
"""A first byte that came later than expected by less than this, or by less than this part of the expected time,
shows no queue: prefills differ by as much."""
SAME_ITERATION_S = 0.01
"""First bytes that are no further apart than this, or than half of the prefill of one of them, come from one
iteration of the engine."""
NEARLY = 0.9
"""Part of its expected prefill that a call needs at least."""
UNCLEAR = 0.15
"""Part of a queue by which it may be wrong unsaid."""


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
    unclear_s: float = 0.0
    """By how much the queue may be longer or shorter, where neither first bytes nor polls tell."""


class _Iteration:
    """The end of an iteration of an engine, shown by the first bytes that came with it."""

    __slots__ = ("_earlier_at", "at", "before_at", "first_place", "num")

    def __init__(self, at: float, place: int, before: _Iteration | None) -> None:
        self.at, self.first_place, self.num = at, place, 1
        """When its last first byte came; the earliest of its calls; how many they are."""
        self.before_at = -math.inf if before is None else before.at
        """When the one before it ended, so that it began then at the earliest."""
        self._earlier_at = -math.inf if before is None else before.before_at

    def begun_at(self, call: EngineCall) -> float:
        """Return when it began, for one of its calls. Of several the first was mostly begun in the one before."""
        is_first = self.num > 1 and self.first_place == call.place
        return self._earlier_at if is_first else self.before_at

    @property
    def uncertainty_s(self) -> float:
        """How much earlier a prompt may have begun that ended alone in it: in the iteration before."""
        return self.before_at - self._earlier_at if self.num == 1 else 0.0


class EngineCall:
    """One call at an engine, as far as its queue is concerned."""

    __slots__ = ("first_byte_at", "iteration", "num_before", "num_polls", "place", "sent_at")

    def __init__(self, place: int, num_before: int, num_polls: int, sent_at: float) -> None:
        self.place, self.num_before, self.num_polls, self.sent_at = place, num_before, num_polls, sent_at
        """Its number among all calls to the engine; calls under way and polls before it; when it was sent."""
        self.first_byte_at: float | None = None
        self.iteration: _Iteration | None = None
        """The one that ended its prefill."""


class EngineQueue:
    """The queue of one engine: first come, first served. Owned by its pool.

    A call waits for two things there. It needs a slot: it has one once all but `slots - 1` of those before it have
    ended. And an iteration of the engine computes only so many tokens of prompts, so that of many prompts at once
    some wait for others: the first bytes of those before it show when its own iteration began. Polls bound both:
    of the calls sent so far, the last that many wait as a poll counts.
    """

    def __init__(self) -> None:
        self.slots: int | None = None
        """Calls that it ran while others waited. None: it has never shown a queue."""
        self.waiting: int | None = None
        """In its queue at the last poll. None: it does not say."""
        self._num_polls = 0
        self._polls: deque[tuple[float, int, int, int]] = deque(maxlen=MAX_POLLS)
        """(when; its count; the first place that it may not have counted; the first that waited for sure)."""
        self._num_ended = 0
        self._ends: deque[float] = deque(maxlen=MAX_ENDS)
        self._iteration: _Iteration | None = None

    def saw(self, running: int, waiting: int, num_sent: int, now: float) -> None:
        """Record the counts of a poll; `num_sent`: calls under way by our own count. While a queue lasts its slots
        are the most that ran: a prefill that fills an iteration holds up calls that have a slot."""
        lasts = bool(self.waiting) and self.slots is not None
        self.waiting, self._num_polls = waiting, self._num_polls + 1
        if waiting and running:
            self.slots = max(self.slots or 0, running) if lasts else running
        elif self.slots is not None:
            self.slots = max(self.slots, running)
        next_place, num_others = self._num_ended + num_sent, running + waiting - num_sent
        arrived = next_place + min(0, num_others)  # the engine had not counted the later ones yet
        waits = next_place - max(0, waiting - max(0, num_others))
        self._polls.append((now, waiting, arrived, waits))

    def send(self, num_before: int, now: float) -> EngineCall:
        """Return the call that is sent now, with so many under way before it."""
        return EngineCall(self._num_ended + num_before, num_before, self._num_polls, now)

    def first_byte(self, call: EngineCall, prefill_s: float, now: float) -> None:
        """Record the first byte of a call whose prefill takes so long by itself."""
        last = self._iteration
        if last is None or now - last.at > max(SAME_ITERATION_S, prefill_s / 2):
            last = self._iteration = _Iteration(now, call.place, last)
        else:
            last.at, last.num, last.first_place = now, last.num + 1, min(last.first_place, call.place)
        call.first_byte_at, call.iteration = now, last

    def ended(self, now: float) -> None:
        """Record that a call ended."""
        self._num_ended += 1
        self._ends.append(now)

    def is_queued(self, call: EngineCall) -> bool:
        """Whether a call that has no first byte waits in the queue now."""
        return bool(self.waiting) and self.slots is not None and call.place - self.slots >= self._num_ended

    def slot_wait_s(self, call: EngineCall) -> float:
        """Return how long a call that has begun waited for a slot."""
        if self.slots is None or call.place < self.slots:
            return 0.0
        index = call.place - self.slots - (self._num_ended - len(self._ends))
        return max(0.0, self._ends[index] - call.sent_at) if 0 <= index < len(self._ends) else 0.0

    def split(
        self,
        call: EngineCall,
        pace: Pace,
        is_whole: bool,
        ended_at: float,
        computed_tokens: float,
        beside_s: float,
        stalled_s: float = 0.0,
    ) -> EngineTime:
        """Return where the time of a call went.

        `is_whole`: its answer came at once, so that its first byte says nothing; `computed_tokens`: of its prompt,
        without the cached ones; `beside_s`: how long other prompts were computed until its first byte;
        `stalled_s`: the same from then on. Its own answer stands still meanwhile, so this counts as `beside`, not
        as decode.
        """
        until = ended_at if is_whole or call.first_byte_at is None else call.first_byte_at
        is_whole = is_whole or call.first_byte_at is None
        expected_s = pace.prefill_s(computed_tokens)
        begun_at, unclear_s = self._begun(call, is_whole, until, expected_s, beside_s, pace.knows_prefill)
        queue_s = begun_at - call.sent_at
        left_s = until - begun_at
        prefill_s = min(left_s, expected_s) if is_whole else left_s
        decode_s = ended_at - begun_at - prefill_s
        stalled_s = min(stalled_s, decode_s) if stalled_s > LEAST_S else 0.0
        in_prefill_s = min(beside_s, max(0.0, prefill_s - expected_s))
        in_queue_s = min(beside_s - in_prefill_s, queue_s)
        prefill_s, decode_s = prefill_s + stalled_s, decode_s - stalled_s
        return EngineTime(queue_s, prefill_s, decode_s, in_prefill_s + stalled_s, in_queue_s, unclear_s)

    def _begun(
        self,
        call: EngineCall,
        is_whole: bool,
        until: float,
        expected_s: float,
        beside_s: float,
        knows_prefill: bool,
    ) -> tuple[float, float]:
        """Return when a call began, and by how much this may be wrong.

        It had its slot, or its turn among the prompts of others, as far as polls allow. If all polls between say
        that nothing waited, it began at once. Then, and where a first byte is later than its prompt and those of
        others explain, the wait is unclear. It is a queue if the engine never says what waits.
        """
        least, most, num_polls, was_queue = self._polled(call, until)
        has_polls = self.waiting is not None
        if is_whole or call.iteration is None:
            begun_at, unclear_s = self._slot_at(call, least, most, until - expected_s)
            unclear_s = min(unclear_s, beside_s) if num_polls and not was_queue else unclear_s
        else:
            needed_s = expected_s if knows_prefill else 0.0
            begun_at, unclear_s = self._turn_at(call, call.iteration, until, needed_s)
            begun_at = max(call.sent_at, min(max(begun_at, least), most))
            explained_s = call.iteration.num * expected_s + max(0.0, beside_s - (begun_at - call.sent_at))
            # Without polls the iteration before may itself be one that waited.
            since = max(begun_at, call.iteration.before_at) if has_polls else begun_at
            late_s = until - since - explained_s
            is_late = knows_prefill and late_s > max(LEAST_S, LEAST_SHARE * expected_s)
            if is_late and not has_polls:
                begun_at = min(begun_at + late_s, until)
            elif is_late:
                unclear_s = max(unclear_s, late_s)
            unclear_s = min(unclear_s, max(most - begun_at, begun_at - least))
            unclear_s = begun_at - call.sent_at if num_polls and not was_queue else unclear_s
        begun_at = call.sent_at if num_polls and not was_queue else begun_at
        return begun_at, unclear_s if unclear_s > max(LEAST_S, UNCLEAR * (begun_at - call.sent_at)) else 0.0

    def _slot_at(self, call: EngineCall, least: float, most: float, latest: float) -> tuple[float, float]:
        """Return when a call had its slot whose answer came whole, and by how much this may be wrong."""
        slot_at = min(call.sent_at + self.slot_wait_s(call), most)
        begun_at = slot_at if slot_at >= least else (least + most) / 2
        return begun_at, max(begun_at - least, min(most, latest) - begun_at) if call.num_before else 0.0

    def _turn_at(
        self, call: EngineCall, iteration: _Iteration, until: float, needed_s: float
    ) -> tuple[float, float]:
        """Return when a call began its prefill, as ends of calls and first bytes show, and by how much this may be
        wrong. A slot that it had too late for its prefill was another one: the engine has more than it showed."""
        slot_at = call.sent_at + self.slot_wait_s(call)
        if self.waiting is None:
            return min(slot_at, until), 0.0
        turn_at = min(iteration.begun_at(call), until - needed_s)
        if turn_at < slot_at <= until - NEARLY * needed_s or turn_at <= call.sent_at:
            return min(slot_at, until), 0.0
        return turn_at, iteration.uncertainty_s

    def _polled(self, call: EngineCall, until: float) -> tuple[float, float, int, bool]:
        """Return between which times a call began by the polls until then; how many of them counted it, and
        whether one saw a queue."""
        least, most, num, was_queue = call.sent_at, until, 0, False
        first = max(0, len(self._polls) - (self._num_polls - call.num_polls))
        for at, waiting, arrived, waits in islice(self._polls, first, None):
            if at >= until:
                break
            was_queue = was_queue or waiting > 0
            num += call.place < arrived
            if call.place >= waits:
                least = at
            elif call.place < arrived - waiting:
                return least, at, num, was_queue
        return least, most, num, was_queue
