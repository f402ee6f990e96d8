"""The board of one machine's workers: each asks the others' private listeners."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

import orjson

from gateway.cluster.member import Member
from gateway.cluster.membership import State, decode, placed_of
from gateway.cluster.peer_client import PAGES, Hops
from gateway.sessions.session_locations import Trail


class Siblings:
    """A `Board`. `pages` is what this worker tells those who ask."""

    def __init__(self, siblings: Sequence[Member], hops: Hops, trail: Trail) -> None:
        self.expected = siblings
        self._hops = hops
        self._trail = trail
        self._mine = b""
        self._heard: dict[Member, int] = {}
        """How many of its placements are known."""

    @property
    def pages(self) -> Mapping[str, Callable[[str], bytes]]:
        return {"state": lambda _: self._mine, "placed": self._placed}

    async def exchange(self, mine: State, trail: Trail) -> list[State]:
        self._mine = mine.encode()
        found = await asyncio.gather(*(self._ask(sibling, trail) for sibling in self.expected))
        return [state for state in found if state is not None]

    async def leave(self, me: Member) -> None:
        self._mine = b""

    async def close(self) -> None:
        """Nothing is held."""

    async def _ask(self, sibling: Member, trail: Trail) -> State | None:
        status, text = await self._hops.ask(sibling, PAGES + "state")
        if status != 200 or not text:
            self._heard.pop(sibling, None)  # it may begin anew
            return None
        status, rows = await self._hops.ask(sibling, f"{PAGES}placed/{self._heard.get(sibling, 0)}")
        if status == 200:
            self._heard[sibling], placed = orjson.loads(rows)
            trail.learn(placed_of(placed))
        return decode(text)

    def _placed(self, heard: str) -> bytes:
        """`heard`: how many the asker knows; 0, or more than there are: it knows another process than this."""
        trail, since = self._trail, int(heard) if heard.isdigit() else 0
        is_new = not 0 < since <= trail.num_news
        return orjson.dumps([trail.num_news, trail.known() if is_new else trail.news(since)])
