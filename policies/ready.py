"""Turns that may run on one replica as soon as a slot is free: the best first, and none overtaken for ever."""

from __future__ import annotations

import heapq

from policies.line import FAIR
from policies.types import Turn, TurnId


class Ready:
    """In the order given at entry. A turn of a class below 0 waits for as long as others come."""

    def __init__(self) -> None:
        self._turns: dict[TurnId, Turn] = {}
        self._best: list[tuple[tuple[float, ...], int, TurnId]] = []
        self._oldest: list[tuple[float, int, TurnId]] = []
        """Each with the number of starts at which it has seen FAIR times as many as in the order of arrivals."""
        self._num_put = 0
        self._num_started = 0

    def __len__(self) -> int:
        return len(self._turns)

    def __contains__(self, turn_id: TurnId) -> bool:
        return turn_id in self._turns

    def put(self, turn: Turn, key: tuple[float, ...]) -> None:
        self._num_put += 1
        self._turns[turn.id] = turn
        heapq.heappush(self._best, (key, self._num_put, turn.id))
        if turn.urgency >= 0:
            due = self._num_started + FAIR * len(self._turns)
            heapq.heappush(self._oldest, (turn.arrived_at, int(due), turn.id))
        if len(self._best) + len(self._oldest) > 128 + 4 * len(self._turns):  # most have left from the middle
            self._best = [entry for entry in self._best if entry[2] in self._turns]
            self._oldest = [entry for entry in self._oldest if entry[2] in self._turns]
            heapq.heapify(self._best)
            heapq.heapify(self._oldest)

    def pop(self, arrived_at: float) -> Turn:
        """The best one, unless the oldest came so early and was overtaken too often; the caller knows that there
        is one."""
        self._num_started += 1
        turns, oldest, best = self._turns, self._oldest, self._best
        while oldest and oldest[0][2] not in turns:
            heapq.heappop(oldest)
        if oldest and oldest[0][0] <= arrived_at and oldest[0][1] <= self._num_started:
            return turns.pop(heapq.heappop(oldest)[2])
        while (turn_id := heapq.heappop(best)[2]) not in turns:
            pass
        return turns.pop(turn_id)

    def take(self, turn_id: TurnId) -> Turn:
        return self._turns.pop(turn_id)

    def drain(self) -> list[Turn]:
        """All of them, in the order of their entry; nothing stays."""
        turns = list(self._turns.values())
        self._turns.clear()
        self._best.clear()
        self._oldest.clear()
        return turns
