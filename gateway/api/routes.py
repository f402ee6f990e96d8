"""Which methods a path takes, by the OpenAPI description: who comes with another one is told so."""

from __future__ import annotations

import re
from functools import cache
from re import Pattern

import orjson

from gateway.api import openapi
from gateway.core.errors import Failure
from gateway.core.excerpt import excerpt
from gateway.core.transport import HeaderList, Request
from gateway.dialects.failures import openai_error

JSON_HEADER = ("Content-Type", openapi.JSON_TYPE)
_PLACE = re.compile(r"\\{[a-z_]+\\}")


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
