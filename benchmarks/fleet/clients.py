"""Clients of the fleet: an unmodified one, and those that do what some arms ask of an agent, or what an oracle
would do."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import TypeAlias

import orjson

from benchmarks.simulation.workloads import AgentRun
from gateway.cli.demo_fleet import CALL_FAILURES, TIMEOUTS, CallRefused, TurnRecord
from gateway.core.transport import Upstream

Ask: TypeAlias = Callable[[Sequence[tuple[str, str]]], Awaitable[str]]


def turns_left(run: AgentRun, index: int) -> int:
    """After turn `index`."""
    return len(run.calls) - 1 - index


class Client:
    """What an agent's client does around its model calls; this one, unmodified, does nothing."""

    def headers(self, run: AgentRun, index: int) -> list[tuple[str, str]]:
        """Of the call of turn `index`."""
        return []

    def place(self, run: AgentRun, index: int) -> AbstractAsyncContextManager[None]:
        """Held during a model call; the turn's clock runs while it is waited for."""
        return nullcontext()

    async def call(self, ask: Ask, turn: TurnRecord) -> str:
        """Return the answer to a call. `ask` sends it, with more headers."""
        return await ask([])

    async def left(self, run: AgentRun) -> None:
        """The session has ended, well or not."""


class RetryingClient(Client):
    """Sends a call again whose connection is refused or breaks, or that is refused for now: after `Retry-After`,
    else after pauses as the official SDKs make them. Those try twice and not in mid-stream, agents on them more
    often and there, too."""

    TRIES = 10
    FIRST_S, MOST_S, SHORTER = 0.5, 8.0, 0.25
    RETRIED = frozenset((408, 409, 429, 500, 502, 503, 504))

    def __init__(self) -> None:
        self._rng = random.Random(0)

    async def call(self, ask: Ask, turn: TurnRecord) -> str:
        for number in itertools.count():
            try:
                return await ask([("x-stainless-retry-count", str(number))])
            except CALL_FAILURES as error:
                if number == self.TRIES or (isinstance(error, CallRefused) and error.status not in self.RETRIED):
                    raise
                pause_s = min(self.MOST_S, self.FIRST_S * 2**number) * (1 - self.SHORTER * self._rng.random())
                stated_s = error.retry_after_s if isinstance(error, CallRefused) else None
                turn.first_token_at = turn.admitted_at = 0.0
                await asyncio.sleep(pause_s if stated_s is None else stated_s)
        raise AssertionError


class DeclaringClient(Client):
    """Says how many turns follow."""

    def headers(self, run: AgentRun, index: int) -> list[tuple[str, str]]:
        return [("x-turngate-remaining-turns", str(turns_left(run, index)))]


class SessionCapClient(Client):
    """At most `cap` sessions alive, in order of arrival, each held until its end. Sub-agents run under the place
    of the session that waits for them."""

    def __init__(self, cap: int) -> None:
        self._free = asyncio.Semaphore(cap)
        self._alive: set[str] = set()

    @asynccontextmanager
    async def place(self, run: AgentRun, index: int) -> AsyncIterator[None]:
        if index == 0 and run.parent_id is None:
            await self._free.acquire()
            self._alive.add(run.id)
        yield

    async def left(self, run: AgentRun) -> None:
        if run.id in self._alive:
            self._alive.remove(run.id)
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
    async def place(self, run: AgentRun, index: int) -> AsyncIterator[None]:
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

    def headers(self, run: AgentRun, index: int) -> list[tuple[str, str]]:
        return [("x-dynamo-request-strict-priority", str(1_000 - turns_left(run, index)))]


class NamedSessionClient(Client):
    """Names its session in a header."""

    def __init__(self, header: str) -> None:
        self._header = header

    def headers(self, run: AgentRun, index: int) -> list[tuple[str, str]]:
        return [(self._header, run.id)]


class DynamoSessionClient(NamedSessionClient):
    """Says as well when its session is over, by one more request, which Dynamo does not forward to a worker."""

    def __init__(self, upstream: Upstream, base_url: str, model: str) -> None:
        super().__init__("x-dynamo-session-id")
        self._upstream = upstream
        self._url = f"{base_url}/v1/chat/completions"
        self._model = model

    async def left(self, run: AgentRun) -> None:
        message = {"role": "user", "content": "end"}
        body = orjson.dumps({"model": self._model, "messages": [message], "max_tokens": 1})
        headers = [
            ("content-type", "application/json"),
            *self.headers(run, 0),
            ("x-dynamo-session-final", "true"),
        ]
        reply = await self._upstream.call("POST", self._url, headers, body, TIMEOUTS)
        await reply.read(100_000)
        reply.close(reuse=True)
