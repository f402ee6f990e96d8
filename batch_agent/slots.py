"""A bound on model calls at once: agents with the fewest turns to come go first, then in order of arrival."""

from __future__ import annotations

import asyncio
from heapq import heappop, heappush
from itertools import count


class Slots:
    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._order = count()
        self._room = asyncio.Event()
        self._room.set()

    async def room(self) -> int:
        """How many slots nobody wants, as soon as there is one."""
        while self.used >= self.limit:  # the one that was free when this was woken may be taken again
            await self._room.wait()
        return self.limit - self.used

    async def take(self, remaining_turns: int) -> None:
        """Returns with a slot, which `give` gives back."""
        if self.used < self.limit:
            self.used += 1
            self._note()
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heappush(self._waiting, (remaining_turns, next(self._order), turn))
        self._note()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give()  # granted and cancelled in the same moment
            raise

    def give(self) -> None:
        while self._waiting:
            turn = heappop(self._waiting)[2]
            if not turn.done():
                turn.set_result(None)
                return
        self.used -= 1
        self._note()

    def _note(self) -> None:
        if self.used < self.limit:
            self._room.set()
        else:
            self._room.clear()
