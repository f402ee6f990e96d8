"""The embedded engine of `benchmarks.batches.chaos`: remembers which turns were requested, with their tokens."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

import orjson

from gateway.core.transport import Request, Responder
from gateway.embedded.model import EngineSpec
from gateway.embedded.server import MAX_BODY_BYTES, EmbeddedEngine, EmbeddedSettings
from gateway.request.inprocess import InProcessRequest, InProcessResponder
from gateway.transport.aiohttp_server import AiohttpServer

SPEC = EngineSpec(num_blocks=65_536, max_num_seqs=48)
SPEED = 4.0
_AGENT = re.compile(r"\bagent (\d+)\b")


class TurnKey(NamedTuple):
    """One model call: the turn of an agent, from 0."""

    agent: int
    turn: int


class RecordedEngine:
    """Knows calls by the agent that their first user message names. Streams are not for it."""

    def __init__(self) -> None:
        self.engine = EmbeddedEngine(EmbeddedSettings(SPEC, speed=SPEED))
        self.port = 0
        self.num_calls: Counter[TurnKey] = Counter()
        self.tokens: dict[TurnKey, int] = {}
        """Prompt and answer of each call that was answered."""
        self.in_flight: set[TurnKey] = set()
        self.num_backward = 0
        """Calls for a turn before one that the same agent had asked for already."""
        self._latest: dict[int, int] = {}
        self._answered = asyncio.Condition()

    async def until_answered(self, num_calls: int) -> None:
        """Returns once so many different calls have been answered."""
        async with self._answered:
            await self._answered.wait_for(lambda: len(self.tokens) >= num_calls)

    async def handler(self, request: Request, responder: Responder) -> None:
        """A `transport.Handler`."""
        if request.method != "POST":
            await self.engine.handler(request, responder)
            return
        raw = await request.read(MAX_BODY_BYTES)
        key = _turn_of(raw)
        self.num_calls[key] += 1
        latest = self._latest.get(key.agent, 0)
        self.num_backward += key.turn < latest
        self._latest[key.agent] = max(latest, key.turn)
        self.in_flight.add(key)
        answer = InProcessResponder()
        try:
            await self.engine.handler(InProcessRequest(request.path, request.header_list, raw), answer)
            await responder.reply(answer.status, list(answer.headers.items()), answer.body)
        finally:
            self.in_flight.discard(key)
        self.tokens[key] = orjson.loads(answer.body)["usage"]["total_tokens"]
        async with self._answered:
            self._answered.notify_all()


def _turn_of(raw: bytes) -> TurnKey:
    messages = orjson.loads(raw)["messages"]
    task = next(message["content"] for message in messages if message["role"] == "user")
    match = _AGENT.search(task)
    assert match is not None
    return TurnKey(int(match[1]), sum(message["role"] == "assistant" for message in messages))


@asynccontextmanager
async def recorded_engine() -> AsyncIterator[RecordedEngine]:
    """In this process, so that it outlives all that is killed."""
    recorded = RecordedEngine()
    server = AiohttpServer(recorded.handler)
    await recorded.engine.start()
    recorded.port = await server.start("127.0.0.1", 0)
    try:
        yield recorded
    finally:
        await server.stop(grace_s=0)
        await recorded.engine.stop()
