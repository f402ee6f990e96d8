"""An engine's answer on its way to the client, from the first byte that counts to the end."""

from __future__ import annotations

from collections.abc import Callable

import orjson

from gateway.core.errors import Failure, Outcome, Refused
from gateway.core.faults import Fault, NoAnswer, of_break
from gateway.core.sse import EventTooLong
from gateway.core.transport import HOP_BY_HOP, Direct, HeaderList, Pushing, Responder, UpstreamCut, UpstreamReply
from gateway.engines.base import Engine
from gateway.exchange import Exchange
from gateway.request import engine_errors
from gateway.request.relay import StreamRelay, read_into
from gateway.request.upstream_request import Call, end_to_end

MAX_BODY_BYTES = 256 * 2**20
"""Of an answer that is not streamed. It is read whole before its first byte goes out, so a cut can be hidden."""

_NOT_RELAYED = frozenset(
    (
        *("content-length", "date", "server", "x-request-id", "set-cookie", "www-authenticate"),
        *("openai-organization", "openai-project", "anthropic-organization-id"),
        *HOP_BY_HOP,
        *(f"x-ratelimit-{what}-{of}" for what in ("limit", "remaining", "reset") for of in ("requests", "tokens")),
    )
)
"""What is between the gateway and the engine: its connection, and the operator's account there."""


class Answer:
    """Owns the connection of one answer: close it. The exchange's outcome says how it went."""

    def __init__(self, exchange: Exchange, engine: Engine, call: Call, reply: UpstreamReply) -> None:
        self._exchange = exchange
        self._engine = engine
        self._call = call
        self._reply = reply
        self._chunks = reply.chunks()
        content_type = reply.headers.get("content-type", "")
        is_stream = exchange.wants_stream and content_type.startswith("text/event-stream")
        self._round = exchange.loop.round() if exchange.loop is not None else None
        self._relay = (
            StreamRelay(exchange.dialect, engine, exchange.reply, call, self._round, lambda: exchange.opening)
            if is_stream
            else None
        )
        self._first = b""
        self._is_over = False
        self.fault: Fault | None = None
        """What the engine did wrong after its first byte."""

    async def begin(self) -> None:
        """Read until the first byte that counts: the first event of an answer, or the last byte of a body.

        Raises EngineFailed, UpstreamCut, EventTooLong, NoAnswer.
        """
        if self._relay is None:
            self._first = await self._reply.read(MAX_BODY_BYTES)
            self._is_over = True
            self._read_body()
            return
        async for chunk in self._chunks:
            self._first = self._relay.feed(chunk)
            if self._relay.has_begun:
                return
            if self._relay.failure is not None:
                raise engine_errors.in_stream(self._exchange.dialect, self._relay.failure)
        raise NoAnswer("it ended without an answer")

    async def relay(self, responder: Responder, ours: Callable[[Exchange], HeaderList]) -> None:
        """Send a stream up to its end, which `finish` sends. Does nothing for a body. `ours`: headers to add."""
        if self._relay is None:
            if responder.has_started:
                text = "The engine did not stream its answer, and the client had been told to expect a stream."
                raise Refused(Outcome.ENGINE_FAILED, Failure(502, "server_error", text))
            self._exchange.outcome = Outcome.ANSWERED
            return
        if not responder.has_started:
            await responder.start(self._reply.status, headers_for_client(self._reply, ours(self._exchange)))
        if self._first:
            await responder.write(self._first)
        self._exchange.is_delivered = self._relay.is_delivered
        try:
            await self._pump(self._relay, responder)
        except (UpstreamCut, EventTooLong) as error:
            self._exchange.notes.append(f"engine broke off: {error}")
            self.fault = of_break(error)
        self._exchange.outcome = self._outcome(self._relay)
        self._exchange.reply.is_complete = self._exchange.outcome is Outcome.ANSWERED

    async def finish(self, responder: Responder, ours: Callable[[Exchange], HeaderList]) -> None:
        """A body goes out whole. A stream that the engine did not finish is reset, never ended cleanly: clients
        take a clean end for a whole answer (facts, clients 5)."""
        if self._relay is None:
            loop = self._exchange.loop
            body = self._first if loop is None else loop.body(self._first)
            headers = headers_for_client(self._reply, ours(self._exchange))
            await responder.reply(self._reply.status, headers, body)
        elif self._exchange.outcome is Outcome.ANSWERED:
            if self._round is not None and self._round.closing:
                await responder.write(b"".join(self._round.closing))
                self._exchange.is_delivered = True
            await responder.end()
        else:
            responder.reset()

    def close(self) -> None:
        """Give the connection back. While bytes are still to come it is closed, which aborts the call."""
        self._reply.close(reuse=self._is_over)

    async def _pump(self, relay: StreamRelay, responder: Responder) -> None:
        """Pieces of text go straight through while the client keeps up; the rest is looked at here."""
        reply, direct = self._reply, responder if isinstance(responder, Direct) else None

        def sink(chunks: list[bytes]) -> int:
            if direct is None or not direct.is_ready or not (num_passing := relay.passing(chunks)):
                return 0
            direct.write_now(chunks[0] if num_passing == 1 else b"".join(chunks[:num_passing]))
            return num_passing

        while relay.failure is None:
            if direct is not None and isinstance(reply, Pushing):
                reply.push(sink)
            chunk = await anext(self._chunks, None)
            if chunk is None:
                break
            if out := relay.feed(chunk):
                await responder.write(out)
                self._exchange.is_delivered = relay.is_delivered
        if relay.failure is not None:
            return
        self._is_over = True
        if rest := relay.rest():
            await responder.write(rest)

    def _outcome(self, relay: StreamRelay) -> Outcome:
        if relay.failure is not None:
            self.fault = Fault.ERROR
            return Outcome.ENGINE_FAILED
        if relay.is_done or (self._is_over and relay.has_finished):
            self.fault = None
            return Outcome.ANSWERED
        self.fault = self.fault or Fault.NO_END
        return Outcome.ENGINE_CUT

    def _read_body(self) -> None:
        exchange = self._exchange
        try:
            parsed = orjson.loads(self._first)
        except orjson.JSONDecodeError:
            parsed = None
        if not isinstance(parsed, dict):
            raise NoAnswer("what it sent is no JSON object")
        if (failure := exchange.dialect.is_error(parsed)) is not None:
            raise engine_errors.in_stream(exchange.dialect, failure)
        if self._call.added.reads_back:
            self._first = self._engine.without_read_back(self._first)
        read_into(exchange.reply, parsed, exchange.dialect, self._engine)
        exchange.reply.is_complete = True
        if self._round is not None:
            self._round.read(parsed)


def headers_for_client(reply: UpstreamReply, ours: HeaderList) -> list[tuple[str, str]]:
    """The engine's headers that concern the client, and ours."""
    theirs = end_to_end(reply.header_list) if "connection" in reply.headers else reply.header_list
    return [pair for pair in theirs if pair[0].lower() not in _NOT_RELAYED] + [*ours]
