"""An engine's answer on its way to the client, from its first byte to its end: a stream, or one body."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import suppress

from gateway.core import fields, pieces, values
from gateway.core.errors import ANSWERED, EngineFault, Failure, NoAnswer, Outcome, Refused, of_break
from gateway.core.fields import Json, excerpt
from gateway.core.slices import LARGE_BYTES, Slices, Steps
from gateway.core.sse import MAX_EVENT_BYTES, EventTooLong
from gateway.core.transport import (
    HOP_BY_HOP,
    Direct,
    HeaderList,
    Pushing,
    Responder,
    Sink,
    UpstreamCut,
    UpstreamReply,
)
from gateway.engines.base import EngineAdapter
from gateway.exchange import Exchange
from gateway.request import engine_errors
from gateway.request.stream_relay import OUTLINED, READ_BYTES, StreamRelay, read_into, read_nothing
from gateway.request.upstream_request import Call, end_to_end

MAX_BODY_BYTES = 256 * 2**20
"""Of an answer that is not streamed. It is read whole before its first byte goes out, so that a cut stays
hidden."""

OUTLINED_BYTES = MAX_EVENT_BYTES
"""An outline takes a pass over all of the text. Of a longer answer only a usage near its end is read."""
_END_BYTES = 64 * 1024
_USAGE = re.compile(rb'[,{]\s*"usage"\s*:\s*(?=\{)')
"""An unescaped quote cannot stand inside a JSON string, so the match is a key."""
STEP_BYTES = 2 * 1024
"""Of a stream that are read in one step. A chunk may have ten thousand events, and others wait meanwhile."""

_NOT_RELAYED = frozenset(
    (
        *("content-length", "content-encoding", "date", "server", "x-request-id", "set-cookie"),
        *("www-authenticate", "location", "refresh", "retry-after", "retry-after-ms", "alt-svc"),
        *("clear-site-data", "strict-transport-security"),
        *("openai-organization", "openai-project", "anthropic-organization-id"),
        *HOP_BY_HOP,
        *(f"x-ratelimit-{what}-{of}" for what in ("limit", "remaining", "reset") for of in ("requests", "tokens")),
    )
)
"""Headers about the gateway's connection to the engine, about the operator's account there, and what a browser
would obey in the gateway's name."""
_NOT_RELAYED_PREFIXES = ("x-turngate-", "access-control-")
"""Of headers that are the gateway's own, or its decision."""


class UpstreamResponse:
    """Owns the connection of one answer: close it."""

    def __init__(
        self, exchange: Exchange, engine: EngineAdapter, call: Call, reply: UpstreamReply, slices: Slices
    ) -> None:
        self._exchange = exchange
        self._slices = slices
        self._engine = engine
        self._call = call
        self._reply = reply
        self._chunks = reply.chunks()
        content_type = reply.headers.get("content-type", "").lower()
        is_stream = exchange.payload.wants_stream and content_type.startswith("text/event-stream")
        self._round = exchange.loop.round() if exchange.loop is not None else None
        read_nothing(exchange.reply, call)
        self._relay = (
            StreamRelay(exchange.dialect, engine, exchange.reply, call, self._round, lambda: exchange.opening)
            if is_stream
            else None
        )
        self._first = b""
        self._is_over = False
        self.fault: EngineFault | None = None
        """The engine's fault after its first byte."""
        self.outcome: Outcome | None = None
        """None: it has not been relayed to its end."""

    async def begin(self) -> None:
        """Read until the first byte that counts: the first event of an answer, or the last byte of a body.

        Raises EngineFailed, UpstreamCut, EventTooLong, NoAnswer.
        """
        if self._relay is None:
            self._first = body = await self._reply.read(MAX_BODY_BYTES)
            self._is_over = True
            if len(body) >= LARGE_BYTES:
                await self._read_large(body)
            else:
                parsed, strict = fields.parsed(body)
                self._first = body if self._round is None else strict
                self._read_body(parsed)
            return
        async for chunk in self._chunks:
            if len(chunk) <= STEP_BYTES:
                self._first = self._relay.feed(chunk)
            else:
                self._first = b"".join([self._relay.feed(part) async for part in in_steps(chunk)])
            if self._relay.has_begun:
                return
            if self._relay.failure is not None:
                raise engine_errors.in_stream(self._exchange.dialect, self._relay.failure)
        raise NoAnswer("it ended without an answer")

    async def relay(self, responder: Responder, headers: Callable[[Exchange], HeaderList]) -> None:
        """Send a stream up to its end, which `finish` sends. Does nothing for a body. `headers`: returns headers
        to add."""
        if self._relay is None:
            if responder.has_started:
                text = "The engine did not stream its answer, and the client had been told to expect a stream."
                raise Refused(Outcome.ENGINE_FAILED, Failure(502, "server_error", text))
            self.outcome = ANSWERED
            return
        if not responder.has_started:
            await responder.open_stream(
                self._reply.status, headers_for_client(self._reply, headers(self._exchange))
            )
        if self._first:
            await responder.write(self._first)
        if self._relay.is_delivered:
            self._exchange.mark_delivered()
        try:
            await self._pump(self._relay, responder)
        except (UpstreamCut, EventTooLong) as error:
            self._exchange.note(f"engine broke off: {error}")
            self.fault = of_break(error)
        self.outcome = self._ended_as(self._relay)
        self._exchange.reply.is_complete = self.outcome is ANSWERED

    async def finish(self, responder: Responder, headers: Callable[[Exchange], HeaderList]) -> None:
        """Send a body, or the end of a stream. A stream that the engine did not finish is reset, since clients
        take a clean end for a whole answer (facts, clients 5)."""
        if self._relay is None:
            loop = self._exchange.loop
            body = self._first if loop is None else loop.body(self._first)
            header_list = headers_for_client(self._reply, headers(self._exchange))
            await responder.reply(self._reply.status, header_list, body)
        elif self.outcome is ANSWERED:
            if self._round is not None and self._round.closing:
                await responder.write(b"".join(self._round.closing))
                self._exchange.mark_delivered()
            await responder.end()
        else:
            responder.reset()

    def close(self) -> None:
        """Give the connection back. While bytes are still to come it is closed, which aborts the call."""
        self._reply.close(reuse=self._is_over)

    async def _pump(self, relay: StreamRelay, responder: Responder) -> None:
        """Relay a stream. Pieces of text go straight through while the client keeps up."""
        reply, sink = self._reply, _sink(relay, responder) if isinstance(responder, Direct) else None
        while relay.failure is None:
            if sink is not None and isinstance(reply, Pushing):
                reply.push(sink)
            chunk = await anext(self._chunks, None)
            if chunk is None:
                break
            if len(chunk) > STEP_BYTES:
                async for part in in_steps(chunk):
                    await self._relayed(relay, part, responder)
            elif out := relay.feed(chunk):
                await responder.write(out)
                if relay.is_delivered:
                    self._exchange.mark_delivered()
        if relay.failure is not None:
            return
        self._is_over = True
        if rest := relay.rest():
            await responder.write(rest)

    async def _relayed(self, relay: StreamRelay, part: bytes, responder: Responder) -> None:
        if out := relay.feed(part):
            await responder.write(out)
            if relay.is_delivered:
                self._exchange.mark_delivered()

    def _ended_as(self, relay: StreamRelay) -> Outcome:
        if relay.failure is not None:
            self.fault = EngineFault.ERROR
            return Outcome.ENGINE_FAILED
        if relay.is_done or (self._is_over and relay.has_finished):
            self.fault = None
            return Outcome.ANSWERED
        self.fault = self.fault or EngineFault.NO_END
        return Outcome.ENGINE_CUT

    async def _read_large(self, body: bytes) -> None:
        """Read a body in slices, or only the outline of one that is longer than READ_BYTES or has more values than
        a request may have; of one above OUTLINED_BYTES its usage. One that is no strict JSON is not read. A body
        without usage is charged by its length. Raises EngineFailed, NoAnswer, EventTooLong."""
        parsed: object = None
        is_read = False
        await asyncio.sleep(0)  # its parts may have been joined
        try:
            if len(body) <= READ_BYTES and await self._slices.run(
                _has_at_most(body, self._exchange.settings.limits.values)
            ):
                parsed, _ = await self._slices.run(pieces.parsed(body))
                is_read = True
            elif self._round is not None:
                raise EventTooLong("its answer is too long to be searched for calls of the gateway's tools")
            elif len(body) <= OUTLINED_BYTES:
                parsed = await self._slices.run(pieces.outline(body, OUTLINED))
            else:
                parsed = usage_at_end(body)
        except pieces.NotJson:
            if self._round is None and body.lstrip()[:1] == b"{" and body.rstrip()[-1:] == b"}":
                parsed = {}
        if not is_read:
            self._exchange.reply.num_other_chars += len(body)
        self._read_body(parsed)

    def _read_body(self, parsed: object) -> None:
        """Read the value of a body. Raises EngineFailed, NoAnswer."""
        try:
            self._understand(parsed)
        except fields.TooDeep as error:
            raise NoAnswer(str(error)) from None

    def _understand(self, parsed: object) -> None:
        exchange = self._exchange
        if not isinstance(parsed, dict):
            content_type = excerpt(self._reply.headers.get("content-type", "not said"))
            raise NoAnswer(f"its answer is no JSON object (Content-Type: {content_type})")
        if (failure := exchange.dialect.is_error(parsed)) is not None:
            raise engine_errors.in_stream(exchange.dialect, failure)
        if self._call.added.reads_back:
            self._first = self._engine.without_read_back(self._first)
        read_into(exchange.reply, parsed, exchange.dialect, self._engine, self._call.most)
        exchange.reply.is_complete = True
        if self._round is not None:
            fields.written(parsed)  # it is written again, with what other rounds said
            self._round.read(parsed)


def _sink(relay: StreamRelay, direct: Direct) -> Sink:
    """Return what sends pieces of text while the client keeps up."""

    def sink(chunks: list[bytes]) -> int:
        num_passing = relay.passing(chunks) if direct.is_ready else 0
        if num_passing:
            direct.write_now(chunks[0] if num_passing == 1 else b"".join(chunks[:num_passing]))
        return num_passing

    return sink


def usage_at_end(body: bytes) -> Json:
    """Return the usage of an answer that is not parsed, if it stands near the end, as engines write it."""
    end = body[-_END_BYTES:]
    for found in list(_USAGE.finditer(end))[-1:]:
        with suppress(ValueError, RecursionError):
            text = end[found.end() :].decode(errors="replace")
            return {"usage": json.JSONDecoder().raw_decode(text)[0]}
    return {}


def _has_at_most(body: bytes, most_values: int) -> Steps[bool]:
    if values.may_be_more(body, most_values):
        for num in values.counted(body):
            if num > most_values:
                return False
            yield
    return True


async def in_steps(chunk: bytes) -> AsyncIterator[bytes]:
    """Yield a chunk in parts. The event loop goes round between two of them."""
    yield chunk[:STEP_BYTES]
    for start in range(STEP_BYTES, len(chunk), STEP_BYTES):
        await asyncio.sleep(0)
        yield chunk[start : start + STEP_BYTES]


def headers_for_client(reply: UpstreamReply, own: HeaderList) -> list[tuple[str, str]]:
    """Return the engine's headers that concern the client, and the gateway's own."""
    kept = end_to_end(reply.header_list) if "connection" in reply.headers else reply.header_list
    relayed = [
        pair
        for pair in kept
        if (name := pair[0].lower()) not in _NOT_RELAYED and not name.startswith(_NOT_RELAYED_PREFIXES)
    ]
    return [*relayed, *own]
