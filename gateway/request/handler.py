"""The way of a request from its key to its outcome: limits, body, model, session, turn, answer or refusal."""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from gateway.access.keys import Caller, Keys
from gateway.access.limits import Allowance, Limiter
from gateway.config.live_settings import RequestSettings
from gateway.core.errors import ANSWERED, Failure, Outcome, Refused
from gateway.core.fields import TooDeep
from gateway.core.slices import Reading, Slices, is_large
from gateway.core.transport import Handler, HeaderList, Request, Responder
from gateway.dialects import BY_PATH, dialect_of
from gateway.dialects.base import Dialect, Script
from gateway.engines.monitor import Monitor
from gateway.exchange import Exchange, Payload, Recognition, RequestEnd, Timings
from gateway.request import engine_errors
from gateway.request.answer import Answering, error_event
from gateway.request.engine_errors import EngineFailed
from gateway.request.gate import Drain, Gate, stopping
from gateway.request.incoming_bodies import IncomingBodies
from gateway.request.inprocess import HandedOn, InProcessRequest
from gateway.request.parsed_beginnings import ParsedBeginnings
from gateway.request.payload import engine_model, parse_body, parse_in_steps, permitted, read_body, served_as
from gateway.request.stateless import StatelessCalls, leaking_engines, serves_path
from gateway.request.stored_responses import Home, StoredResponses
from gateway.request.upstream_request import MOST_UNKNOWN_TOKENS
from gateway.sessions import claims
from gateway.sessions.identity import Identity
from gateway.sessions.prefix_breaks import PrefixBreaks
from gateway.sessions.session_locations import Trail
from gateway.sessions.session_table import SessionTable
from gateway.telemetry.logs import OUR_NOTE
from gateway.telemetry.observer import Observer
from policies.types import SIDE, ReplicaId, SessionEnded, Turn, TurnKind

if TYPE_CHECKING:
    from gateway.tools.toolbox import Toolbox

JSON_TYPE = ("Content-Type", "application/json")
LEAST_RETRY_AFTER_S = 1.0
_RETRYABLE = frozenset((429, 503, 529))
_TOO_DEEP = Failure(400, "invalid_request_error", "The body is nested too deeply.", code="too_deep")
"""A value of the body has to be written again: its engine, or the opening of its stream, needs it changed."""
_NONE: frozenset[ReplicaId] = frozenset()


class PromptLists(Protocol):
    """Answers requests with many prompts in parts."""

    def takes(self, exchange: Exchange) -> bool: ...

    async def answer(self, exchange: Exchange, responder: Responder, handle: Handler, caller: Caller) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestHandler:
    """Takes every request of the server, and ends each with one answer and one outcome."""

    settings: Callable[[], RequestSettings]
    """Return those for a request that begins now."""
    clock: Callable[[], float]
    drain: Drain
    keys: Keys
    limiter: Limiter
    bodies: IncomingBodies
    slices: Slices
    beginnings: ParsedBeginnings
    monitor: Monitor
    turns: TurnHandler
    stateless: StatelessCalls
    lists: PromptLists
    observer: Observer

    def handle(self, request: Request, responder: Responder) -> Awaitable[None]:
        """A `transport.Handler` of model calls: POST to the path of a dialect, and all below `/v1/responses/`."""
        return self._exchange(dialect_of(request.path), request, responder)

    async def _exchange(self, dialect: Dialect, request: Request, responder: Responder) -> None:
        """Law: however a request ends, its outcome is set here alone, and the observer sees it once."""
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
            except TooDeep:
                failure = _TOO_DEEP
                await self._refuse(exchange, responder, Refused(Outcome.BAD_REQUEST, failure))
                outcome = Outcome.BAD_REQUEST
        except (asyncio.CancelledError, ConnectionError):
            outcome = Outcome.ANSWERED if exchange.is_delivered else Outcome.CLIENT_GONE
            raise
        except Exception as error:
            error.add_note(f"{OUR_NOTE}{exchange.id}")  # the server that logs it does not know the request
            raise
        finally:
            if exchange.reading is not None:
                exchange.reading.leave()
                self.slices.free(exchange.payload.body)
            exchange.timings.finished_at = self.clock()
            exchange.end = RequestEnd(outcome, failure)
            if exchange.allowance is not None:
                model = exchange.payload.engine_model
                exchange.allowance.settle(model, exchange.charged, exchange.has_engine_worked)
            self.observer.finished(exchange)
            self.drain.left(is_clients)
            exchange.loop = None  # it holds the exchange

    async def _serve(self, exchange: Exchange, responder: Responder, caller: Caller | None) -> Outcome:
        """Return how the answer went. Raises Refused. `caller`: None where the key has not been read yet."""
        request, settings = exchange.request, exchange.settings
        caller = caller or self.keys.at_once(request.headers) or await self.keys.known(request.headers)
        exchange.caller = caller
        if caller.limits is not None:
            exchange.allowance = self.limiter.allowance(caller.limits)
            if not isinstance(request, InProcessRequest):
                exchange.allowance.enter()  # a list has entered for its parts, and lines of batches are paced
                await exchange.allowance.confirm_place()
        raw = await read_body(request, settings.limits, self.bodies, caller.id)
        if request.path not in BY_PATH:
            exchange.payload = Payload(raw)
            await self.stateless.answer_stored(exchange, responder)
            return ANSWERED
        names = self.slices.names
        if not is_large(raw) and not (names and _session_name(exchange) in names):
            payload, exchange.raw_parts = parse_body(
                raw, exchange.dialect, settings.limits, caller.tenant, self.beginnings
            )
            exchange.payload = payload
        else:
            exchange.payload = payload = await self._parsed(exchange, raw)
        model = served_as(payload.requested_model, settings.models, self.monitor.engines)
        exchange.payload = payload = payload.for_model(model)
        if "*" not in caller.models:
            exchange.payload = payload = permitted(payload, caller)
        if self.lists.takes(exchange):
            if exchange.reading is not None:
                exchange.reading.leave()  # its parts have its name
            await self.lists.answer(exchange, responder, self.handle, caller)
            return ANSWERED
        if exchange.allowance is not None:
            self._reserve(exchange, exchange.allowance, model)
        if exchange.dialect.is_conversation:
            return await self.turns.answer(exchange, responder)
        await self.stateless.answer(exchange, responder)
        return ANSWERED

    def _reserve(self, exchange: Exchange, allowance: Allowance, model: str) -> None:
        """Count what a request is expected to use. Raises Refused."""
        dialect, payload, bound = exchange.dialect, exchange.payload, exchange.max_output_tokens
        num_answers = dialect.num_answers(payload.body) if dialect.is_conversation else 0
        if bound is not None:  # else engines set a low one for each prompt of a list
            num_answers *= dialect.num_prompts(payload.body)
        longest = None
        if dialect.answers_later(payload.body):
            lengths = [engine.report.max_model_len.get(model) for engine in self.monitor.engines]
            longest = max((length for length in lengths if length), default=MOST_UNKNOWN_TOKENS)
        allowance.reserve(model, len(payload.raw), bound, num_answers, longest)

    async def _parsed(self, exchange: Exchange, raw: bytes) -> Payload:
        """Return what a large body says, after those that came before under its session name. Raises Refused."""
        exchange.reading = reading = await self.slices.admit(_session_name(exchange))
        steps = parse_in_steps(raw, exchange.dialect, exchange.settings.limits)
        payload, cut = await self.slices.run(steps)
        if exchange.dialect.is_item_a_message:
            exchange.cut = cut
        if not exchange.dialect.is_conversation:
            reading.leave()
        return payload

    async def _refuse(self, exchange: Exchange, responder: Responder, refused: Refused) -> None:
        """Answer with a status while nothing has been sent; after that with an event, and never a clean end."""
        if responder.has_started:
            if exchange.payload.wants_stream:
                await responder.write(error_event(exchange, refused.failure))
            responder.reset()
            return
        receipt = self.observer.receipt_headers(exchange)
        status, headers, body = failed(exchange.dialect, refused.failure, receipt)
        if isinstance(refused, EngineFailed) and refused.body is not None:
            body = refused.body
        await responder.reply(status, headers, body)

    def wrong_model(self, model: str) -> str | None:
        """Return why no engine serves a model; None where one does."""
        try:
            served_as(model, self.settings().models, self.monitor.engines)
        except Refused as refused:
            return refused.failure.message
        return None


def failed(dialect: Dialect, failure: Failure, headers: HeaderList) -> tuple[int, HeaderList, bytes]:
    """Return status, headers and body of a failure. One that may be tried again says when."""
    headers = [JSON_TYPE, *headers]
    if failure.status in _RETRYABLE or failure.retry_after_s is not None:
        wait_s = max(LEAST_RETRY_AFTER_S, failure.retry_after_s or 0.0)
        headers += [("Retry-After", str(math.ceil(wait_s))), ("Retry-After-Ms", str(math.ceil(wait_s * 1000)))]
    return failure.status, headers, dialect.error_body(failure)


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnHandler:
    """Answers requests that belong to sessions: recognises the session, makes the turn, remembers how it ended."""

    clock: Callable[[], float]
    monitor: Monitor
    identity: Identity
    sessions: SessionTable
    breaks: PrefixBreaks
    stored: StoredResponses
    toolbox: Toolbox | None
    """None: the gateway has no tools of its own."""
    trail: Trail | None
    """Where sessions were at other members. None: there are none."""
    gate: Gate
    answering: Answering

    async def answer(self, exchange: Exchange, responder: Responder) -> Outcome:
        """Return how the answer went. Raises Refused."""
        previous_id = exchange.dialect.stateful_id(exchange.payload.body)
        previous = await self.stored.find(exchange.caller.tenant, previous_id) if previous_id else None
        as_sent, exchange.payload = exchange.payload, self.breaks.prepare(exchange)
        if exchange.payload is not as_sent:
            exchange.cut = exchange.raw_parts = None
        if (reading := exchange.reading) is None:
            script = self.identity.script(exchange)
        else:
            script = await self._script(exchange, reading)
        exchange.cut = exchange.raw_parts = None
        exchange.recognition = recognition = self._recognise(exchange, script)
        is_complete = False
        try:
            exchange.timings.recognised_at = now = self.clock()
            self.sessions.open_request(exchange, now)
            tools_first = exchange.payload.engine_model in self.identity.tools_first
            exchange.prefix_break = self.breaks.recognised(exchange, script, tools_first)
            del script  # its texts are as long as the body, and the answer may take minutes
            if reading is not None:
                await asyncio.sleep(0)
            exchange.payload = self._for_side_model(exchange, recognition)
            turn, payload = self._turn(exchange, recognition, previous), exchange.payload
            if previous is not None and previous.engine_id != previous_id:
                payload = payload.with_keys(previous_response_id=previous.engine_id)
            if self.toolbox is not None and (opened := self.toolbox.open_loop(turn, payload, exchange)):
                exchange.loop, turn = opened
            exchange.payload = payload
            outcome = await self.answering.answer(turn, exchange, responder)
            is_complete = outcome is ANSWERED
        except (asyncio.CancelledError, ConnectionError):
            is_complete = exchange.is_delivered
            raise
        finally:
            self._turn_ended(exchange, is_complete)
        if recognition.is_final:
            self.sessions.end_session(recognition.session_id, self.clock())
            self.gate.tell(SessionEnded(recognition.session_id))
        return outcome

    async def _script(self, exchange: Exchange, reading: Reading) -> Script:
        """Return the conversation of a large body, read in slices. Its turn is recognised right after it."""
        script = await reading.slices.run(self.identity.script_in_steps(exchange))
        reading.leave()
        return script

    def _recognise(self, exchange: Exchange, script: Script) -> Recognition:
        found = self.identity.recognise(exchange, script, self.clock())
        if found.kind is SIDE and isinstance(exchange.request, InProcessRequest):
            # Clients ask for titles beside their turns. A request of the gateway's own is a whole task.
            return replace(found, kind=TurnKind.SINGLE)
        return found

    def _for_side_model(self, exchange: Exchange, recognition: Recognition) -> Payload:
        """Return the payload; of a side request for the side model, as long as an engine that is up serves it."""
        models = exchange.settings.models
        if recognition.kind is not SIDE or models.side_model is None:
            return exchange.payload
        served = {name for engine in self.monitor.engines if engine.is_up for name in engine.report.models}
        if (side_model := engine_model(models.side_model, models, served)) in served:
            return exchange.payload.for_model(side_model)
        exchange.note("no engine serves the side model now: the requested model answers")
        return exchange.payload

    def _turn(self, exchange: Exchange, recognition: Recognition, previous: Home | None) -> Turn:
        """Return the turn for the Scheduler. Raises Refused. `previous`: of the response that it follows."""
        settings, caller = exchange.settings, exchange.caller
        # By place: names take thrice the time to pass.
        return Turn(
            exchange.id,
            recognition.session_id,
            recognition.family_id,
            caller.tenant,
            exchange.payload.engine_model,  # model
            exchange.timings.received_at,  # arrived_at
            recognition.blocks,
            recognition.chars,
            exchange.max_output_tokens,
            recognition.kind,
            recognition.parent_id,
            recognition.remaining_turns,
            recognition.is_retry,
            caller.priority_class,
            caller.weight,
            _deadline_at(exchange),  # deadline_at
            settings.max_wait_s if exchange.payload.wants_stream else settings.max_wait_plain_s,  # max_wait_s
            self.trail.found(exchange) if self.trail is not None else None,  # cached_at
            recognition.history,
            previous.replica_id if previous is not None else None,  # pinned_to
            self._unable(exchange),  # excluded
            0.0,  # not_before
            self._unranked(exchange.request.path),  # unranked
            recognition.head,
            exchange.payload.wants_stream,  # streams
        )

    def _unranked(self, path: str) -> frozenset[ReplicaId]:
        """Return replicas whose own queue takes no rank of a call of this path."""
        engines = self.monitor.engines
        unranked = [engine for engine in engines if path in engine.adapter.unranked_paths(engine.abilities)]
        return frozenset([id_ for engine in unranked for id_ in engine.replica_ids]) if unranked else _NONE

    def _unable(self, exchange: Exchange) -> frozenset[ReplicaId]:
        """Return replicas that do not serve the path as the caller's key wants. Raises Refused when all do not."""
        path, engines = exchange.request.path, self.monitor.engines
        unable = [engine for engine in engines if not serves_path(engine, path)]
        if unable and len(unable) == len(engines):
            raise engine_errors.lacks_path(unable[0].name, path)
        if exchange.caller.cache_salt:
            unable += leaking_engines(path, engines)
        return frozenset([id_ for engine in unable for id_ in engine.replica_ids]) if unable else _NONE

    def _turn_ended(self, exchange: Exchange, is_complete: bool) -> None:
        now = self.clock()
        self.identity.answered(exchange, is_complete, now)
        if exchange.loop is not None:
            exchange.loop.answered(is_complete)
        self.sessions.close_request(exchange, is_complete, now)
        if exchange.prefix_break is not None:
            self.breaks.finished(exchange)
        if self.trail is not None:
            self.trail.ran(exchange)


def _session_name(exchange: Exchange) -> str:
    """Return the session that the client names, with its tenant; empty: it names none."""
    session = claims.read_claim(exchange.request.headers).session
    return f"{exchange.caller.tenant} {session}" if session is not None else ""


def _deadline_at(exchange: Exchange) -> float | None:
    """Return the time by which the client wants its call to have begun. None: it does not say."""
    within_ms = claims.whole_number(exchange.request.headers, "x-turngate-deadline-ms")
    return None if within_ms is None else exchange.timings.received_at + within_ms / 1000
