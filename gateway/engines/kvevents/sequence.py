"""Whether a stream of numbered batches is whole: the publisher counts from 0 and drops what nobody takes."""

from __future__ import annotations

from enum import Enum, auto


class Heard(Enum):
    NEXT = auto()
    GAP = auto()  # batches before it are missing
    OLD = auto()  # already taken, from the replay
    RESTART = auto()  # the publisher counts anew: another process, with an empty cache


class Sequence:
    """Of one publisher. `take` every batch that is applied, live or replayed."""

    def __init__(self) -> None:
        self.next = 0
        """Number of the batch that is missing first."""
        self._next_live = 0

    def hear(self, number: int) -> Heard:
        """A live batch arrived."""
        if number < self._next_live:
            return Heard.RESTART
        self._next_live = number + 1
        if number < self.next:
            return Heard.OLD
        return Heard.NEXT if number == self.next else Heard.GAP

    def take(self, number: int) -> None:
        self.next = number + 1

    def restart(self, number: int) -> Heard:
        """After RESTART: start over at that batch."""
        self.next = self._next_live = 0
        return self.hear(number)
