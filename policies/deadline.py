"""Earliest deadline first, for clients that say by when each call must have begun (`X-Turngate-Deadline-Ms`)."""

from __future__ import annotations

import math

from policies.policy import Progress
from policies.turns import Turns
from policies.types import Family, Turn


class EarliestDeadline(Turns):
    """Bounds residency as `turns` does. Of a tenant's turns the one with the earliest deadline goes first; turns
    without a deadline go last, by age."""

    name = "deadline"
    ranks_turns = True

    def rank(self, turn: Turn, session: Progress, family: Family) -> float:
        return math.inf if turn.deadline_at is None else turn.deadline_at
