"""How many calls an engine runs at once that does not state it: learned from its own counts, poll by poll.

It is endless until the engine has had a queue for some polls while what it ran did not grow: then it is what ran.
That may be for want of KV blocks, or for one long prefill, and not of slots, so no bound is believed for good.
It follows what runs upwards at once, and grows ever faster while turns wait here and nothing waits there.
"""

from __future__ import annotations

STEADY = 2
"""Polls in a row after the first with a queue in which what runs has not grown."""
GROWTH = 8
"""The first step beyond a bound that holds is this part of it; each further one is twice as large."""


class Concurrency:
    """Owned by a pool."""

    def __init__(self) -> None:
        self.slots: int | None = None
        """None: endless, as far as anybody knows."""
        self._most_running = 0
        """Since there is a queue."""
        self._num_steady = 0
        self._step = 0

    def saw(self, running: int, waiting: int, is_wanted: bool) -> None:
        """A poll counted so many in the engine. `is_wanted`: turns wait here for a slot of it."""
        if waiting and not running:
            return  # it stands still: nothing is said of what it could run
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
