"""Calls that are no turns, such as embeddings and tokenising: any engine may answer, and no slot is held."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gateway import engine_errors
from gateway.engine_errors import EngineFailed
from gateway.errors import Failure, Refused
from gateway.excerpt import excerpt
from gateway.exchange import Exchange, Outcome
from gateway.forward import MAX_ERROR_BYTES, Forward
from gateway.homes import Homes
from gateway.incoming import MAX_BODY_BYTES, headers_for_client
from gateway.monitor import Monitor, RunningEngine
from gateway.observe import Observer
from gateway.outgoing import plain_call
from gateway.transport import Responder, UpstreamCut, UpstreamReply, taken


@dataclass(frozen=True, slots=True)
class PlainCalls:
    """Passes requests through to an engine and its answers back, byte for byte."""

    forward: Forward
    monitor: Monitor
    homes: Homes
    observer: Observer
    attempts: int

    async def answer(self, exchange: Exchange, responder: Responder) -> None:
        """At the least loaded engine that serves the model and the path. Raises Refused."""
        path = exchange.request.path
        engines = [engine for engine in self.monitor.engines if _serves(engine, exchange.engine_model)]
        able = [engine for engine in engines if serves_path(engine, path)]
        if engines and not able:
            raise engine_errors.lacks_path(engines[0].name, path)
        await self._answer(exchange, responder, sorted(able, key=_load)[: self.attempts])

    async def answer_stored(self, exchange: Exchange, responder: Responder) -> None:
        """At the replica that holds the answer that the path names. Raises Refused."""
        _, _, _, answer_id, *rest = exchange.request.path.split("/")
        home = self.homes.home(exchange.tenant, answer_id)
        if home is None or rest not in ([], ["cancel"], ["input_items"]):
            raise no_such_answer(answer_id)
        await self._answer(exchange, responder, [self.monitor.target(home).engine])

    async def _answer(self, exchange: Exchange, responder: Responder, engines: Sequence[RunningEngine]) -> None:
        failed: Refused = Refused(
            Outcome.REJECTED_NO_ENGINE,
            Failure(503, "server_error", "No healthy engine serves this model now.", code="no_replica"),
        )
        for engine in engines:
            try:
                reply, body = await self._ask(exchange, engine)
            except EngineFailed as error:
                if error.fault is not None:
                    self.observer.faulted(engine.name, error.fault)
                if not error.try_another:
                    raise
                failed = error
                continue
            ours = self.observer.receipt_headers(exchange)
            exchange.outcome = Outcome.ANSWERED
            await responder.reply(reply.status, headers_for_client(reply, ours), body)
            return
        raise failed

    async def _ask(self, exchange: Exchange, engine: RunningEngine) -> tuple[UpstreamReply, bytes]:
        exchange.num_attempts += 1
        exchange.engine_kind = engine.engine.kind
        reply = await self.forward.send(engine, plain_call(exchange, engine))
        try:
            body = await taken(reply, MAX_BODY_BYTES if reply.status < 400 else MAX_ERROR_BYTES)
        except UpstreamCut as error:
            raise engine_errors.cut(engine.name, error) from None
        if reply.status >= 400:
            raise engine_errors.answered(exchange, engine.name, reply, body)
        return reply, body


def no_such_answer(answer_id: str) -> Refused:
    text = f"There is no response {excerpt(answer_id)!r} here; only stored ones can be referred to."
    return Refused(Outcome.NOT_FOUND, Failure(404, "not_found_error", text, param="response_id"))


def serves_path(engine: RunningEngine, path: str) -> bool:
    """False only where the engine is known not to."""
    paths = engine.abilities.paths
    return paths is None or path in paths


def _serves(engine: RunningEngine, model: str) -> bool:
    models = engine.report.models
    return engine.is_up and (not models or not model or model in models)


def _load(engine: RunningEngine) -> int:
    return sum((pool.running or 0) + (pool.waiting or 0) for pool in engine.report.pools)
