"""Whether it pays to have an engine prefill a session's next prompt ahead: turns with and without it are compared.

The measure is the share of the last answer that the next turn finds cached. An engine that caches its own answers
gains nothing by prefilling them, one that finds them neither way nothing either: then it is not asked for.
"""

from __future__ import annotations

from policies.learning import blend

FEWEST = 8
"""Turns of each kind before the comparison counts."""
PAYS = 0.5
"""Gain in the share that is found from which on the extra request pays: some sessions do not come back for it."""
OFTEN = 16
"""Every so many turns the other way is tried, as long as there is an engine that may change."""


class Trial:
    """One engine's. Written by the Scheduler."""

    def __init__(self) -> None:
        self._found: dict[bool, float | None] = {True: None, False: None}
        self._seen = {True: 0, False: 0}
        self._num_asked = 0

    def asks(self) -> bool:
        """Whether the next turn is to ask for it."""
        self._num_asked += 1
        if min(self._seen.values()) < FEWEST:
            return bool(self._num_asked % 2)
        pays = (self._found[True] or 0.0) - (self._found[False] or 0.0) >= PAYS
        return pays != (not self._num_asked % OFTEN)

    def saw(self, was_asked: bool, found: float) -> None:
        """A turn found that share of the answer before it, between 0 and 1."""
        self._seen[was_asked] += 1
        self._found[was_asked] = blend(self._found[was_asked], found)
