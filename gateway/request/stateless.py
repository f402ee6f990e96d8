"""Calls that are no turns, such as embeddings and tokenising: any engine may answer, and no slot is held."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gateway.core.errors import Failure, Outcome, Refused
from gateway.core.json_edit import splice
from gateway.core.transport import Responder, UpstreamCut, UpstreamReply, taken
from gateway.dialects import STORED_ANSWERS
from gateway.engines.monitor import Monitor
from gateway.engines.pages import json_object
from gateway.engines.poller import RunningEngine
from gateway.exchange import Exchange
from gateway.request import engine_errors
from gateway.request.engine_errors import EngineFailed
from gateway.request.model_call import MAX_ERROR_BYTES, Forward
from gateway.request.stored_responses import StoredResponses, no_such_response
from gateway.request.stream_relay import read_into
from gateway.request.upstream_request import plain_call
from gateway.request.upstream_response import MAX_BODY_BYTES, headers_for_client, usage_at_end
from gateway.telemetry.observer import Observer
from policies.types import Usage


@dataclass(frozen=True, slots=True)
class StatelessCalls:
    """Passes requests to an engine and its answers back, byte for byte."""

    forward: Forward
    monitor: Monitor
    stored: StoredResponses
    observer: Observer

    async def answer(self, exchange: Exchange, responder: Responder) -> None:
        """Ask the least loaded engine that serves the model and the path. Raises Refused."""
        path = exchange.request.path
        engines = [engine for engine in self.monitor.engines if _serves(engine, exchange.payload.engine_model)]
        able = [engine for engine in engines if serves_path(engine, path)]
        if engines and not able:
            raise engine_errors.lacks_path(engines[0].name, path)
        if exchange.caller.cache_salt:
            leaking = leaking_engines(path, able)
            able = [engine for engine in able if engine not in leaking]
        await self._answer(exchange, responder, sorted(able, key=_load)[: exchange.settings.limits.attempts])

    async def answer_stored(self, exchange: Exchange, responder: Responder) -> None:
        """Ask the replica that holds the answer that the path names. Raises Refused."""
        response_id, *rest = exchange.request.path.removeprefix(STORED_ANSWERS).split("/")
        home = await self.stored.find(exchange.caller.tenant, response_id)
        if home is None or rest not in ([], ["cancel"], ["input_items"]):
            raise no_such_response(response_id)
        renamed = None if home.engine_id == response_id else (home.engine_id, response_id)
        await self._answer(exchange, responder, [self.monitor.target(home.replica_id).engine], renamed)

    async def _answer(
        self,
        exchange: Exchange,
        responder: Responder,
        engines: Sequence[RunningEngine],
        renamed: tuple[str, str] | None = None,
    ) -> None:
        """`renamed`: the engine's id of a stored response, and the client's."""
        failed: Refused = Refused(
            Outcome.REJECTED_NO_ENGINE,
            Failure(503, "server_error", "No healthy engine serves this model now.", code="no_replica"),
        )
        for number, engine in enumerate(engines, 1):
            self.forward.begin_attempt(exchange, engine, number)
            try:
                reply, body = await self._ask(exchange, engine, renamed)
            except EngineFailed as error:
                if error.fault is not None:
                    self.observer.faulted(engine.name, error.fault)
                if not error.try_another:
                    raise
                failed = error
                continue
            if exchange.payload.body and (about := usage_at_end(body)):
                # No tokenizer makes more tokens than bytes.
                most = Usage(len(exchange.payload.raw), None, 0)
                read_into(exchange.reply, about, exchange.dialect, engine.adapter, most)
            headers = headers_for_client(reply, self.observer.receipt_headers(exchange))
            await responder.reply(reply.status, headers, body)
            return
        try:
            raise failed
        finally:  # its traceback holds this frame
            del failed

    async def _ask(
        self, exchange: Exchange, engine: RunningEngine, renamed: tuple[str, str] | None
    ) -> tuple[UpstreamReply, bytes]:
        call = plain_call(exchange, engine)
        if renamed is not None:
            call = replace(call, url=call.url.replace(renamed[1], renamed[0]))
        reply = await self.forward.send(engine, call, exchange.settings.timeouts)
        try:
            body = await taken(reply, MAX_BODY_BYTES if reply.status < 400 else MAX_ERROR_BYTES)
        except UpstreamCut as error:
            raise engine_errors.cut(engine.name, error) from None
        if reply.status >= 400:
            raise engine_errors.answered(exchange, engine.name, reply, body)
        if renamed is not None and (response := json_object(body)).get("id") == renamed[0]:
            body = splice(body, response, {"id": renamed[1]}, ())
        return reply, body


def serves_path(engine: RunningEngine, path: str) -> bool:
    """Return False only where the engine is known not to serve the path."""
    paths = engine.abilities.paths
    return paths is None or path in paths


def leaking_engines(path: str, engines: Sequence[RunningEngine]) -> list[RunningEngine]:
    """Return engines that would answer a request with a salt from a cache that others share. Raises Refused when
    all would."""
    found = [engine for engine in engines if path not in engine.adapter.salted_paths(engine.abilities)]
    if found and len(found) == len(engines):
        text = f"This key asks for a prefix cache of its own (isolate_cache), which no engine here has on {path}."
        raise Refused(Outcome.FORBIDDEN, Failure(403, "permission_error", text, code="cache_not_isolated"))
    return found


def _serves(engine: RunningEngine, model: str) -> bool:
    models = engine.report.models
    return engine.is_up and (not models or not model or model in models)


def _load(engine: RunningEngine) -> int:
    return sum((pool.running or 0) + (pool.waiting or 0) for pool in engine.report.pools)
