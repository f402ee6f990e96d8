"""Everything that is no model call: models, health, readiness, metrics, receipts, sessions; 404 for the rest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import orjson

from gateway.access.keys import Access, Viewer, may_use
from gateway.access.limits import Limiter, report
from gateway.api import openapi
from gateway.api.live import PATH as LIVE
from gateway.api.live import Live
from gateway.api.router import wrong_method
from gateway.api.ui.page import PATH as UI
from gateway.api.ui.page import LivePage
from gateway.config.live_settings import RequestSettings
from gateway.core.errors import Failure
from gateway.core.fields import excerpt
from gateway.core.transport import Request, Responder
from gateway.dialects import BY_PATH, OPENAI
from gateway.engines.doctor import advice_of
from gateway.engines.monitor import Monitor
from gateway.engines.poller import RunningEngine
from gateway.request import payload
from gateway.sessions.prefix_breaks import PrefixBreaks
from gateway.sessions.session_table import Sessions
from gateway.telemetry.metrics import CONTENT_TYPE
from gateway.telemetry.observer import Observer

if TYPE_CHECKING:
    from gateway.tools.toolbox import Toolbox

JSON_TYPE = "application/json"
_MODELS = "/v1/models"
_RECEIPTS = "/v1/turngate/receipts/"
_SESSIONS = "/v1/turngate/sessions"
_FAMILIES = "/v1/turngate/families"
_TOOLS = "/v1/turngate/tools"
_LIMITS = "/v1/turngate/limits"
"""Failures outside any wire format are told in OpenAI's."""
_NOT_READY = Failure(503, "server_error", "The gateway is stopping, or no engine answers yet.")


@dataclass(frozen=True, slots=True)
class Views:
    """Answers from memory; nothing here asks an engine."""

    access: Access
    limiter: Limiter
    settings: Callable[[], RequestSettings]
    monitor: Monitor
    observer: Observer
    sessions: Sessions
    breaks: PrefixBreaks
    toolbox: Toolbox | None
    is_draining: Callable[[], bool]
    clock: Callable[[], float]
    live: Live
    page: LivePage

    async def handle(self, request: Request, responder: Responder, is_private: bool = False) -> None:
        """Status, headers and body of any path that is no model call. `is_private`: on the admin listener."""
        if request.path == UI and request.method in ("GET", "HEAD"):
            await responder.reply(200, self.page.headers, self.page.body)
            return
        if request.method != "HEAD" and (refused := wrong_method(request)):
            await responder.reply(*refused)
            return
        status, content_type, body = await self._answer(request, is_private)
        headers = [("Content-Type", content_type)]
        if status == 503:
            headers.append(("Retry-After", "1"))
        await responder.reply(status, headers, body)

    async def handle_private(self, request: Request, responder: Responder) -> None:
        """A `transport.Handler` for the admin listener."""
        await self.handle(request, responder, is_private=True)

    async def _answer(self, request: Request, is_private: bool) -> tuple[int, str, bytes]:
        path = request.path
        if request.method not in ("GET", "HEAD"):
            return _told(_unknown(request))
        if path == "/metrics":
            failure = await self.access.metrics_failure(request.headers, is_private)
            return _told(failure) if failure else (200, CONTENT_TYPE, self.observer.metrics.exposition())
        if path == "/health":
            if not await self.access.sees_engines(request.headers, is_private):
                return _json(200, {"status": "ok"})
            status = "draining" if self.is_draining() else "ok"
            return _json(200, {"status": status, "engines": [about(engine) for engine in self.monitor.engines]})
        if path == "/ready":
            is_ready = not self.is_draining() and any(engine.is_up for engine in self.monitor.engines)
            return _json(200, {"status": "ready"}) if is_ready else _told(_NOT_READY)
        if path == openapi.PATH:
            return _json(200, openapi.document())
        if not path.startswith("/v1/"):
            return _told(_unknown(request))
        viewer = await self.access.viewer(request.headers, is_private)
        return _told(viewer) if isinstance(viewer, Failure) else self._view(request, viewer)

    def _view(self, request: Request, viewer: Viewer) -> tuple[int, str, bytes]:
        """What concerns the viewer's own tenant, or all of them."""
        path, tenant = request.path, viewer.tenant
        if path == _TOOLS:
            rows = self.toolbox.listing(viewer.tools) if self.toolbox is not None else []
            return _json(200, {"tools": rows})
        if path == _LIMITS:
            terms = self.access.keys.all_limits if tenant is None else [viewer.limits] if viewer.limits else []
            return _json(200, {"limits": report(self.limiter, terms)})
        if path == _MODELS or path.startswith(_MODELS + "/"):
            return self._models(path, viewer)
        if path.startswith(_RECEIPTS):
            told = self.observer.receipt(path.removeprefix(_RECEIPTS), tenant)
            if told is not None:
                return _json(200, told)
            return _told(Failure(404, "not_found_error", "There is no such receipt, or it is too old."))
        if path == _SESSIONS:
            return _json(200, {"sessions": self.sessions.sessions(tenant, self.clock())})
        if path == LIVE:
            return _json(200, self.live.answer(request.query, tenant))
        if path == _FAMILIES:
            return _json(200, {"families": self.breaks.joined(self.sessions.families(tenant), tenant)})
        return _told(_unknown(request))

    def _models(self, path: str, viewer: Viewer) -> tuple[int, str, bytes]:
        names, lengths = self.settings().models, self._lengths()
        if path == _MODELS:
            usable = {name: length for name, length in lengths.items() if may_use(viewer.models, name)}
            return 200, JSON_TYPE, payload.listing(names, usable)
        name = path.removeprefix(_MODELS + "/").replace("%2F", "/")
        root, row = payload.engine_model(name, names, lengths), payload.row(name, names, lengths)
        if row is not None and may_use(viewer.models, root or ""):
            return 200, JSON_TYPE, row
        return _told(Failure(404, "not_found_error", f"The model {excerpt(name)!r} does not exist here."))

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
        "is_rented": engine.is_rented,
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
        "advice": [{"problem": a.problem, "remedy": a.remedy} for a in advice_of(engine)],
    }


def _unknown(request: Request) -> Failure:
    path = excerpt(request.path)
    text = f"There is no {excerpt(request.method)} {path} here."
    if f"/v1{path}" in BY_PATH or path == "/models":
        text += f" Did you mean /v1{path}? Base URLs of OpenAI clients end in /v1."
    elif path.startswith("/v1/v1/"):
        text += f" Did you mean {path[3:]}? This client adds /v1 itself: leave it out of its base URL."
    else:
        text += f" {openapi.PATH} tells all paths, {UI} shows what happens now."
    return Failure(404, "not_found_error", text)


def _told(failure: Failure) -> tuple[int, str, bytes]:
    return failure.status, JSON_TYPE, OPENAI.error_body(failure)


def _json(status: int, body: object) -> tuple[int, str, bytes]:
    return status, JSON_TYPE, orjson.dumps(body)
