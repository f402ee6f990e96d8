"""The route table: each endpoint of the gateway is one entry of `ROUTES`, and one handler.

Routing, allowed methods, access, the site that answers in a cluster, and the OpenAPI description follow from it.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from re import Pattern
from typing import TypeAlias

from gateway.access.keys import Access, Viewer
from gateway.api import openapi
from gateway.api.openapi import (
    BYTES,
    EVENTS,
    OF_A_CALL,
    Operation,
    content_of,
    having,
    in_query,
    json_of,
    list_of,
    page_of,
    ref,
)
from gateway.api.sessions import joined_families, joined_live, joined_receipts, joined_sessions
from gateway.api.views import Page, Views, failure_page, json_page
from gateway.api.why import joined_why
from gateway.batches import ENDPOINTS, PURPOSES, BatchHandler, BatchOperation
from gateway.cluster.destination import LOCAL, Destination, Join, Site
from gateway.core.errors import Failure
from gateway.core.fields import Json, excerpt
from gateway.core.transport import Handler, Request, Responder
from gateway.dialects import BY_PATH, STORED_ANSWERS
from gateway.dialects.base import Dialect
from gateway.dialects.description import OBJECT, OBJECTS, TEXT, nullable

DESCRIPTION, LIVE_PAGE = "/openapi.json", "/ui"
ViewHandler: TypeAlias = Callable[..., Page]
"""Takes Views, the request, the viewer, and the values of the placeholders."""


class Guard(Enum):
    """The access that a route needs."""

    NONE = auto()
    KEY = auto()
    """Holders of a client key, where keys are configured. Model calls and batches check it in their handlers, as a
    refusal has the client's wire format and counts as an outcome."""
    METRICS = auto()
    """Readers that `Access.metrics_failure` lets through."""
    ENGINES = auto()
    """Every client; `Access.sees_engines` decides how much it sees."""


@dataclass(frozen=True, slots=True)
class Route:
    method: str
    path: str
    """A template: `{name}` stands for one segment, `{model}` for one or more."""
    handler: ViewHandler | BatchOperation | None
    """None: it is a model call."""
    operation: Operation
    guard: Guard = Guard.KEY
    destination: Destination = LOCAL

    @property
    def is_view(self) -> bool:
        return self.handler is not None and not isinstance(self.handler, BatchOperation)


# ---- entries of each kind


def _call(path: str, dialect: Dialect) -> Route:
    """A model call in the wire format of its path."""
    destination = Destination(Site.SESSION) if dialect.is_conversation else LOCAL
    return Route("POST", path, None, openapi.call(dialect.description), destination=destination)


def _stored(method: str, below: str, summary: str, content: Json) -> Route:
    """A request for a stored response, which its replica answers."""
    path, site = f"{STORED_ANSWERS}{{response_id}}{below}", Destination(Site.RESPONSE)
    return Route(method, path, None, Operation(summary, content, OF_A_CALL), destination=site)


def _batch(
    method: str,
    path: str,
    handler: BatchOperation,
    summary: str,
    content: Json,
    *refusals: int,
    query: tuple[Json, ...] = (),
    body: Json | None = None,
) -> Route:
    operation = Operation(summary, content, refusals, query, body)
    return Route(method, path, handler, operation, destination=Destination(Site.FILES))


def _view(
    path: str,
    handler: ViewHandler,
    summary: str,
    schema: Json,
    *refusals: int,
    query: tuple[Json, ...] = (),
    join: Join | None = None,
) -> Route:
    """A page of the viewer's own tenant. `join` makes one page of those of all members."""
    operation = Operation(summary, json_of(schema), (401, *refusals), query)
    return Route("GET", path, handler, operation, destination=Destination(Site.ALL, join) if join else LOCAL)


def _public(
    path: str,
    handler: ViewHandler,
    summary: str,
    content: Json,
    *refusals: int,
    guard: Guard = Guard.NONE,
    site: Site = Site.LOCAL,
) -> Route:
    """A page that needs no key."""
    return Route("GET", path, handler, Operation(summary, content, refusals), guard, Destination(site))


def _description(views: Views, request: Request, viewer: Viewer | None) -> Page:
    return json_page(document())


# ---- the schemas of bodies and pages

_UPLOAD = {
    "type": "object",
    "properties": {"file": BYTES, "purpose": {"enum": list(PURPOSES)}},
    "required": ["file", "purpose"],
}
_NEW_BATCH = {
    "type": "object",
    "properties": {
        "input_file_id": TEXT,
        "endpoint": {"enum": list(ENDPOINTS)},
        "completion_window": {"type": "string", "pattern": "^[1-9][0-9]{0,6}[smhd]$", "examples": ["24h"]},
        "metadata": nullable({"type": "object", "additionalProperties": TEXT}),
        "output_expires_after": nullable(OBJECT),
    },
    "required": ["input_file_id", "endpoint", "completion_window"],
}
_FORM = {"multipart/form-data": {"schema": _UPLOAD}}
_FILES, _FILE, _CONTENT = (
    json_of(list_of("File")),
    json_of(ref("File")),
    content_of("application/octet-stream", BYTES),
)
_DELETED = json_of({"type": "object", "required": ["id", "deleted"]})
_BATCHES, _BATCH = json_of(list_of("Batch")), json_of(ref("Batch"))
_STATUS = json_of(having("status", TEXT))
_PROMETHEUS, _HTML = content_of("text/plain", TEXT), content_of("text/html", TEXT)
_FILE_QUERY = (*page_of(10_000), in_query("purpose", TEXT))
_LIVE_QUERY = (in_query("limit", TEXT), in_query("offset", TEXT))  # a text that is no number counts as absent
_RECEIPT_QUERY = (in_query("of", TEXT), in_query("limit", TEXT))
_WHY = having("remedy", TEXT)
_RECEIPTS = having("receipts", OBJECTS)
_SESSIONS = having("sessions", {"type": "array", "items": ref("Session")})
_FAMILIES = having("families", OBJECTS)


def _first(pages: Sequence[Json]) -> Json:
    return pages[0]


# ---- the table

B, V = BatchOperation, Views
ROUTES = (
    *(_call(path, dialect) for path, dialect in BY_PATH.items()),
    _stored("GET", "", "A stored response", json_of(OBJECT) | EVENTS),
    _stored("DELETE", "", "Delete a stored response", json_of(OBJECT)),
    _stored("POST", "/cancel", "Cancel a response", json_of(OBJECT)),
    _stored("GET", "/input_items", "The input of a response", json_of(OBJECT)),
    _batch("GET", "/v1/files", B.LIST_FILES, "The tenant's files", _FILES, 400, 401, 404, query=_FILE_QUERY),
    _batch("POST", "/v1/files", B.UPLOAD_FILE, "Upload a file", _FILE, 400, 401, 404, 413, 415, 507, body=_FORM),
    _batch("GET", "/v1/files/{file_id}", B.SHOW_FILE, "A file", _FILE, 401, 404),
    _batch("DELETE", "/v1/files/{file_id}", B.DELETE_FILE, "Delete a file", _DELETED, 401, 404),
    _batch("GET", "/v1/files/{file_id}/content", B.READ_FILE, "The content of a file", _CONTENT, 401, 404),
    _batch(
        "GET", "/v1/batches", B.LIST_BATCHES, "The tenant's batches", _BATCHES, 400, 401, 404, query=page_of(100)
    ),
    _batch(
        *("POST", "/v1/batches", B.CREATE_BATCH, "Start a batch", _BATCH, 400, 401, 404, 413, 415, 507),
        body=json_of(_NEW_BATCH),
    ),
    _batch("GET", "/v1/batches/{batch_id}", B.SHOW_BATCH, "The progress of a batch", _BATCH, 401, 404),
    _batch("POST", "/v1/batches/{batch_id}/cancel", B.CANCEL_BATCH, "Cancel a batch", _BATCH, 401, 404, 409),
    _view("/v1/models", V.models, "Models that the key may use", list_of("Model")),
    _view("/v1/models/{model}", V.model, "A model", ref("Model"), 404),
    _view("/v1/turngate/sessions", V.list_sessions, "Sessions", _SESSIONS, join=joined_sessions),
    _view(
        "/v1/turngate/families", V.families, "Families, and their prefix breaks", _FAMILIES, join=joined_families
    ),
    _view("/v1/turngate/tools", V.tools, "Tools that the gateway runs for this key", having("tools", OBJECTS)),
    _view("/v1/turngate/limits", V.limits, "Limits, and their use", having("limits", OBJECTS)),
    _view("/v1/turngate/live", V.live, "The fleet now", _SESSIONS, query=_LIVE_QUERY, join=joined_live),
    _view(
        *("/v1/turngate/receipts", V.receipts, "The last receipts of a session or an agent", _RECEIPTS),
        query=_RECEIPT_QUERY,
        join=joined_receipts,
    ),
    _view(
        *("/v1/turngate/why", V.why, "Where the time of a session, an agent or the fleet goes", _WHY, 404),
        query=(in_query("of", TEXT),),
        join=joined_why,
    ),
    _view("/v1/turngate/receipts/{receipt_id}", V.receipt, "A receipt", having("id", TEXT), 404, join=_first),
    _public("/health", V.health, "The process lives", _STATUS, guard=Guard.ENGINES, site=Site.HEALTH),
    _public("/ready", V.ready, "It may get traffic", _STATUS, 503),
    _public(
        *("/metrics", V.metrics, "Prometheus metrics", _PROMETHEUS, 401, 403, 404),
        guard=Guard.METRICS,
        site=Site.METRICS,
    ),
    _public(LIVE_PAGE, V.ui, "The live page", _HTML),
    _public(DESCRIPTION, _description, "This description", json_of(OBJECT)),
)
CALLS = frozenset(route.path for route in ROUTES if route.handler is None and route.path in BY_PATH)
"""Paths of model calls, each of which takes POST."""


def document() -> Json:
    """Return the OpenAPI description. It depends on nothing but the version."""
    return openapi.document(
        (route.method, route.path, route.operation, route.guard is Guard.KEY) for route in ROUTES
    )


# ---- look-up

MethodTable: TypeAlias = dict[str, Route]


class RouteTable:
    """The routes by path and method. Exact paths are found in a dict, templates by their patterns in order."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._exact: dict[str, MethodTable] = {}
        self._templates: dict[str, tuple[Pattern[str], MethodTable]] = {}
        for route in routes:
            if "{" in route.path:
                _, methods = self._templates.setdefault(route.path, (_pattern(route.path), {}))
            else:
                methods = self._exact.setdefault(route.path, {})
            methods[route.method] = route
            if route.is_view:
                methods["HEAD"] = route

    def at(self, path: str) -> tuple[MethodTable, tuple[str, ...]]:
        """Return the routes of a path by method, and the values of its placeholders."""
        if (methods := self._exact.get(path)) is not None:
            return methods, ()
        for pattern, methods in self._templates.values():
            if (found := pattern.fullmatch(path)) is not None:
                return methods, found.groups()
        return {}, ()

    def destination(self, method: str, path: str) -> Destination:
        """Return which member of a cluster answers."""
        methods = self._exact.get(path)
        if methods is None:
            methods, _ = self.at(path)
        route = methods.get(method)
        return LOCAL if route is None else route.destination


def _pattern(template: str) -> Pattern[str]:
    return re.compile(
        "".join(
            re.escape(part) if not part.startswith("{") else "(.+)" if part == "{model}" else "([^/]+)"
            for part in re.split(r"({[a-z_]+})", template)
        )
    )


TABLE = RouteTable(ROUTES)


# ---- routing. A 405 names the methods of a path, a 404 suggests a path

_NO_WEBSOCKETS = Failure(426, "invalid_request_error", "There are no websockets here: POST to this path.")


@dataclass(frozen=True, slots=True)
class Router:
    """One listener. That of administrators serves views only."""

    model_calls: Handler
    views: Views
    batches: BatchHandler
    access: Access
    is_admin: bool = False

    def handle(self, request: Request, responder: Responder) -> Awaitable[None]:
        """A `transport.Handler`."""
        if request.method == "POST" and request.path in CALLS and not self.is_admin:
            return self.model_calls(request, responder)
        return self._route(request, responder)

    async def _route(self, request: Request, responder: Responder) -> None:
        methods, values = TABLE.at(request.path)
        route = methods.get(request.method)
        if route is None or (self.is_admin and not route.is_view):
            await responder.reply(*await self._refuse(request, {} if route else methods))
        elif route.handler is None:
            await self.model_calls(request, responder)
        elif isinstance(route.handler, BatchOperation):
            await self.batches(route.handler, values, request, responder)
        else:
            viewer = await self._viewer(route, request)
            page = (
                failure_page(viewer)
                if isinstance(viewer, Failure)
                else route.handler(self.views, request, viewer, *values)
            )
            await responder.reply(*page)

    async def _viewer(self, route: Route, request: Request) -> Viewer | Failure | None:
        """Return who looks at a view, where that matters, or why the view is not shown."""
        match route.guard:
            case Guard.KEY:
                return await self.access.viewer(request.headers, self.is_admin)
            case Guard.METRICS:
                return await self.access.metrics_failure(request.headers, self.is_admin)
            case Guard.ENGINES:
                return Viewer(None) if await self.access.sees_engines(request.headers, self.is_admin) else None
            case Guard.NONE:
                return None

    async def _refuse(self, request: Request, methods: MethodTable) -> Page:
        """Answer a request that no route takes; `methods` are those of its path."""
        path, method = request.path, request.method
        tries_websocket = path in CALLS and BY_PATH[path].tries_websocket
        if methods and tries_websocket and request.headers.get("upgrade", "").lower() == "websocket":
            return failure_page(_NO_WEBSOCKETS, path, ("Upgrade", "HTTP/1.1"))
        if allowed := [name for name in methods if name != "HEAD"]:
            text = f"{excerpt(path)} takes {' and '.join(allowed)}, not {excerpt(method)}."
            return failure_page(Failure(405, "invalid_request_error", text), path, ("Allow", ", ".join(allowed)))
        if path.startswith("/v1/") and method in ("GET", "HEAD"):
            viewer = await self.access.viewer(request.headers, self.is_admin)
            if isinstance(viewer, Failure):
                return failure_page(viewer)
        failure, known = _unknown(request), _without_extra_slashes(path)
        if not TABLE.at(known)[0] or known == path:
            return failure_page(failure)
        target = f"{known}?{request.query}" if request.query else known
        text = f"{excerpt(path)} is at {excerpt(known)}, without the extra slashes."
        return failure_page(replace(failure, status=307, message=text), known, ("Location", target))


def _without_extra_slashes(path: str) -> str:
    """Return a path as base URLs that end in a slash mean it. Engines, too, send their clients there (Starlette's
    `redirect_slashes`)."""
    return "/" + "/".join(part for part in path.split("/") if part)


def _unknown(request: Request) -> Failure:
    path = excerpt(request.path)
    text = f"There is no {excerpt(request.method)} {path} here."
    if f"/v1{path}" in CALLS or path == "/models":
        text += f" Did you mean /v1{path}? Base URLs of OpenAI clients end in /v1."
    elif path.startswith("/v1/v1/"):
        text += f" Did you mean {path[3:]}? This client adds /v1 itself: leave it out of its base URL."
    else:
        text += f" {DESCRIPTION} lists all paths, {LIVE_PAGE} shows what happens now."
    return Failure(404, "not_found_error", text)
