"""What an engine can take: the size of its KV pool, its slots, and the calls that a rented provider takes at once.

The size is the engine's statement, corrected by the prompts that it turns out to keep.

Decided once per turnover, the time in which the engine computes as many prompt tokens as the pool holds: additive
increase and multiplicative decrease (Chiu and Jain, 1989). Eviction that an admission caused, because it was
worth it, is expected and lowers nothing. An engine that states nothing has no bound until it evicts.
"""

from __future__ import annotations

LOWERED, RAISED = 0.95, 0.02
MET = 0.8
"""A prompt whose cached part is at least this share of the prompt before was found as expected: templates and
whole blocks take their part of the rest."""
LOST, KEPT = 0.02, 0.005
"""Share of what was looked for: missed beyond the plan, it lowers the size; up to the other, it raises it."""
PLANNED = 1.5
"""Misses per share by which the residents overflow the pool."""
FILLED = 0.9
"""Of the pool by its residents, or nothing is learned of its size."""
MAX_OVER_STATED = 1.5
"""Times what the engine states: no engine understates by more."""
BACK_OFF = 4
"""Turnovers without any miss that a step beyond what the engine states needs: two, and after each step that was
one too many so many times more."""


class Capacity:
    """Learns the size of one pool, which owns it."""

    def __init__(self) -> None:
        self.stated_tokens: int | None = None
        """By the engine; None: it did not say."""
        self._share = 1.0
        self._learned_tokens: float | None = None
        """Size of the whole pool."""
        self.tokens: float | None = None
        """Size of this gateway's share. None: no bound is known."""
        self._num_clean, self._fewest_clean = 0, 2
        self._begin()

    def _begin(self) -> None:
        """Begin a turnover: tokens computed, looked for, missed, and expected to be missed."""
        self._computed_tokens = self._wanted_tokens = self._missed_tokens = self._planned_tokens = 0.0

    @property
    def share(self) -> float:
        """Of the pool that is this gateway's own."""
        return self._share

    @share.setter
    def share(self, share: float) -> None:
        self._share = share
        self._learned(self._learned_tokens)

    def state(self, tokens: int) -> None:
        """The engine reported its size; one that differs from before is another engine."""
        if tokens != self.stated_tokens:
            self.stated_tokens = tokens
            self._learned(None)

    def _learned(self, whole_tokens: float | None) -> None:
        """Set the size that the pool has shown; None: its engine's statement counts."""
        self._learned_tokens = whole_tokens
        if whole_tokens is None:
            whole_tokens = self.stated_tokens
        self.tokens = None if whole_tokens is None else self._share * whole_tokens

    def saw(
        self, computed_tokens: float, wanted_tokens: float, missed_tokens: float, resident_tokens: float
    ) -> None:
        """A turn computed so many tokens. Of `wanted_tokens` that should have been cached it missed some, while
        residents of that size were meant to be kept."""
        size_tokens = resident_tokens if self.tokens is None else self.tokens
        if not size_tokens:
            return  # its size is not known, and it has no residents
        self._computed_tokens += computed_tokens
        self._wanted_tokens += wanted_tokens
        self._missed_tokens += missed_tokens
        self._planned_tokens += PLANNED * wanted_tokens * max(0.0, resident_tokens / size_tokens - 1)
        if self._computed_tokens < size_tokens or not self._wanted_tokens:
            return
        missed = self._missed_tokens / self._wanted_tokens
        if missed - self._planned_tokens / self._wanted_tokens > LOST:
            self._lower(size_tokens / self.share)
        elif missed <= KEPT and self.tokens is not None:
            self._raise(self.tokens / self.share, resident_tokens / self.share, is_clean=not missed)
        self._begin()

    def _lower(self, size_tokens: float) -> None:
        if self.stated_tokens is not None and size_tokens > self.stated_tokens:
            self._learned(None)
            self._fewest_clean *= BACK_OFF
        else:
            self._learned(LOWERED * size_tokens)
        self._num_clean = 0

    def _raise(self, size_tokens: float, resident_tokens: float, is_clean: bool) -> None:
        """Only where the residents fill what they have."""
        if resident_tokens < FILLED * size_tokens:
            return
        self._num_clean = self._num_clean + 1 if is_clean else 0
        if self.stated_tokens is None or size_tokens < self.stated_tokens:
            self._learned(size_tokens * (1 + RAISED))
        elif self._num_clean >= self._fewest_clean:
            self._learned(min(MAX_OVER_STATED * self.stated_tokens, size_tokens * (1 + RAISED)))


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
