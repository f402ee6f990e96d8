"""The route table: each endpoint of the gateway is one entry of `ROUTES`, and one handler.

Routing, allowed methods, access, the site that answers in a cluster, and the OpenAPI description follow from it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum, auto
from re import Pattern
from typing import TypeAlias

from gateway.access.keys import Viewer
from gateway.api import openapi, sessions
from gateway.api.openapi import (
    BYTES,
    EVENTS,
    OBJECT,
    OBJECTS,
    OF_A_CALL,
    TEXT,
    Operation,
    having,
    in_query,
    json_of,
    list_of,
    nullable,
    page_of,
    ref,
)
from gateway.api.views import Page, Views, json_page
from gateway.batches import ENDPOINTS, PURPOSES, BatchOperation
from gateway.cluster.destination import LOCAL, Destination, Join, Site
from gateway.core.fields import Json
from gateway.core.transport import Request
from gateway.dialects import BY_PATH, STORED_ANSWERS

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


def _call(path: str, operation: Operation) -> Route:
    """A model call in the wire format of its path."""
    is_turn = BY_PATH[path].is_conversation
    return Route("POST", path, None, operation, destination=Destination(Site.SESSION) if is_turn else LOCAL)


def _stored(method: str, below: str, summary: str, content: Json) -> Route:
    """A request for a stored response, which its replica answers."""
    path, site = f"{STORED_ANSWERS}{{response_id}}{below}", Destination(Site.RESPONSE)
    return Route(method, path, None, Operation(summary, content, OF_A_CALL), destination=site)


def _batch(method: str, path: str, handler: BatchOperation, operation: Operation) -> Route:
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


# ---- the schemas of bodies

_MESSAGES = {"messages": OBJECTS, "tools": nullable(OBJECTS)}
_PROMPT = {"type": ["string", "array"]}
_ANTHROPIC = _MESSAGES | {"system": nullable(_PROMPT)}
_RESPONSE = {
    "input": nullable({"anyOf": [TEXT, OBJECTS]}),
    "instructions": nullable(TEXT),
    "tools": nullable(OBJECTS),
    "previous_response_id": nullable(TEXT),
}
_ASK = {"model": "a-model", "max_tokens": 16}
_HELLO = _ASK | {"messages": [{"role": "user", "content": "Hello"}]}
_FILE_FORM: Json = {
    "multipart/form-data": {
        "schema": {
            "type": "object",
            "properties": {"file": BYTES, "purpose": {"enum": list(PURPOSES)}},
            "required": ["file", "purpose"],
        }
    }
}
_NEW_BATCH: Json = {
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
_DELETED = {"type": "object", "required": ["id", "deleted"]}
_FILE, _BATCH = json_of(ref("File")), json_of(ref("Batch"))
_STATUS = json_of(having("status", TEXT))
_LIVE_QUERY = (in_query("limit", TEXT), in_query("offset", TEXT))  # a text that is no number counts as absent

# ---- the table

ROUTES = (
    _call("/v1/chat/completions", openapi.call("A turn of a conversation", _MESSAGES, ["messages"], _HELLO)),
    _call(
        "/v1/completions",
        openapi.call("A prompt, or a list", {"prompt": _PROMPT}, ["prompt"], _ASK | {"prompt": ["a", "b"]}),
    ),
    _call(
        "/v1/responses",
        openapi.call("A turn, as a response", _RESPONSE, [], {"model": "a-model", "input": "Hello"}),
    ),
    _call("/v1/messages", openapi.call("A turn, as a message", _ANTHROPIC, ["messages"], _HELLO, "Failed")),
    _call(
        "/v1/messages/count_tokens",
        openapi.call("Tokens of a message", _ANTHROPIC, ["messages"], _HELLO, "Failed", streams=False),
    ),
    _call(
        "/v1/embeddings",
        openapi.call("Embeddings", {}, [], {"model": "a-model", "input": "Hello"}, streams=False),
    ),
    _call(
        "/tokenize",
        openapi.call("Tokens of a text", {}, [], {"model": "a-model", "prompt": "Hello"}, streams=False),
    ),
    _call(
        "/detokenize", openapi.call("Text of tokens", {}, [], {"model": "a-model", "tokens": [1]}, streams=False)
    ),
    _stored("GET", "", "A stored response", json_of(OBJECT) | EVENTS),
    _stored("DELETE", "", "Delete a stored response", json_of(OBJECT)),
    _stored("POST", "/cancel", "Cancel a response", json_of(OBJECT)),
    _stored("GET", "/input_items", "The input of a response", json_of(OBJECT)),
    _batch(
        "GET",
        "/v1/files",
        BatchOperation.LIST_FILES,
        Operation(
            "The tenant's files",
            json_of(list_of("File")),
            (400, 401, 404),
            (*page_of(10_000), in_query("purpose", TEXT)),
        ),
    ),
    _batch(
        "POST",
        "/v1/files",
        BatchOperation.UPLOAD_FILE,
        Operation("Upload a file", _FILE, (400, 401, 404, 413, 415), body=_FILE_FORM),
    ),
    _batch("GET", "/v1/files/{file_id}", BatchOperation.SHOW_FILE, Operation("A file", _FILE, (401, 404))),
    _batch(
        "DELETE",
        "/v1/files/{file_id}",
        BatchOperation.DELETE_FILE,
        Operation("Delete a file", json_of(_DELETED), (401, 404)),
    ),
    _batch(
        "GET",
        "/v1/files/{file_id}/content",
        BatchOperation.READ_FILE,
        Operation("The content of a file", {"application/octet-stream": {"schema": BYTES}}, (401, 404)),
    ),
    _batch(
        "GET",
        "/v1/batches",
        BatchOperation.LIST_BATCHES,
        Operation("The tenant's batches", json_of(list_of("Batch")), (400, 401, 404), page_of(100)),
    ),
    _batch(
        "POST",
        "/v1/batches",
        BatchOperation.CREATE_BATCH,
        Operation("Start a batch", _BATCH, (400, 401, 404, 413, 415), body=json_of(_NEW_BATCH)),
    ),
    _batch(
        "GET",
        "/v1/batches/{batch_id}",
        BatchOperation.SHOW_BATCH,
        Operation("The progress of a batch", _BATCH, (401, 404)),
    ),
    _batch(
        "POST",
        "/v1/batches/{batch_id}/cancel",
        BatchOperation.CANCEL_BATCH,
        Operation("Cancel a batch", _BATCH, (401, 404, 409)),
    ),
    _view("/v1/models", Views.models, "Models that the key may use", list_of("Model")),
    _view("/v1/models/{model}", Views.model, "A model", ref("Model"), 404),
    _view(
        "/v1/turngate/sessions",
        Views.list_sessions,
        "Sessions",
        having("sessions", OBJECTS),
        join=sessions.joined_sessions,
    ),
    _view(
        "/v1/turngate/families",
        Views.families,
        "Families, and the breaks of their shared prefix",
        having("families", OBJECTS),
        join=sessions.joined_families,
    ),
    _view("/v1/turngate/tools", Views.tools, "Tools that the gateway runs for this key", having("tools", OBJECTS)),
    _view("/v1/turngate/limits", Views.limits, "Limits, and their use", having("limits", OBJECTS)),
    _view(
        "/v1/turngate/live",
        Views.live,
        "Replicas, sessions and turns now",
        having("sessions", OBJECTS),
        query=_LIVE_QUERY,
        join=sessions.joined_live,
    ),
    _view(
        "/v1/turngate/receipts/{receipt_id}",
        Views.receipt,
        "The decisions about a request, and their reasons",
        having("id", TEXT),
        404,
        join=lambda pages: pages[0],
    ),
    _public("/health", Views.health, "The process lives", _STATUS, guard=Guard.ENGINES, site=Site.HEALTH),
    _public("/ready", Views.ready, "It may get traffic", _STATUS, 503),
    _public(
        "/metrics",
        Views.metrics,
        "Prometheus metrics",
        {"text/plain": {"schema": TEXT}},
        *(401, 403, 404),
        guard=Guard.METRICS,
        site=Site.METRICS,
    ),
    _public(LIVE_PAGE, Views.ui, "The live page", {"text/html": {"schema": TEXT}}),
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
