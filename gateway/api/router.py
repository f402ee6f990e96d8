"""Sends each request to what answers it. The OpenAPI description says which methods a path takes."""

from __future__ import annotations

import re
from collections.abc import Awaitable
from dataclasses import dataclass
from functools import cache
from re import Pattern

import orjson

from gateway.api import openapi
from gateway.batches import BATCHES, FILES
from gateway.core.errors import Failure
from gateway.core.fields import excerpt
from gateway.core.transport import Handler, HeaderList, Request, Responder
from gateway.dialects import BY_PATH, stored_answer_id
from gateway.dialects.base import openai_error
from gateway.request.handler import failed

JSON_HEADER = ("Content-Type", openapi.JSON_TYPE)
_PLACE = re.compile(r"\\{[a-z_]+\\}")


@dataclass(frozen=True, slots=True)
class Router:
    """Takes every request of the public listener."""

    model_calls: Handler
    views: Handler
    batches: Handler
    """Of files and batches."""

    def handle(self, request: Request, responder: Responder) -> Awaitable[None]:
        """A `transport.Handler`."""
        path, method = request.path, request.method
        dialect = BY_PATH.get(path)
        if dialect is not None and method == "POST":
            return self.model_calls(request, responder)
        if path.startswith((FILES, BATCHES)):
            wrong = wrong_method(request)
            return self.batches(request, responder) if wrong is None else responder.reply(*wrong)
        if dialect is not None and dialect.tries_websocket and _is_websocket(request):
            failure = Failure(426, "invalid_request_error", "There are no websockets here: POST to this path.")
            return responder.reply(*failed(dialect, failure, [("Upgrade", "HTTP/1.1")]))
        if stored_answer_id(path) is not None and method in methods_of(path):
            return self.model_calls(request, responder)
        if dialect is not None:
            failure = Failure(405, "invalid_request_error", f"{path} takes POST, not {excerpt(method)}.")
            return responder.reply(*failed(dialect, failure, [("Allow", "POST")]))
        return self.views(request, responder)


def _is_websocket(request: Request) -> bool:
    return request.headers.get("upgrade", "").lower() == "websocket"


def methods_of(path: str) -> tuple[str, ...]:
    """Those of its operations; none where nothing is served."""
    return next((methods for template, methods in _templates() if template.fullmatch(path)), ())


def wrong_method(request: Request) -> tuple[int, HeaderList, bytes] | None:
    """Status, headers and body for a path that is served by other methods only; else None."""
    methods = methods_of(request.path)
    if not methods or request.method in methods:
        return None
    text = f"{excerpt(request.path)} takes {' and '.join(methods)}, not {excerpt(request.method)}."
    failure = Failure(405, "invalid_request_error", text)
    headers = [JSON_HEADER, ("Allow", ", ".join(methods))]
    return failure.status, headers, orjson.dumps({"error": openai_error(failure)})


@cache
def _templates() -> list[tuple[Pattern[str], tuple[str, ...]]]:
    paths = openapi.document()["paths"]
    return [
        (re.compile(_PLACE.sub("[^/]+", re.escape(path))), tuple(method.upper() for method in operations))
        for path, operations in paths.items()
    ]
