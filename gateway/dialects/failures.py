"""Errors as the formats of OpenAI and their engines write them, to and from `Failure`."""

from __future__ import annotations

from typing import Any

from gateway.core import fields
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
