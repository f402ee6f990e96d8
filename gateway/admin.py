"""Everything that is no model call: models, health, readiness, metrics, receipts, sessions; 404 for the rest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import orjson

from gateway import models
from gateway.breaks import PrefixBreaks
from gateway.dialects import BY_PATH
from gateway.errors import Failure
from gateway.keys import Keys
from gateway.metrics import CONTENT_TYPE
from gateway.monitor import Monitor, RunningEngine
from gateway.observe import Observer
from gateway.sessions import Sessions
from gateway.settings import Models
from gateway.toolloop.toolbox import Toolbox
from gateway.transport import Request, Responder

JSON_TYPE = "application/json"
_MODELS = "/v1/models"
_RECEIPTS = "/v1/turngate/receipts/"
_SESSIONS = "/v1/turngate/sessions"
_FAMILIES = "/v1/turngate/families"
_TOOLS = "/v1/turngate/tools"
_OPENAI = BY_PATH["/v1/chat/completions"]
"""Failures outside any wire format are told in OpenAI's."""
_NOT_READY = Failure(503, "server_error", "The gateway is stopping, or no engine answers yet.")
_NO_KEY = Failure(401, "authentication_error", "The API key is missing or not known here.", code="invalid_api_key")


@dataclass(frozen=True, slots=True)
class Admin:
    """Answers from memory; nothing here asks an engine."""

    keys: Keys
    names: Models
    monitor: Monitor
    observer: Observer
    sessions: Sessions
    breaks: PrefixBreaks
    toolbox: Toolbox | None
    is_draining: Callable[[], bool]
    clock: Callable[[], float]

    async def handle(self, request: Request, responder: Responder) -> None:
        """Status, headers and body of any path that is no model call."""
        status, content_type, body = self._answer(request)
        headers = [("Content-Type", content_type)]
        if status == 503:
            headers.append(("Retry-After", "1"))
        await responder.reply(status, headers, body)

    def _answer(self, request: Request) -> tuple[int, str, bytes]:
        path = request.path
        if request.method not in ("GET", "HEAD"):
            return _told(_unknown(request))
        if path == "/metrics":
            return 200, CONTENT_TYPE, self.observer.metrics.exposition()
        if path == "/health":
            return _json(200, {"status": "ok", "engines": [about(engine) for engine in self.monitor.engines]})
        if path == "/ready":
            is_ready = not self.is_draining() and any(engine.is_up for engine in self.monitor.engines)
            return _json(200, {"status": "ready"}) if is_ready else _told(_NOT_READY)
        if not path.startswith("/v1/"):
            return _told(_unknown(request))
        caller = self.keys.caller(request.headers)
        if caller is None:
            return _told(_NO_KEY)
        if path == _TOOLS:
            rows = self.toolbox.listing(caller.tools) if self.toolbox is not None else []
            return _json(200, {"tools": rows})
        return self._of_tenant(request, caller.tenant)

    def _of_tenant(self, request: Request, tenant: str) -> tuple[int, str, bytes]:
        path = request.path
        if path == _MODELS:
            return 200, JSON_TYPE, models.listing(self.names, self._lengths())
        if path.startswith(_MODELS + "/"):
            name = path.removeprefix(_MODELS + "/").replace("%2F", "/")
            row = models.row(name, self.names, self._lengths())
            if row is not None:
                return 200, JSON_TYPE, row
            return _told(Failure(404, "not_found_error", f"The model {name!r} does not exist here."))
        if path.startswith(_RECEIPTS):
            told = self.observer.receipt(path.removeprefix(_RECEIPTS), tenant)
            if told is not None:
                return _json(200, told)
            return _told(Failure(404, "not_found_error", "There is no such receipt, or it is too old."))
        if path == _SESSIONS:
            return _json(200, {"sessions": self.sessions.sessions(tenant, self.clock())})
        if path == _FAMILIES:
            return _json(200, {"families": self.breaks.joined(self.sessions.families(tenant), tenant)})
        return _told(_unknown(request))

    def _lengths(self) -> dict[str, int | None]:
        """Served models and their context lengths, where known; the shortest of several engines."""
        lengths: dict[str, int | None] = {}
        for engine in self.monitor.engines:
            for name in engine.report.models if engine.is_up else ():
                known = [n for n in (lengths.get(name), engine.report.max_model_len.get(name)) if n is not None]
                lengths[name] = min(known, default=None)
        return lengths


def about(engine: RunningEngine) -> dict[str, object]:
    """What is known of an engine: what it serves, what it honours, what would make it work better."""
    report, abilities = engine.report, engine.abilities
    return {
        "name": engine.name,
        "kind": engine.address.kind,
        "is_up": engine.is_up,
        "version": abilities.version,
        "models": report.models,
        "pools": [
            {"name": pool.name, "capacity_tokens": pool.capacity_tokens, "slots": pool.slots}
            for pool in report.pools
        ],
        "honours": {
            "priority": abilities.honours_priority,
            "pool_addressing": abilities.can_address_pools,
            "refused_fields": sorted(abilities.refused_fields),
        },
        "reports_cached_tokens": abilities.reports_cached_tokens,
        "renders_system_before_tools": abilities.system_before_tools,
        "advice": [{"problem": a.problem, "remedy": a.remedy} for a in engine.engine.advice(report, abilities)],
    }


def _unknown(request: Request) -> Failure:
    path = request.path
    text = f"There is no {request.method} {path} here."
    if f"/v1{path}" in BY_PATH or path == "/models":
        text += f" Did you mean /v1{path}? Base URLs of OpenAI clients end in /v1."
    return Failure(404, "not_found_error", text)


def _told(failure: Failure) -> tuple[int, str, bytes]:
    return failure.status, JSON_TYPE, _OPENAI.error_body(failure)


def _json(status: int, body: object) -> tuple[int, str, bytes]:
    return status, JSON_TYPE, orjson.dumps(body)
