"""Where and when a model call that failed before its first byte is asked again. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from gateway.core.errors import EngineFault
from gateway.request.engine_errors import EngineFailed
from policies.types import ReplicaId, Turn

FIRST_S, LONGEST_S = 0.5, 10.0
"""Pauses, each twice the one before. SDKs that talk to an engine themselves wait between 0.5 and 8 s."""
_NOT_BEGUN = frozenset((EngineFault.FULL, EngineFault.REFUSED))
"""The engine has not worked on the call: asking it again harms nobody."""


class Attempts:
    """Of one model call. At first each replica that may do better is asked at once. When none is left, a call
    whose client cannot ask again itself goes back to the queue, in the place that its arrival gives it."""

    def __init__(self, turn: Turn, most: int, chance: Callable[[], float]) -> None:
        """`most`: replicas that are asked in a row, and failures of engines at work: what breaks one may break the
        next. `chance`: in [0, 1), spreads calls that failed together."""
        self.turn = turn
        """As it goes to the gate next."""
        self.failed: EngineFailed | None = None
        """The last failure of an engine."""
        self._first = turn
        self._most = most
        self._chance = chance
        deadline_at = math.inf if turn.deadline_at is None else turn.deadline_at
        self._until = min(turn.arrived_at + turn.max_wait_s, deadline_at)
        """The client's bound."""
        self._rests: dict[ReplicaId, float] = {}
        """Until when each replica that failed the call wants no more of it."""
        self._num_asked = 0
        self._num_in_row = self._num_broken = self._num_waits = self._number = 0

    def count(self) -> int:
        """Count one more call of an engine. Return its number, from 1."""
        self._num_asked += 1
        return self._num_asked

    def elsewhere(self, replica_id: ReplicaId, failed: EngineFailed, now: float) -> bool:
        """This replica failed the call. Whether `turn` may go to another one at once, if there is one."""
        self.failed = failed.with_traceback(None)
        self._num_in_row += 1
        self._num_broken += failed.fault not in _NOT_BEGUN
        self._rests[replica_id] = now + (failed.asked_wait_s or 0.0) if failed.may_pass else math.inf
        if self._num_in_row >= self._most or self._num_broken >= self._most:
            return False
        self._go(0.0)
        return True

    def later(self, now: float, is_committed: bool) -> bool:
        """No replica is left. Whether `turn` may wait for one. `is_committed`: its client has had a part of the
        answer, so that it cannot ask again itself."""
        if not is_committed and (self.failed is None or not self.failed.is_queue_full):
            return False
        passing = [until for until in self._rests.values() if until < math.inf]
        if now >= self._until or self._num_broken >= self._most or (self._rests and not passing):
            return False
        earned_s = min(LONGEST_S, FIRST_S * 2.0 ** min(self._num_waits, 10)) * (0.5 + self._chance() / 2)
        at = min(max(now, min(passing, default=now)) + earned_s, self._until)
        self._num_in_row, self._num_waits = 0, self._num_waits + 1
        for replica_id, until in list(self._rests.items()):
            # At the bound each is asked once more, however long it wanted to be left alone.
            if until <= at or (at == self._until and until < math.inf):
                del self._rests[replica_id]
        self._go(at)
        return True

    def _go(self, not_before: float) -> None:
        self._number += 1
        self.turn = replace(
            self._first,
            id=f"{self._first.id}.{self._number}",
            is_retry=True,
            excluded=self._first.excluded | self._rests.keys(),
            not_before=not_before,
        )
