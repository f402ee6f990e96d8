"""The OpenAPI 3.1 description of everything that the gateway serves: `/openapi.json`, and `turngate openapi`.

A request's schema names the fields that the gateway itself reads; all others are the engine's, and pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

import orjson

from gateway.batches import ENDPOINTS, PURPOSES
from gateway.core.fields import Json

PATH = "/openapi.json"
JSON_TYPE, SSE_TYPE = "application/json", "text/event-stream"

_TEXT: Json = {"type": "string"}
_NUMBER: Json = {"type": "integer"}
_ID: Json = {"type": "string", "minLength": 1, "pattern": "^[A-Za-z0-9_-]+$"}
_EVENT: Json = {"type": "object", "properties": {"data": _TEXT}}
_OBJECTS: Json = {"type": "array", "items": {"type": "object"}}

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
}
_OF_A_CALL = (400, 401, 403, 404, 413, 415, 422, 429, 501, 502, 503)


def document() -> Json:
    """The description; it depends on nothing but the version."""
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
        "paths": {**_model_calls(), **_stored_answers(), **_files(), **_batches(), **_views(), **_public()},
        "components": {
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "apiKey": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
            "schemas": _SCHEMAS,
        },
    }


def show() -> int:
    """Prints it."""
    print(orjson.dumps(document(), option=orjson.OPT_INDENT_2).decode())
    return 0


# ---- model calls


def _model_calls() -> Json:
    messages = {"messages": _OBJECTS, "tools": _nullable(_OBJECTS)}
    prompt = {"type": ["string", "array"]}
    hello = [{"role": "user", "content": "Hello"}]
    anthropic = messages | {"system": _nullable(prompt)}
    responses = {"input": _nullable({"anyOf": [_TEXT, _OBJECTS]}), "instructions": _nullable(_TEXT)}
    responses |= {"tools": _nullable(_OBJECTS), "previous_response_id": _nullable(_TEXT)}
    ask = {"model": "a-model", "max_tokens": 16}
    return {
        "/v1/chat/completions": _call(
            "A turn of a conversation", messages, ["messages"], ask | {"messages": hello}
        ),
        "/v1/completions": _call(
            "A prompt, or a list", {"prompt": prompt}, ["prompt"], ask | {"prompt": ["a", "b"]}
        ),
        "/v1/responses": _call("A turn, as a response", responses, [], {"model": "a-model", "input": "Hello"}),
        "/v1/messages": _call(
            "A turn, as a message", anthropic, ["messages"], ask | {"messages": hello}, "Failed"
        ),
        "/v1/messages/count_tokens": _call(
            "Tokens of a message", anthropic, ["messages"], ask | {"messages": hello}, "Failed", streams=False
        ),
        "/v1/embeddings": _call("Embeddings", {}, [], {"model": "a-model", "input": "Hello"}, streams=False),
        "/tokenize": _call("Tokens of a text", {}, [], {"model": "a-model", "prompt": "Hello"}, streams=False),
        "/detokenize": _call("Text of tokens", {}, [], {"model": "a-model", "tokens": [1]}, streams=False),
    }


def _call(
    summary: str, fields: Json, required: list[str], example: Json, failure: str = "Failure", streams: bool = True
) -> Json:
    read = {"model": _nullable(_TEXT), "stream": _nullable({"type": "boolean"})}
    read |= {"stream_options": _nullable({"type": "object"})}
    schema = {"type": "object", "properties": read | fields, "required": required}
    told: Json = {JSON_TYPE: {"schema": {"type": "object"}}}
    if streams:
        told[SSE_TYPE] = {"schema": _EVENT}
    body = {JSON_TYPE: {"schema": schema, "examples": {"usual": {"value": example}}}}
    return {"post": _operation(summary, told, _OF_A_CALL, body=body, failure=failure)}


def _stored_answers() -> Json:
    """Of `/v1/responses`, at the replica that has them."""
    told = _json({"type": "object"})
    one, id_ = "/v1/responses/{response_id}", _in_path("response_id")
    return {
        one: {
            "get": _operation("A stored response", told | {SSE_TYPE: {"schema": _EVENT}}, _OF_A_CALL, [id_]),
            "delete": _operation("Forget a stored response", told, _OF_A_CALL, [id_]),
        },
        f"{one}/cancel": {"post": _operation("Cancel a response", told, _OF_A_CALL, [id_])},
        f"{one}/input_items": {"get": _operation("What a response was asked", told, _OF_A_CALL, [id_])},
    }


# ---- files and batches


def _files() -> Json:
    page = [*_page(10_000), _in_query("purpose", _TEXT)]
    id_, one = _in_path("file_id"), "/v1/files/{file_id}"
    form = {
        "type": "object",
        "properties": {"file": {"type": "string", "format": "binary"}, "purpose": {"enum": list(PURPOSES)}},
        "required": ["file", "purpose"],
    }
    gone = {"type": "object", "required": ["id", "deleted"]}
    content: Json = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
    return {
        "/v1/files": {
            "get": _operation("The tenant's files", _json(_listed("File")), (400, 401, 404), page),
            "post": _operation(
                "Upload a file",
                _json(_ref("File")),
                (400, 401, 404, 413, 415),
                body={"multipart/form-data": {"schema": form}},
            ),
        },
        one: {
            "get": _operation("A file", _json(_ref("File")), (401, 404), [id_]),
            "delete": _operation("Remove a file", _json(gone), (401, 404), [id_]),
        },
        f"{one}/content": {"get": _operation("What is in a file", content, (401, 404), [id_])},
    }


def _batches() -> Json:
    id_, one, told = _in_path("batch_id"), "/v1/batches/{batch_id}", _json(_ref("Batch"))
    fields = {
        "input_file_id": _TEXT,
        "endpoint": {"enum": list(ENDPOINTS)},
        "completion_window": {"type": "string", "pattern": "^[1-9][0-9]{0,6}[smhd]$", "examples": ["24h"]},
        "metadata": _nullable({"type": "object", "additionalProperties": _TEXT}),
        "output_expires_after": _nullable({"type": "object"}),
    }
    asked = {"type": "object", "properties": fields, "required": [*fields][:3]}
    return {
        "/v1/batches": {
            "get": _operation("The tenant's batches", _json(_listed("Batch")), (400, 401, 404), _page(100)),
            "post": _operation("Begin a batch", told, (400, 401, 404, 413, 415), body=_json(asked)),
        },
        one: {"get": _operation("How a batch goes", told, (401, 404), [id_])},
        f"{one}/cancel": {"post": _operation("Cancel a batch", told, (401, 404, 409), [id_])},
    }


# ---- views


def _views() -> Json:
    def of(summary: str, key: str, rows: Json = _OBJECTS) -> Json:
        return {"get": _operation(summary, _json(_with(key, rows)), (401,))}

    live = [_in_query("limit", _TEXT), _in_query("offset", _TEXT)]  # what is no number is not heard
    receipt = _json(_with("id", _TEXT))
    return {
        "/v1/models": {"get": _operation("Models that the key may use", _json(_listed("Model")), (401,))},
        "/v1/models/{model}": {
            "get": _operation("A model", _json(_ref("Model")), (401, 404), [_in_path("model", _TEXT)])
        },
        "/v1/turngate/sessions": of("Sessions", "sessions"),
        "/v1/turngate/families": of("Families, and what breaks their shared prefix", "families"),
        "/v1/turngate/tools": of("Tools that the gateway runs for this key", "tools"),
        "/v1/turngate/limits": of("Limits, and what is used of them", "limits"),
        "/v1/turngate/live": {
            "get": _operation("What happens now", _json(_with("sessions", _OBJECTS)), (401,), live)
        },
        "/v1/turngate/receipts/{receipt_id}": {
            "get": _operation("Why a request went as it did", receipt, (401, 404), [_in_path("receipt_id")])
        },
    }


def _public() -> Json:
    html, text = {"text/html": {"schema": _TEXT}}, {"text/plain": {"schema": _TEXT}}
    return {
        "/health": {"get": _operation("The process lives", _json(_with("status", _TEXT)), (), needs_key=False)},
        "/ready": {
            "get": _operation("It may get traffic", _json(_with("status", _TEXT)), (503,), needs_key=False)
        },
        "/metrics": {"get": _operation("Prometheus metrics", text, (401, 403, 404), needs_key=False)},
        "/ui": {"get": _operation("The live page", html, (), needs_key=False)},
        PATH: {"get": _operation("This description", _json({"type": "object"}), (), needs_key=False)},
    }


# ---- the format


def _operation(
    summary: str,
    content: Json,
    statuses: tuple[int, ...],
    parameters: list[Json] | None = None,
    body: Json | None = None,
    failure: str = "Failure",
    needs_key: bool = True,
) -> Json:
    told: dict[str, Json] = {"200": {"description": "It went well.", "content": content}}
    for status in statuses:
        told[str(status)] = {"description": _REASONS[status], "content": _json(_ref(failure))}
    about: Json = {"summary": summary, "responses": told}
    if parameters:
        about["parameters"] = parameters
    if body is not None:
        about["requestBody"] = {"required": True, "content": body}
    return about if needs_key else about | {"security": []}


def _json(schema: Json) -> Json:
    return {JSON_TYPE: {"schema": schema}}


def _ref(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}


def _with(key: str, schema: Json) -> Json:
    return {"type": "object", "properties": {key: schema}, "required": [key]}


def _listed(name: str) -> Json:
    return _with("data", {"type": "array", "items": _ref(name)})


def _nullable(schema: Json) -> Json:
    return {"anyOf": [schema, {"type": "null"}]}


def _in_path(name: str, schema: Json = _ID) -> Json:
    return {"name": name, "in": "path", "required": True, "schema": schema}


def _in_query(name: str, schema: Json) -> Json:
    return {"name": name, "in": "query", "schema": schema}


def _page(most: int) -> list[Json]:
    limit = {"type": "integer", "minimum": 1, "maximum": most}
    return [_in_query("limit", limit), _in_query("after", _TEXT), _in_query("order", {"enum": ["asc", "desc"]})]


def _object_of(kind: str, fields: Mapping[str, Any]) -> Json:
    properties = {"id": _TEXT, "object": {"const": kind}, **fields}
    return {"type": "object", "properties": properties, "required": [*properties]}


_SCHEMAS: Json = {
    "Failure": _with("error", _with("message", _TEXT)),
    "Failed": {
        "type": "object",
        "properties": {"type": {"const": "error"}, "error": _with("message", _TEXT)},
        "required": ["type", "error"],
    },
    "Model": _object_of("model", {"created": _NUMBER, "owned_by": _TEXT}),
    "File": _object_of("file", {"bytes": _NUMBER, "created_at": _NUMBER, "filename": _TEXT, "purpose": _TEXT}),
    "Batch": _object_of(
        "batch", {"endpoint": _TEXT, "status": _TEXT, "created_at": _NUMBER, "input_file_id": _TEXT}
    ),
}
