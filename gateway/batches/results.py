"""The lines of output and error files, and the tokens that an answer cost."""

from __future__ import annotations

import orjson

from gateway.batches.objects import Finished, Spent, new_id
from gateway.core import fields
from gateway.core.fields import Json
from gateway.request.inprocess import InProcessResponder

EXPIRED = ("batch_expired", "This request could not be executed before the completion window expired.")
CANCELLED = ("batch_cancelled", "The batch was cancelled before this request was executed.")
FAILED = ("gateway_error", "The gateway failed on this request. Its log says why.")


def finished(custom_id: str, reply: InProcessResponder) -> Finished:
    """What a line's last answer is to its batch."""
    body = parsed(reply.body)
    request_id = reply.headers.get("x-request-id", "")
    response = {"status_code": reply.status, "request_id": request_id, "body": body}
    is_ok = reply.status == 200
    return Finished(is_ok, _line(custom_id, response, None), spent(body) if is_ok else Spent())


def unfinished(custom_id: str, code: str, message: str) -> bytes:
    """A line of the error file for a request that was not executed."""
    return _line(custom_id, None, {"code": code, "message": message})


def spent(body: Json) -> Spent:
    """Chat, completions and embeddings say `prompt_tokens`, responses say `input_tokens`."""
    usage = fields.obj(body, "usage")

    def read(name: str, other: str) -> int:
        return fields.integer(usage, name) or fields.integer(usage, other) or 0

    inputs = fields.obj(usage, "prompt_tokens_details") or fields.obj(usage, "input_tokens_details")
    outputs = fields.obj(usage, "completion_tokens_details") or fields.obj(usage, "output_tokens_details")
    return Spent(
        read("prompt_tokens", "input_tokens"),
        fields.integer(inputs, "cached_tokens") or 0,
        read("completion_tokens", "output_tokens"),
        fields.integer(outputs, "reasoning_tokens") or 0,
    )


def parsed(body: bytes) -> Json:
    """An answer that is no JSON object becomes one, so that a line stays one line of JSON."""
    try:
        answer = orjson.loads(body)
    except orjson.JSONDecodeError:
        answer = None
    if isinstance(answer, dict):
        return answer
    text = body[:2_000].decode(errors="replace") or "The answer was cut."
    return {"error": {"message": text, "type": "server_error", "param": None, "code": None}}


def _line(custom_id: str, response: Json | None, error: Json | None) -> bytes:
    line = {"id": new_id("batch_req_"), "custom_id": custom_id, "response": response, "error": error}
    return orjson.dumps(line)
