"""What an engine can take: the size of its KV pool, its slots, and the calls that a rented provider takes at once.

The size is the engine's statement until sessions that return prove another one. An engine evicts first what was
released first. So a session that is still cached shows that the pool holds its reuse distance (`reuse.py`). A
session that lost m tokens of its own shows that the pool holds m less than that. The size is the threshold with
the fewest errors over the last observations. Why a session was admitted plays no part. An engine that states
nothing has no bound until it evicts.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

MOST_SHOWN = 128
"""Observations that count; older ones are forgotten."""
NEAR = 0.5, 2.0
"""Of the size that is believed. Bounds beyond say nothing of it: a much smaller size is found in steps."""
TOLERANCE = 0.02
"""Part by which a bound may err: text behind the last whole block is not counted exactly."""
PRIOR = 1
"""Observations against which a statement holds."""
MAX_OVER_STATED = 2.0
"""Times what the engine states: what runs has to fit its own memory, whatever else keeps prompts."""
SAFE, BEYOND = 0.95, 1.1
"""Of the least bound from above where none from below is near it, and of the greatest from below where none from
above is: the first errors are cheap, and show the rest."""
FOUND = 0.2
"""Part of its own text that a session may miss and count as found."""
MAX_GRAIN, TEMPLATE_TOKENS = 1_024, 32
"""Tokens of the largest block that an engine finds again as a whole, and those that a template may change at the
end of a prompt."""


class Shown(NamedTuple):
    """Bounds of a pool's size, in tokens. Infinite: nothing was missed."""

    least_tokens: float
    most_tokens: float


def shown_by(
    distance_tokens: float,
    private_tokens: float,
    missed_tokens: float,
    decoding_tokens: float,
    grain_tokens: int,
    block_tokens: float,
) -> Shown | None:
    """Return the bounds that the return of a session shows; None where its own text is too short to tell.

    Its private tokens, which no other session touched, are evicted from their end. `decoding_tokens`: what the
    answers that ran then took, within half of it; `grain_tokens`: what the engine finds again as a whole;
    `block_tokens`: how exactly the private tokens are known.
    """
    edge_tokens = min(grain_tokens, MAX_GRAIN) + TEMPLATE_TOKENS
    if private_tokens < 2 * edge_tokens:
        return None
    left_tokens = distance_tokens - min(missed_tokens, private_tokens)
    least_tokens, most_tokens = left_tokens + decoding_tokens / 2, left_tokens + 1.5 * decoding_tokens
    if missed_tokens <= max(edge_tokens, FOUND * private_tokens):
        return Shown(least_tokens, math.inf)
    if missed_tokens >= private_tokens - edge_tokens - block_tokens:
        return Shown(0.0, most_tokens)
    return Shown(least_tokens, most_tokens)


class Capacity:
    """Learns the size of one pool, which owns it."""

    def __init__(self) -> None:
        self.stated_tokens: int | None = None
        """By the engine; None: it did not say."""
        self._share = 1.0
        self._shown: deque[Shown] = deque(maxlen=MOST_SHOWN)
        """Of the whole pool."""
        self._whole_tokens: float | None = None
        self.tokens: float | None = None
        """Size of this gateway's share. None: no bound is known."""

    @property
    def share(self) -> float:
        """Of the pool that is this gateway's own."""
        return self._share

    @share.setter
    def share(self, share: float) -> None:
        self._share = share
        self._believe(self._whole_tokens)

    def state(self, tokens: int) -> None:
        """The engine reported its size; one that differs from before is another engine."""
        if tokens != self.stated_tokens:
            self.stated_tokens = tokens
            self._shown.clear()
            self._believe(tokens)

    @property
    def lessons(self) -> tuple[int | None, float | None, tuple[tuple[float, float | None], ...]]:
        """(stated size, believed size, bounds) of the whole pool; `recall` takes them back."""
        shown = (
            (one.least_tokens, None if one.most_tokens == math.inf else one.most_tokens) for one in self._shown
        )
        return self.stated_tokens, self._whole_tokens, tuple(shown)

    def recall(
        self,
        stated_tokens: int | None,
        whole_tokens: float | None,
        shown: Iterable[tuple[float, float | None]],
    ) -> None:
        """Take in the lessons of an earlier gateway. An engine that states another size has them dropped."""
        self.stated_tokens = stated_tokens
        self._shown.extend(Shown(least, math.inf if most is None else most) for least, most in shown)
        self._believe(whole_tokens)

    def _believe(self, whole_tokens: float | None) -> None:
        self._whole_tokens = whole_tokens
        self.tokens = None if whole_tokens is None else self._share * whole_tokens

    def saw(self, shown: Shown) -> None:
        """Take in what a turn has shown of this gateway's share."""
        least_tokens = (1 - TOLERANCE) * shown.least_tokens / self._share
        most_tokens = (1 + TOLERANCE) * shown.most_tokens / self._share
        size_tokens = self._whole_tokens or 0.0
        if least_tokens <= NEAR[0] * size_tokens and (
            most_tokens <= NEAR[0] * size_tokens or most_tokens >= NEAR[1] * (size_tokens or math.inf)
        ):
            return
        self._shown.append(Shown(least_tokens, most_tokens))
        if not least_tokens <= (size_tokens or math.inf) <= most_tokens:
            self._believe(self._fitting())

    def _fitting(self) -> float | None:
        """Return the size with the fewest errors: the stated one unless another has fewer by more than PRIOR."""
        least = sorted(shown.least_tokens for shown in self._shown if shown.least_tokens > 0)
        most = sorted(shown.most_tokens for shown in self._shown if shown.most_tokens < math.inf)
        stated_tokens = math.inf if self.stated_tokens is None else float(self.stated_tokens)

        def num_errors(size_tokens: float) -> int:
            return len(least) - bisect_right(least, size_tokens) + bisect_left(most, size_tokens)

        low = min((0.0, *least), key=lambda size: (num_errors(size), abs(stated_tokens - size)))
        if num_errors(stated_tokens) <= num_errors(low) + PRIOR:
            return None if self.stated_tokens is None else stated_tokens
        num_below = bisect_left(most, low)
        high = most[num_below] if num_below < len(most) else math.inf
        if high == math.inf:
            size = BEYOND * low / (1 - TOLERANCE)
        else:
            size = max(SAFE * high / (1 + TOLERANCE), min((low + high) / 2, BEYOND * low / (1 - TOLERANCE)))
        return min(size, MAX_OVER_STATED * stated_tokens)


# ---- slots of an engine that does not state them

STEADY = 2
"""Polls in a row after the first with a queue in which what runs has not grown."""
GROWTH = 8
"""The first step beyond a bound that holds is this part of it; each further one is twice as large."""


class Concurrency:
    """Learns the slots of one engine. Owned by its pool.

    An engine has no bound until it shows a queue for some polls while its running calls do not grow: then their
    number is the bound. The cause may be a lack of KV blocks, or one long prefill, so no bound is final. It
    follows what runs upwards at once, and grows ever faster while turns wait here and none waits there.
    """

    def __init__(self) -> None:
        self.slots: int | None = None
        """None: no bound is known."""
        self._most_running = 0
        """Since there is a queue."""
        self._num_steady = 0
        self._step = 0

    def saw(self, running: int, waiting: int, is_wanted: bool) -> None:
        """Record the counts of a poll. `is_wanted`: turns wait here for a slot of it."""
        if waiting and not running:
            return  # it stands still, which shows no bound
        if waiting:
            self._step = 0
            self._num_steady = self._num_steady + 1 if running <= self._most_running else 0
            self._most_running = max(self._most_running, running)
            if self._num_steady >= STEADY:
                self.slots = self._most_running
        else:
            self._most_running = self._num_steady = 0
            if is_wanted and self.slots is not None:
                self._step = max(1, self.slots // GROWTH, 2 * self._step)
                self.slots += self._step
        if self.slots is not None:
            self.slots = max(self.slots, running)


# ---- calls that a rented provider takes at once

FIRST_LIMIT = 32
"""Calls that current providers take of a new client; a few round trips find more."""
MAX_LIMIT = 1024
CUT_FACTOR = 0.7


class Throttle:
    """Learns how many calls one provider takes at once. Law: 1 <= limit <= MAX_LIMIT.

    The limit grows by one per answered call until the first refusal, then by one per round of calls, and only
    while it is in use. A refusal cuts it, once for all calls that began before the cut: they were sent under the
    old limit.
    """

    def __init__(self, start: float = FIRST_LIMIT) -> None:
        self._limit = min(float(MAX_LIMIT), max(1.0, start))
        self.was_cut = False
        """Whether it ever refused."""
        self._cut_at = float("-inf")

    @property
    def limit(self) -> int:
        return int(self._limit)

    def answered(self, in_flight: int) -> None:
        """Record a call that was not refused. `in_flight` counts it."""
        if 2 * in_flight < self.limit:
            return
        self._limit = min(float(MAX_LIMIT), self._limit + (1 / self._limit if self.was_cut else 1))

    def refused(self, begun_at: float, in_flight: int, now: float) -> None:
        """Record the refusal of a call that was sent at `begun_at`. `in_flight` counts it."""
        if begun_at < self._cut_at:
            return
        self._limit = max(1.0, CUT_FACTOR * min(self._limit, in_flight))
        self.was_cut, self._cut_at = True, now
