"""Clients that do more than an unmodified one: what some arms ask of an agent, or what an oracle would do."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import orjson

from gateway.cli.demo_fleet import TIMEOUTS, Client, PlannedSession
from gateway.core.transport import Upstream


def turns_left(session: PlannedSession, index: int) -> int:
    """After turn `index`."""
    return len(session.turns) - 1 - index


class DeclaringClient(Client):
    """Says how many turns follow."""

    def headers(self, session: PlannedSession, index: int) -> list[tuple[str, str]]:
        return [("x-turngate-remaining-turns", str(turns_left(session, index)))]


class SessionCapClient(Client):
    """At most `cap` sessions alive, in order of arrival, each held until its end."""

    def __init__(self, cap: int) -> None:
        self._free = asyncio.Semaphore(cap)
        self._alive: set[str] = set()

    @asynccontextmanager
    async def place(self, session: PlannedSession, index: int) -> AsyncIterator[None]:
        if index == 0:
            await self._free.acquire()
            self._alive.add(session.id)
        yield

    async def left(self, session: PlannedSession) -> None:
        if session.id in self._alive:
            self._alive.remove(session.id)
            self._free.release()


class SlotsClient(Client):
    """`slots` model calls at a time, the session with most turns done first: the slot discipline of batch-agent.

    A slot is held during the model call only. Its documented order is fewest turns left first, and all its jobs
    have the same limit of turns.
    """

    def __init__(self, slots: int) -> None:
        self._free = slots
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._number = itertools.count()

    @asynccontextmanager
    async def place(self, session: PlannedSession, index: int) -> AsyncIterator[None]:
        if self._free > 0:
            self._free -= 1
        else:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            heapq.heappush(self._waiting, (-index, next(self._number), turn))
            await turn
        try:
            yield
        finally:
            self._give_back()

    def _give_back(self) -> None:
        while self._waiting:
            _, _, turn = heapq.heappop(self._waiting)
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1


class StrictPriorityClient(Client):
    """Tells Dynamo's router: fewest turns left first."""

    def headers(self, session: PlannedSession, index: int) -> list[tuple[str, str]]:
        return [("x-dynamo-request-strict-priority", str(1_000 - turns_left(session, index)))]


class NamedSessionClient(Client):
    """Names its session in a header."""

    def __init__(self, header: str) -> None:
        self._header = header

    def headers(self, session: PlannedSession, index: int) -> list[tuple[str, str]]:
        return [(self._header, session.id)]


class DynamoSessionClient(NamedSessionClient):
    """Says as well when its session is over, by one more request, which Dynamo does not forward to a worker."""

    def __init__(self, upstream: Upstream, base_url: str, model: str) -> None:
        super().__init__("x-dynamo-session-id")
        self._upstream = upstream
        self._url = f"{base_url}/v1/chat/completions"
        self._model = model

    async def left(self, session: PlannedSession) -> None:
        message = {"role": "user", "content": "end"}
        body = orjson.dumps({"model": self._model, "messages": [message], "max_tokens": 1})
        headers = [
            ("content-type", "application/json"),
            *self.headers(session, 0),
            ("x-dynamo-session-final", "true"),
        ]
        reply = await self._upstream.call("POST", self._url, headers, body, TIMEOUTS)
        await reply.read(100_000)
        reply.close(reuse=True)
