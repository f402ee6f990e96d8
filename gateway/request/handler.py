"""The HTTP edge of the path: route, key, body, model; then identity and answer; failures in the dialect."""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import orjson

from gateway.access.keys import Caller, Keys, may_use, model_not_allowed, says_one_model
from gateway.access.limits import Limiter
from gateway.config.live_settings import RequestSettings
from gateway.core import fields
from gateway.core.errors import Failure, Outcome, Refused
from gateway.core.transport import BodyTooLarge, Handler, HeaderList, Request, Responder
from gateway.dialects import BY_PATH, dialect_of
from gateway.dialects.base import Dialect
from gateway.engines.monitor import Monitor
from gateway.exchange import Exchange, Payload, Recognition, RequestEnd, Timings
from gateway.request import engine_errors, payload
from gateway.request.answer import Answering, error_event
from gateway.request.engine_errors import EngineFailed
from gateway.request.gate import Drain, Gate, stopping
from gateway.request.inprocess import HandedOn, InProcessRequest
from gateway.request.isolation import leaking
from gateway.request.payload import too_many
from gateway.request.stateless import PlainCalls, serves_path
from gateway.request.stored_responses import Home, StoredResponses
from gateway.sessions import claims
from gateway.sessions.identity import Identity
from gateway.sessions.prefix_breaks import PrefixBreaks
from gateway.sessions.session_locations import Trail
from gateway.sessions.session_table import Sessions
from gateway.telemetry.logs import OUR_NOTE
from gateway.telemetry.observer import Observer
from policies.types import ReplicaId, SessionEnded, Turn, TurnKind

if TYPE_CHECKING:
    from gateway.tools.toolbox import Toolbox

JSON_TYPE = ("Content-Type", "application/json")
LEAST_RETRY_AFTER_S = 1.0
_RETRYABLE = frozenset((429, 503, 529))
_NONE: frozenset[ReplicaId] = frozenset()


class PromptLists(Protocol):
    """Answers requests with many prompts in parts."""

    def takes(self, exchange: Exchange) -> bool: ...

    async def answer(self, exchange: Exchange, responder: Responder, handle: Handler, caller: Caller) -> None: ...


@dataclass(frozen=True, slots=True)
class RequestHandler:
    """Takes every request of the server, and ends each with one answer and one outcome."""

    settings: Callable[[], RequestSettings]
    """Those for a request that begins now."""
    drain: Drain
    keys: Keys
    limiter: Limiter
    monitor: Monitor
    identity: Identity
    gate: Gate
    answering: Answering
    plain: PlainCalls
    stored: StoredResponses
    observer: Observer
    sessions: Sessions
    breaks: PrefixBreaks
    toolbox: Toolbox | None
    """None: the gateway has no tools of its own."""
    clock: Callable[[], float]
    lists: PromptLists
    trail: Trail | None = None
    """Where sessions were at other members. None: there are none."""

    def handle(self, request: Request, responder: Responder) -> Awaitable[None]:
        """A `transport.Handler` of model calls: POST to the path of a dialect, and all below `/v1/responses/`."""
        return self._exchange(dialect_of(request.path), request, responder)

    async def _exchange(self, dialect: Dialect, request: Request, responder: Responder) -> None:
        """Law: however this ends, here alone is its outcome set, and the observer sees it once."""
        begun = request.begun if isinstance(request, HandedOn) else None
        settings = begun.settings if begun is not None else self.settings()
        exchange = Exchange(os.urandom(16).hex(), request, dialect, Timings(self.clock()), settings)
        exchange.trace = self.observer.trace(exchange)
        outcome, failure = Outcome.GATEWAY_ERROR, None
        is_clients = not isinstance(request, InProcessRequest)
        self.drain.num_running += is_clients
        try:
            try:
                if self.drain.is_on and is_clients:
                    raise stopping()
                outcome = await self._serve(exchange, responder, begun.caller if begun is not None else None)
            except Refused as refused:
                failure = refused.failure
                await self._refuse(exchange, responder, refused)
                outcome = refused.outcome
        except (asyncio.CancelledError, ConnectionError):
            outcome = Outcome.ANSWERED if exchange.is_delivered else Outcome.CLIENT_GONE
            raise
        except Exception as error:
            error.add_note(f"{OUR_NOTE}{exchange.id}")  # whoever logs it below does not know
            raise
        finally:
            exchange.timings.finished_at = self.clock()
            exchange.end = RequestEnd(outcome, failure)
            if exchange.allowance is not None:
                model = exchange.payload.engine_model
                exchange.allowance.settle(model, exchange.usage, exchange.has_engine_worked)
            self.observer.finished(exchange)
            self.drain.left(is_clients)

    async def _serve(self, exchange: Exchange, responder: Responder, caller: Caller | None) -> Outcome:
        """Return how the answer went. Raises Refused. `caller`: None where the key has not been read yet."""
        request, limit_bytes = exchange.request, exchange.settings.limits.body_bytes
        caller = caller or self.keys.at_once(request.headers) or await self.keys.known(request.headers)
        exchange.caller = caller
        if caller.limits is not None:
            exchange.allowance = self.limiter.allowance(caller.limits)
            if not isinstance(request, InProcessRequest):
                exchange.allowance.enter()  # a list has entered for its parts, and lines of batches are paced
        try:
            raw = await request.read(limit_bytes)
        except BodyTooLarge:
            text = f"The body is longer than {limit_bytes} bytes (limits.body_bytes)."
            raise Refused(Outcome.BAD_REQUEST, Failure(413, "invalid_request_error", text)) from None
        if request.path not in BY_PATH:
            exchange.payload = Payload(raw)
            await self.plain.answer_stored(exchange, responder)
            return Outcome.ANSWERED
        exchange.payload = payload = _payload(exchange, raw)
        exchange.payload = payload = payload.for_model(
            self._engine_model(payload.requested_model, exchange.settings)
        )
        if "*" not in caller.models:
            exchange.payload = payload = _permitted(payload, caller)
        if self.lists.takes(exchange):
            await self.lists.answer(exchange, responder, self.handle, caller)
            return Outcome.ANSWERED
        if exchange.allowance is not None:
            exchange.allowance.reserve(payload.engine_model, len(payload.raw), exchange.max_output_tokens)
        if exchange.dialect.is_conversation:
            return await self._serve_turn(exchange, responder)
        await self.plain.answer(exchange, responder)
        return Outcome.ANSWERED

    async def _serve_turn(self, exchange: Exchange, responder: Responder) -> Outcome:
        previous_id = exchange.dialect.stateful_id(exchange.payload.body)
        previous = await self.stored.find(exchange.caller.tenant, previous_id) if previous_id else None
        exchange.payload = self.breaks.prepare(exchange)
        script = self.identity.script(exchange)
        who = self.identity.recognise(exchange, script, self.clock())
        if who.kind is TurnKind.SIDE and isinstance(exchange.request, InProcessRequest):
            who = replace(who, kind=TurnKind.SINGLE)  # a title is asked for by a client: ours pass the gate
        exchange.recognition = who
        now = exchange.timings.recognised_at = self.clock()
        self.sessions.recognised(exchange, now)
        tools_first = exchange.payload.engine_model in self.identity.tools_first
        exchange.prefix_break = self.breaks.recognised(exchange, script, tools_first)
        is_complete = False
        try:
            side_model = exchange.settings.models.side_model
            if who.kind is TurnKind.SIDE and side_model is not None:
                exchange.payload = exchange.payload.for_model(self._engine_model(side_model, exchange.settings))
            turn, payload = self._turn(exchange, who, previous), exchange.payload
            if previous is not None and previous.engine_id != previous_id:
                payload = payload.with_keys(previous_response_id=previous.engine_id)
            if (
                self.toolbox is not None
                and (opened := self.toolbox.open_loop(turn, payload, exchange)) is not None
            ):
                exchange.loop, turn = opened
            exchange.payload = payload
            outcome = await self.answering.answer(turn, exchange, responder)
            is_complete = outcome is Outcome.ANSWERED
        except (asyncio.CancelledError, ConnectionError):
            is_complete = exchange.is_delivered
            raise
        finally:
            self._turn_ended(exchange, is_complete, self.clock())
        if who.is_final:
            self.gate.tell(SessionEnded(who.session_id))
        return outcome

    def _turn_ended(self, exchange: Exchange, is_complete: bool, now: float) -> None:
        self.identity.answered(exchange, is_complete, now)
        if exchange.loop is not None:
            exchange.loop.answered(is_complete)
        self.sessions.finished(exchange, is_complete, now)
        if exchange.prefix_break is not None:
            self.breaks.finished(exchange)
        if self.trail is not None:
            self.trail.ran(exchange)

    def _engine_model(self, model: str, settings: RequestSettings) -> str:
        return payload.served_as(model, settings.models, self.monitor.engines)

    def wrong_model(self, model: str) -> str | None:
        """Return why no engine serves a model; None where one does."""
        try:
            self._engine_model(model, self.settings())
        except Refused as refused:
            return refused.failure.message
        return None

    def _turn(self, exchange: Exchange, who: Recognition, previous: Home | None) -> Turn:
        """`previous`: of the response that it follows."""
        settings = exchange.settings
        return Turn(
            id=exchange.id,
            session_id=who.session_id,
            family_id=who.family_id,
            tenant=exchange.caller.tenant,
            model=exchange.payload.engine_model,
            arrived_at=exchange.timings.received_at,
            blocks=who.blocks,
            chars=who.chars,
            max_output_tokens=exchange.max_output_tokens,
            kind=who.kind,
            parent_id=who.parent_id,
            remaining_turns=who.remaining_turns,
            is_retry=who.is_retry,
            priority_class=exchange.caller.priority_class,
            weight=exchange.caller.weight,
            deadline_at=_deadline_at(exchange),
            max_wait_s=settings.max_wait_s if exchange.payload.wants_stream else settings.max_wait_plain_s,
            cached_at=self.trail.found(exchange) if self.trail is not None else None,
            pinned_to=previous.replica_id if previous is not None else None,
            excluded=self._unable(exchange),
        )

    def _unable(self, exchange: Exchange) -> frozenset[ReplicaId]:
        """Replicas that are known not to serve its path as its key wants. Raises Refused when none is left."""
        path, engines = exchange.request.path, self.monitor.engines
        unable = [engine for engine in engines if not serves_path(engine, path)]
        if unable and len(unable) == len(engines):
            raise engine_errors.lacks_path(unable[0].name, path)
        if exchange.caller.cache_salt:
            unable += leaking(exchange, engines)
        return frozenset([id_ for engine in unable for id_ in engine.replica_ids]) if unable else _NONE

    async def _refuse(self, exchange: Exchange, responder: Responder, refused: Refused) -> None:
        """As a status while nothing has been sent; after that as an event, and never with a clean end."""
        if responder.has_started:
            if exchange.payload.wants_stream:
                await responder.write(error_event(exchange, refused.failure))
            responder.reset()
            return
        headers = self.observer.receipt_headers(exchange)
        status, told_headers, body = failed(exchange.dialect, refused.failure, headers)
        if isinstance(refused, EngineFailed) and refused.body is not None:
            body = refused.body
        await responder.reply(status, told_headers, body)


def _payload(exchange: Exchange, raw: bytes) -> Payload:
    """Return what the body says, without an engine model. Raises Refused."""
    dialect = exchange.dialect
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        text = f"The body is not JSON: {error.msg} (line {error.lineno}, column {error.colno})."
        raise Refused(Outcome.BAD_REQUEST, Failure(400, "invalid_request_error", text)) from None
    if not isinstance(body, dict):
        text = f"The body must be a JSON object, not {type(body).__name__}."
        raise Refused(Outcome.BAD_REQUEST, Failure(400, "invalid_request_error", text))
    failure = dialect.check(body)
    if failure is None and dialect.is_conversation:
        failure = too_many(body, exchange.settings.limits)
    if failure is not None:
        raise Refused(Outcome.BAD_REQUEST, failure)
    wants_stream = fields.flag(body, "stream")
    wants_usage = wants_stream and dialect.wants_usage(body)
    return Payload(raw, body, fields.text(body, "model") or "", "", wants_stream, wants_usage)


def _permitted(payload: Payload, caller: Caller) -> Payload:
    """Return the payload of a caller that may not use every model, such that it says one model. Raises Refused."""
    if not may_use(caller.models, payload.engine_model):
        raise model_not_allowed(caller, payload.requested_model)
    return payload if says_one_model(payload.raw) else payload.with_keys(model=payload.requested_model)


def _deadline_at(exchange: Exchange) -> float | None:
    """By when the client wants its call to have begun."""
    within_ms = claims.whole_number(exchange.request.headers, "x-turngate-deadline-ms")
    return None if within_ms is None else exchange.timings.received_at + within_ms / 1000


def failed(dialect: Dialect, failure: Failure, headers: HeaderList) -> tuple[int, HeaderList, bytes]:
    """Status, headers and body of a failure; one that may be tried again says when."""
    told = [JSON_TYPE, *headers]
    if failure.status in _RETRYABLE or failure.retry_after_s is not None:
        wait_s = max(LEAST_RETRY_AFTER_S, failure.retry_after_s or 0.0)
        told += [("Retry-After", str(math.ceil(wait_s))), ("Retry-After-Ms", str(math.ceil(wait_s * 1000)))]
    return failure.status, told, dialect.error_body(failure)
