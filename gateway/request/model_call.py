"""One model call at one replica: ask it, repair refused additions of the gateway, return its answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace

from gateway.core.errors import OVERLOADS, EngineFault, NoAnswer
from gateway.core.reply import Reply
from gateway.core.slices import Slices
from gateway.core.sse import EventTooLong
from gateway.core.transport import Timeouts, Upstream, UpstreamCut, UpstreamRefused, UpstreamReply
from gateway.dialects.completions import num_chars
from gateway.engines.base import OutgoingRequest
from gateway.engines.monitor import Monitor
from gateway.engines.poller import RunningEngine
from gateway.exchange import EngineAttempt, Exchange, Payload
from gateway.request import engine_errors, upstream_request
from gateway.request.engine_errors import EngineFailed
from gateway.request.upstream_request import Bound, Call, salted, turn_call
from gateway.request.upstream_response import UpstreamResponse
from gateway.telemetry.observer import Observer
from policies.types import Dispatch

MAX_ERROR_BYTES = 2**20
MAX_REPAIRS = 2
"""How often a replica is asked again without the fields that it refused."""
_REPAIRABLE = frozenset((400, 422))


@dataclass(frozen=True, slots=True)
class Forward:
    """Sends calls to engines. The refusals of an engine are kept in its abilities."""

    upstream: Upstream
    monitor: Monitor
    observer: Observer
    clock: Callable[[], float]
    slices: Slices
    """For answers that are large, with bodies of requests that are."""

    def begin_attempt(
        self, exchange: Exchange, engine: RunningEngine, number: int, dispatch: Dispatch | None = None
    ) -> None:
        """Record that an engine is asked now. `number`: among the attempts at the same model call, from 1."""
        exchange.attempt = EngineAttempt(engine.adapter.kind, number, dispatch)

    async def send(self, engine: RunningEngine, call: Call, timeouts: Timeouts) -> UpstreamReply:
        """Return status and headers of an answer. Raises EngineFailed."""
        try:
            reply = await self.upstream.call(call.method, call.url, call.headers, call.body, timeouts)
        except UpstreamRefused:
            self.monitor.failed(engine)
            raise engine_errors.unreachable(engine.name) from None
        except UpstreamCut as error:
            raise engine_errors.cut(engine.name, error) from None
        if (fault := engine_errors.head_fault(reply)) is not None:
            reply.close(reuse=False)
            raise engine_errors.cut(engine.name, NoAnswer(fault))
        return reply


class ModelCall:
    """A turn at one replica, for the body of a `with`: leaving it early aborts the call at the engine. Owns the
    connection to the engine."""

    def __init__(
        self, forward: Forward, exchange: Exchange, payload: Payload, dispatch: Dispatch, number: int
    ) -> None:
        """`number`: of the attempt, from 1."""
        self._forward = forward
        self._exchange = exchange
        self._payload = payload
        self._hints = dispatch.hints
        self._replica_id = dispatch.replica_id
        self._target = forward.monitor.target(dispatch.replica_id)
        self._answer: UpstreamResponse | None = None
        forward.begin_attempt(exchange, self._target.engine, number, dispatch)
        engine = self._target.engine
        self._repair = engine.adapter.repaired(exchange.request.path, payload.body, engine.abilities)
        for note in self._repair.notes:
            exchange.note(note)

    @property
    def engine(self) -> RunningEngine:
        return self._target.engine

    def __enter__(self) -> ModelCall:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if self._exchange.trace is not None:
            self._exchange.trace.end_call(self._exchange)
        fault = error.fault if isinstance(error, EngineFailed) else None
        if self._answer is not None:
            self._answer.close()
            fault = fault or self._answer.fault
        if fault is not None:
            self._faulted(fault)

    def _faulted(self, fault: EngineFault) -> None:
        engine, monitor = self._target.engine, self._forward.monitor
        self._forward.observer.faulted(engine.name, fault)
        if fault not in OVERLOADS and engine in monitor.engines:  # else another engine has its name by now
            monitor.erred(self._replica_id)

    async def begin(self) -> UpstreamResponse:
        """Return the answer, begun. After a 400 about a field that the gateway added or may lower, ask again
        without it. Raises EngineFailed."""
        abilities = self._target.engine.abilities
        bound, refused, pool = self._bound_before(), frozenset[str](), self._target.pool
        for _ in range(MAX_REPAIRS + 1):
            call = self._call(bound, refused, pool)
            if self._exchange.reading is not None:
                await asyncio.sleep(0)  # a copy of a large body is a step of its own
            try:
                answer = await self._ask(call)
            except EngineFailed as failed:
                if failed.failure.status not in _REPAIRABLE:
                    raise
                last = failed
            else:
                if refused:
                    abilities.remember_refusal(refused, call.added)
                self._forward.monitor.worked(self._replica_id)
                return answer
            if more := self._refused_fields(call, last) - refused:
                refused |= more - {call.added.pin}
                pool = "" if call.added.pin in more else pool
            elif bound is not None or (bound := self._bound_after(last)) is None:
                break
        try:
            raise last
        finally:  # its traceback holds this frame
            del last

    async def _ask(self, call: Call) -> UpstreamResponse:
        exchange, engine = self._exchange, self._target.engine
        if exchange.timings.engine_asked_at is None:
            exchange.timings.engine_asked_at = self._forward.clock()
        else:
            exchange.reply = Reply()
        if exchange.trace is not None:
            headers = exchange.trace.begin_call(
                exchange, engine.adapter.kind, engine.address.base_url, call.headers
            )
            call = replace(call, headers=headers)
        reply = await self._forward.send(engine, call, exchange.settings.timeouts)
        if self._answer is not None:
            self._answer.close()
        self._answer = answer = UpstreamResponse(exchange, engine.adapter, call, reply, self._forward.slices)
        try:
            if reply.status >= 400:
                body = await reply.read(MAX_ERROR_BYTES)
                raise engine_errors.answered(exchange, engine.name, reply, body)
            await answer.begin()
        except (UpstreamCut, EventTooLong, NoAnswer) as error:
            raise engine_errors.cut(engine.name, error) from None
        except EngineFailed as failed:
            failed.is_queue_full = failed.fault is EngineFault.FULL and engine.adapter.is_queue_full(
                failed.failure.message
            )
            raise
        return answer

    def _call(self, bound: Bound | None, refused: frozenset[str], pool: str) -> Call:
        exchange, engine, observer = self._exchange, self._target.engine, self._forward.observer
        abilities, request = engine.abilities, exchange.request
        if refused:
            abilities = replace(abilities, refused_fields=abilities.refused_fields | refused)
        outgoing = OutgoingRequest(
            request.path,
            self._payload.body,
            self._hints,
            pool,
            exchange.caller.may_prioritise,
            request.headers,
            _response_id(exchange),
        )
        added = engine.adapter.outgoing(outgoing, abilities)
        observer.hinted(engine.name, added.hint_names, "sent")
        if added.drop or added.drop_headers:
            observer.hinted(engine.name, added.drop | added.drop_headers, "dropped")
        return turn_call(exchange, self._payload, engine, salted(exchange, added), self._repair, bound)

    def _refused_fields(self, call: Call, failed: EngineFailed) -> frozenset[str]:
        """Return the fields that the gateway added and the engine refuses."""
        engine = self._target.engine
        refused = engine.adapter.refused_fields(failed.failure.status, failed.failure.message, call.added)
        self._forward.observer.hinted(engine.name, refused, "refused")
        return refused

    def _bound_before(self) -> Bound | None:
        exchange = self._exchange
        max_model_len = self._target.engine.report.max_model_len.get(exchange.payload.engine_model)
        if max_model_len is None or (max_tokens := exchange.max_output_tokens) is None:
            return None
        bound = upstream_request.before_asking(max_tokens, _chars(exchange), max_model_len, _may_omit(exchange))
        return _noted(exchange, bound)

    def _bound_after(self, failed: EngineFailed) -> Bound | None:
        exchange = self._exchange
        max_tokens = exchange.max_output_tokens
        if max_tokens is None:
            return None
        message = failed.failure.message
        return _noted(
            exchange, upstream_request.after_refusal(message, max_tokens, _chars(exchange), _may_omit(exchange))
        )


def _response_id(exchange: Exchange) -> str:
    """Return the id under which an engine may store the answer. Empty: it is not stored, or its client named
    it."""
    body = exchange.payload.body
    is_ours = exchange.dialect.stores_answers and body.get("store") is not False and "request_id" not in body
    return exchange.give_id() if is_ours else ""


def _chars(exchange: Exchange) -> int:
    """Return the length of the prompt; of several, which are answered apart, of the longest."""
    if (prompts := exchange.dialect.prompts(exchange.payload.body)) is not None:
        return max(map(num_chars, prompts))
    return exchange.recognition.chars if exchange.recognition is not None else len(exchange.payload.raw)


def _may_omit(exchange: Exchange) -> bool:
    return exchange.dialect.may_omit_bound


def _noted(exchange: Exchange, bound: Bound | None) -> Bound | None:
    if bound is not None:
        what = "left out" if bound.tokens is None else f"lowered to {bound.tokens}"
        exchange.note(f"max_tokens {exchange.max_output_tokens} does not fit: {what}")
    return bound
