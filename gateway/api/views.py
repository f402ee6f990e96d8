"""Pages that the gateway answers from memory: models, health, metrics, receipts, sessions, limits, tools."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import parse_qs

import orjson

from gateway.access.keys import Keys, Viewer, may_use
from gateway.access.limits import Limiter, report
from gateway.api.sessions import SessionViews, number
from gateway.api.why import explained
from gateway.config.live_settings import RequestSettings
from gateway.core.errors import Failure
from gateway.core.fields import excerpt
from gateway.core.transport import HeaderList, Request
from gateway.dialects import BY_PATH, OPENAI
from gateway.engines.doctor import health_row
from gateway.engines.monitor import Monitor
from gateway.request import payload
from gateway.request.gate import Drain
from gateway.request.handler import failed
from gateway.sessions.prefix_breaks import PrefixBreaks
from gateway.telemetry.metrics import CONTENT_TYPE
from gateway.telemetry.observer import Observer

if TYPE_CHECKING:
    from gateway.tools.toolbox import Toolbox


Page: TypeAlias = tuple[int, HeaderList, bytes]
"""Status, headers, body."""
JSON_HEADERS: HeaderList = (("Content-Type", "application/json"),)
_NOT_READY: Page = (
    503,
    (*JSON_HEADERS, ("Retry-After", "1")),
    OPENAI.error_body(Failure(503, "server_error", "The gateway is stopping, or no engine answers yet.")),
)
MAX_RECEIPTS = 500
_NO_RECEIPT = Failure(404, "not_found_error", "There is no such receipt, or it is too old.")


_NOTHING_TO_EXPLAIN = Failure(
    404,
    "not_found_error",
    "No request of this session, agent or receipt is remembered (receipts.keep_s);"
    " `turngate top` and /v1/turngate/sessions show the names.",
)


@dataclass(frozen=True, slots=True)
class Views:
    """Each method answers one route with the facts of the viewer's tenant, or of all. None asks an engine."""

    limiter: Limiter
    keys: Keys
    settings: Callable[[], RequestSettings]
    monitor: Monitor
    observer: Observer
    sessions: SessionViews
    breaks: PrefixBreaks
    toolbox: Toolbox | None
    drain: Drain
    live_page: LivePage

    def health(self, request: Request, viewer: Viewer | None) -> Page:
        """Without a viewer, show only that the process lives."""
        if viewer is None:
            return json_page({"status": "ok"})
        status = "draining" if self.drain.is_on else "ok"
        engines, memory = list(map(health_row, self.monitor.engines)), self.observer.metrics.memory.page()
        return json_page({"status": status, "engines": engines, "memory": memory})

    def ready(self, request: Request, viewer: Viewer | None) -> Page:
        is_ready = not self.drain.is_on and any(engine.is_up for engine in self.monitor.engines)
        return json_page({"status": "ready"}) if is_ready else _NOT_READY

    def metrics(self, request: Request, viewer: Viewer | None) -> Page:
        return 200, (("Content-Type", CONTENT_TYPE),), self.observer.metrics.exposition()

    def ui(self, request: Request, viewer: Viewer | None) -> Page:
        return 200, self.live_page.headers, self.live_page.body

    def tools(self, request: Request, viewer: Viewer) -> Page:
        return json_page({"tools": self.toolbox.catalog.listing(viewer.tools) if self.toolbox is not None else []})

    def limits(self, request: Request, viewer: Viewer) -> Page:
        limits = self.keys.all_limits if viewer.tenant is None else [viewer.limits] if viewer.limits else []
        return json_page({"limits": report(self.limiter, limits)})

    def list_sessions(self, request: Request, viewer: Viewer) -> Page:
        return json_page({"sessions": self.sessions.listed(viewer.tenant)})

    def families(self, request: Request, viewer: Viewer) -> Page:
        return json_page({"families": self.breaks.joined(self.sessions.families(viewer.tenant), viewer.tenant)})

    def live(self, request: Request, viewer: Viewer) -> Page:
        return json_page(self.sessions.live(request.query, viewer.tenant))

    def receipt(self, request: Request, viewer: Viewer, receipt_id: str) -> Page:
        receipt = self.observer.receipt(receipt_id, viewer.tenant)
        return json_page(receipt) if receipt is not None else failure_page(_NO_RECEIPT)

    def receipts(self, request: Request, viewer: Viewer) -> Page:
        query = parse_qs(request.query)
        wanted, most = (query.get("of") or [""])[-1], min(MAX_RECEIPTS, number(query.get("limit"), MAX_RECEIPTS))
        return json_page({"receipts": self.observer.receipts(wanted, viewer.tenant, most)})

    def why(self, request: Request, viewer: Viewer) -> Page:
        wanted = (parse_qs(request.query).get("of") or [""])[-1]
        rows = self.observer.receipts(wanted, viewer.tenant, MAX_RECEIPTS)
        session = rows[-1].get("session", wanted) if rows else wanted
        now = self.sessions.running(session, viewer.tenant) if wanted else []
        page = explained(wanted, rows, self.sessions.view(counts_sessions=False), now)
        return json_page(page) if page is not None else failure_page(_NOTHING_TO_EXPLAIN)

    def models(self, request: Request, viewer: Viewer) -> Page:
        usable = {name: length for name, length in self._lengths().items() if may_use(viewer.models, name)}
        return 200, JSON_HEADERS, payload.listing(self.settings().models, usable)

    def model(self, request: Request, viewer: Viewer, name: str) -> Page:
        names, lengths, name = self.settings().models, self._lengths(), name.replace("%2F", "/")
        root, row = payload.engine_model(name, names, lengths), payload.row(name, names, lengths)
        if row is not None and may_use(viewer.models, root or ""):
            return 200, JSON_HEADERS, row
        return failure_page(Failure(404, "not_found_error", f"The model {excerpt(name)!r} does not exist here."))

    def _lengths(self) -> dict[str, int | None]:
        """Return the context lengths of the served models, where known; the shortest of several engines."""
        lengths: dict[str, int | None] = {}
        for engine in self.monitor.engines:
            for name in engine.report.models if engine.is_up else ():
                known = [n for n in (lengths.get(name), engine.report.max_model_len.get(name)) if n is not None]
                lengths[name] = min(known, default=None)
        return lengths


def json_page(content: object) -> Page:
    return 200, JSON_HEADERS, orjson.dumps(content)


def failure_page(failure: Failure, path: str = "", *headers: tuple[str, str]) -> Page:
    """In the wire format of a model call's path; elsewhere in OpenAI's."""
    return failed(BY_PATH.get(path, OPENAI), failure, headers)


# ---- `/ui`: one page over the live snapshot. It loads nothing from other hosts and holds no data without a key

_PARTS = ("page.html", "page.css", "page.js")


class LivePage:
    """The page, read once. Its policy names its own style and script by their hashes."""

    def __init__(self) -> None:
        folder = files("gateway.api") / "page"
        markup, style, script = (folder.joinpath(name).read_text("utf-8") for name in _PARTS)
        self.body = markup.replace("/*style*/", style).replace("/*script*/", script).encode()
        policy = (
            f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; connect-src 'self'; "
            "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )
        self.headers: HeaderList = (
            ("Content-Type", "text/html; charset=utf-8"),
            ("Content-Security-Policy", policy),
            ("X-Content-Type-Options", "nosniff"),
            ("Referrer-Policy", "no-referrer"),
            ("Cache-Control", "no-cache"),
        )


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
