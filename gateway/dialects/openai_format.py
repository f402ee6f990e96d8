"""Errors as the formats of OpenAI and their engines write them, to and from `Failure`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from gateway.core import fields, sse
from gateway.core.errors import Failure
from gateway.core.fields import Json

_KIND_OF_STATUS = {
    401: "authentication_error",
    403: "authentication_error",
    404: "not_found_error",
    429: "rate_limit_error",
}
_STATUS_OF_NAME = {
    "invalid_request_error": 400,
    "invalid_prompt": 400,
    "context_length_exceeded": 400,
    "BadRequestError": 400,
    "authentication_error": 401,
    "permission_error": 403,
    "not_found_error": 404,
    "NotFoundError": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "overloaded_error": 503,
    "Overloaded": 503,
    "ServiceUnavailableError": 503,
}
"""Types and codes of OpenAI, Anthropic, vLLM and Dynamo that come without a status."""


def kind_of(status: int) -> str:
    """OpenAI's `type` for a status."""
    if status >= 500:
        return "server_error"
    return _KIND_OF_STATUS.get(status, "invalid_request_error")


def read_error(error: Any) -> Failure:
    """What an engine put under `error`, or an error object without a wrapper. Status 500 when it names none."""
    if not isinstance(error, dict):
        return Failure(500, "server_error", str(error))
    status = _status(error)
    code = error.get("code")
    return Failure(
        status,
        kind_of(status),
        fields.text(error, "message") or "the engine failed without a reason",
        param=fields.text(error, "param"),
        code=code if isinstance(code, str) else None,
    )


def _status(error: Json) -> int:
    """vLLM and SGLang put the HTTP status into `code`."""
    code = fields.integer(error, "code")
    if code is not None and 400 <= code < 600:
        return code
    names = (error.get("code"), error.get("type"))
    return next(
        (_STATUS_OF_NAME[name] for name in names if isinstance(name, str) and name in _STATUS_OF_NAME), 500
    )


def openai_error(failure: Failure) -> Json:
    """The object under `error` of OpenAI's formats."""
    return {"message": failure.message, "type": failure.kind, "param": failure.param, "code": failure.code}


# ---- what chat, completions and the plain paths share


class OpenAiFormat:
    """The methods of `Dialect` that do not depend on the conversation."""

    def wants_usage(self, body: Json) -> bool:
        return fields.flag(fields.obj(body, "stream_options"), "include_usage")

    def asking_for_usage(self, body: Json) -> Mapping[str, Any]:
        if not fields.flag(body, "stream") or self.wants_usage(body):
            return {}
        options = fields.obj(body, "stream_options") | {"include_usage": True}
        # Without `include_usage` it says nothing; next to ours it would put usage into every event.
        options.pop("continuous_usage_stats", None)
        return {"stream_options": options}

    def is_asked_usage(self, event: Json) -> bool:
        return event.get("choices") == [] and isinstance(event.get("usage"), dict)

    def max_tokens_key(self, body: Json) -> str | None:
        return "max_tokens" if body.get("max_tokens") is not None else None

    def stateful_id(self, body: Json) -> str | None:
        return None

    def is_error(self, event: Json) -> Failure | None:
        error = event.get("error")
        if error:
            return read_error(error)
        return read_error(event) if event.get("object") == "error" else None

    def error_body(self, failure: Failure) -> bytes:
        return orjson.dumps({"error": openai_error(failure)})

    def error_event(self, failure: Failure) -> bytes:
        return sse.event(self.error_body(failure))


@dataclass(frozen=True, slots=True)
class Chunks:
    """An `Opening` of a stream of chunks, each of which names its answer."""

    name: Json
    """`id`, `created` and `model`, which every chunk repeats."""
    empty: bytes
    """A whole event that says nothing but the name."""

    def keep_alive(self) -> bytes:
        return self.empty

    def joined(self, event: bytes, parsed: Json) -> bytes:
        changed = {key: value for key, value in self.name.items() if parsed.get(key, value) != value}
        return sse.event(orjson.dumps(parsed | changed)) if changed else event

    def error_event(self, failure: Failure) -> bytes:
        return OpenAiFormat().error_event(failure)


def chunks(answer_id: str, model: str, created_at: int, kind: str, choice: Json) -> Chunks:
    """`choice`: one that says nothing."""
    name = {"id": answer_id, "created": created_at, "model": model}
    return Chunks(name, sse.event(orjson.dumps({**name, "object": kind, "choices": [choice]})))
