"""Keeps a streaming client's connection until its answer begins: silence, then 200, then keep-alive events."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from gateway.config.settings import Stream
from gateway.core.errors import Failure
from gateway.core.transport import HeaderList, Responder
from gateway.exchange import Exchange

T = TypeVar("T")

SSE_HEADERS = (("Content-Type", "text/event-stream; charset=utf-8"), ("Cache-Control", "no-cache"))


class Waiting:
    """One client that waits. Events are data, since comments reset neither Codex's nor langchain's timer (facts,
    clients 5), and go only before the engine's first byte, or between two model calls of one answer: into what an
    engine has begun nothing is mixed."""

    def __init__(
        self,
        exchange: Exchange,
        responder: Responder,
        rules: Stream,
        clock: Callable[[], float],
        headers: Callable[[Exchange], HeaderList],
    ) -> None:
        self._exchange = exchange
        self._responder = responder
        self._rules = rules
        self._clock = clock
        self._headers = headers
        self._silent_until = exchange.timings.received_at + rules.silent_queue_s

    @property
    def is_silent(self) -> bool:
        """Whether nothing has been sent, so that a refusal can still be an HTTP status."""
        return not self._responder.has_started

    @property
    def patience_s(self) -> float:
        """For how long the client may stay without a word."""
        return max(0.0, self._silent_until - self._clock())

    def has_heard(self) -> None:
        """The client was sent something else just now."""
        if self._responder.has_started:
            self._silent_until = self._clock() + self._rules.keep_alive_s

    async def speak(self) -> None:
        """Send one keep-alive event, after status 200 if it is the first."""
        event = self._keep_alive()  # before anything is awaited: what an engine says from now on comes behind it
        if not self._responder.has_started:
            await self._responder.open_stream(200, [*SSE_HEADERS, *self._headers(self._exchange)])
        await self._responder.write(event)
        self._silent_until = self._clock() + self._rules.keep_alive_s

    def _keep_alive(self) -> bytes:
        exchange, loop = self._exchange, self._exchange.loop
        named = exchange.give_id(), exchange.payload.engine_model, int(time.time())
        if loop is not None:
            return loop.answer.keep_alive(*named, loop.client_body)
        if exchange.opening is None:
            exchange.opening = exchange.dialect.opening(*named, exchange.payload.body)
        return exchange.opening.keep_alive()

    async def until(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`; speaks while it lasts. Ended with its caller, whatever ends that."""
        task = asyncio.create_task(work)
        try:
            while not (await asyncio.wait((task,), timeout=self.patience_s))[0]:
                await self.speak()
            return task.result()
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait((task,))
            if not task.cancelled():
                task.exception()  # its caller may be gone, and the loop logs what nobody has read


def error_event(exchange: Exchange, failure: Failure) -> bytes:
    """An event that fails a stream that has begun."""
    if exchange.loop is not None:
        return exchange.loop.answer.error_event(failure)
    return (exchange.opening or exchange.dialect).error_event(failure)
