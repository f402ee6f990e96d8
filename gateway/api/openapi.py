"""The format of the OpenAPI 3.1 description: `/openapi.json`, and `turngate openapi`. The route table fills it.

The schema of a request names the fields that the gateway itself reads. All others belong to the engine, and pass.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from gateway.core.fields import Json
from gateway.dialects.description import OBJECT, TEXT, CallDescription, nullable

_NUMBER: Json = {"type": "integer"}
_ID: Json = {"type": "string", "minLength": 1, "pattern": "^[A-Za-z0-9_-]+$"}
EVENTS: Json = {"text/event-stream": {"schema": {"type": "object", "properties": {"data": TEXT}}}}
BYTES: Json = {"type": "string", "format": "binary"}

_REASONS = {
    400: "The request is wrong; `param` names the field.",
    401: "The key is missing or not known.",
    403: "The key may not use this.",
    404: "There is no such object, model or path.",
    409: "The object is in a state that does not allow this.",
    413: "The body is too long.",
    415: "The body is compressed.",
    422: "The engine does not take the request.",
    429: "A limit is reached, or the turn would wait too long. `Retry-After` says when to ask again.",
    500: "The gateway is at fault.",
    501: "The engine does not serve this path.",
    502: "The engine broke off, or answered nonsense.",
    503: "No engine answers, or the gateway is stopping. `Retry-After` says when to ask again.",
    507: "There is no room left on the disk of the batches.",
}
OF_A_CALL = (400, 401, 403, 404, 413, 415, 422, 429, 501, 502, 503)


@dataclass(frozen=True, slots=True)
class Operation:
    """What the description says of one route."""

    summary: str
    content: Json
    """Of the answer, by content type."""
    refusals: tuple[int, ...] = ()
    query: tuple[Json, ...] = ()
    body: Json | None = None
    """Content of the request."""
    failure: str = "Failure"
    """Schema of its refusals."""


def document(operations: Iterable[tuple[str, str, Operation, bool]]) -> Json:
    """Return the description of operations by method, path, and whether they need a key."""
    paths: dict[str, Json] = {}
    for method, path, operation, needs_key in operations:
        paths.setdefault(path, {})[method.lower()] = _operation(path, operation, needs_key)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Turngate",
            "version": version("turngate"),
            "summary": "An OpenAI-compatible gateway for fleets of LLM agents.",
            "description": "Model calls go to an engine, whose answers and refusals are relayed as they come. "
            "Where keys are configured, `/v1` needs one of them; without any, none is asked for.",
        },
        "security": [{"bearer": []}, {"apiKey": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "apiKey": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
            "schemas": _SCHEMAS,
        },
    }


def _operation(path: str, operation: Operation, needs_key: bool) -> Json:
    responses: dict[str, Json] = {"200": {"description": "Success.", "content": operation.content}}
    for status in operation.refusals:
        responses[str(status)] = {"description": _REASONS[status], "content": json_of(ref(operation.failure))}
    about: Json = {"summary": operation.summary, "responses": responses}
    if parameters := [*map(_in_path, re.findall(r"{([a-z_]+)}", path)), *operation.query]:
        about["parameters"] = parameters
    if operation.body is not None:
        about["requestBody"] = {"required": True, "content": operation.body}
    return about if needs_key else about | {"security": []}


def _in_path(name: str) -> Json:
    return {"name": name, "in": "path", "required": True, "schema": TEXT if name == "model" else _ID}


# ---- parts of an operation


def call(described: CallDescription) -> Operation:
    """Return the operation of a model call."""
    read = {"model": nullable(TEXT), "stream": nullable({"type": "boolean"}), "stream_options": nullable(OBJECT)}
    schema = {"type": "object", "properties": {**read, **described.fields}, "required": list(described.required)}
    example = {"model": "a-model", **described.example}
    body = {"application/json": {"schema": schema, "examples": {"usual": {"value": example}}}}
    content = json_of(OBJECT) | (EVENTS if described.streams else {})
    return Operation(described.summary, content, OF_A_CALL, body=body, failure=described.failure)


def content_of(content_type: str, schema: Json) -> Json:
    return {content_type: {"schema": schema}}


def json_of(schema: Json) -> Json:
    return content_of("application/json", schema)


def ref(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}


def having(key: str, schema: Json) -> Json:
    return {"type": "object", "properties": {key: schema}, "required": [key]}


def list_of(name: str) -> Json:
    return having("data", {"type": "array", "items": ref(name)})


def in_query(name: str, schema: Json) -> Json:
    return {"name": name, "in": "query", "schema": schema}


def page_of(most: int) -> tuple[Json, ...]:
    """The parameters of a list with at most so many rows."""
    limit = {"type": "integer", "minimum": 1, "maximum": most}
    return in_query("limit", limit), in_query("after", TEXT), in_query("order", {"enum": ["asc", "desc"]})


def _object_of(kind: str, fields: Mapping[str, Any]) -> Json:
    properties = {"id": TEXT, "object": {"const": kind}, **fields}
    return {"type": "object", "properties": properties, "required": [*properties]}


_SCHEMAS: Json = {
    "Failure": having("error", having("message", TEXT)),
    "Failed": {
        "type": "object",
        "properties": {"type": {"const": "error"}, "error": having("message", TEXT)},
        "required": ["type", "error"],
    },
    "Session": {
        "type": "object",
        "properties": {
            "session": TEXT,
            "agent": TEXT | {"description": "`X-Turngate-Agent`, else the product of the client's user agent."},
            "client_session": TEXT | {"description": "The client's own id; a hash of it for the operator."},
            "family": TEXT,
            "parent": TEXT,
            "turns": _NUMBER,
        },
        "required": ["session", "family", "turns"],
    },
    "Model": _object_of("model", {"created": _NUMBER, "owned_by": TEXT}),
    "File": _object_of("file", {"bytes": _NUMBER, "created_at": _NUMBER, "filename": TEXT, "purpose": TEXT}),
    "Batch": _object_of("batch", {"endpoint": TEXT, "status": TEXT, "created_at": _NUMBER, "input_file_id": TEXT}),
}
