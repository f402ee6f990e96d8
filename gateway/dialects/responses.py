"""`/v1/responses`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import orjson

from gateway.core import fields, sse
from gateway.core.errors import Failure
from gateway.core.fields import Json
from gateway.core.reply import Reply, ToolCall
from gateway.dialects import base, canonical
from gateway.dialects.base import Script, ToolList
from gateway.dialects.openai_format import openai_error, read_error

_SHAPES = base.COMMON | {
    "input": base.TEXT_OR_LIST,
    "instructions": base.TEXT,
    "tools": base.LIST,
    "previous_response_id": base.TEXT,
}
_CALLS = ("function_call", "custom_tool_call")
_ENDED = ("completed", "incomplete")
NAMES = ("id", "created_at", "model")
"""Of a response, that every event which has it repeats."""
_DEFAULTS: Json = {
    "error": None,
    "incomplete_details": None,
    "instructions": None,
    "metadata": {},
    "output": [],
    "parallel_tool_calls": True,
    "temperature": None,
    "tool_choice": "auto",
    "tools": [],
    "top_p": None,
    "usage": None,
}
_ECHOED = (
    *("instructions", "metadata", "parallel_tool_calls", "temperature", "tool_choice", "tools", "top_p"),
    *("background", "max_output_tokens", "max_tool_calls", "previous_response_id", "prompt_cache_key"),
    *("reasoning", "safety_identifier", "service_tier", "store", "text", "top_logprobs", "truncation", "user"),
)
"""What a response repeats of its request, in the same shape."""


class Responses:
    name = "responses"
    is_conversation = True
    conversation_key = ""

    def check(self, body: Json) -> Failure | None:
        return base.wrong_field(body, _SHAPES, objects_in=("input", "tools"))

    def script(self, body: Json, tools: ToolList | None = None) -> Script:
        if tools is None:
            tools = canonical.tools(canonical.objects(body.get("tools")))
        value = body.get("input")
        items = [{"role": "user", "content": value}] if isinstance(value, str) else canonical.objects(value)
        num_system = 0
        while num_system < len(items) and items[num_system].get("role") in ("system", "developer"):
            num_system += 1
        system = [body.get("instructions"), *(item.get("content") for item in items[:num_system])]
        messages = [message for message in map(_item, items[num_system:]) if message is not None]
        return Script(
            tools=tools.texts,
            system=canonical.system(system),
            messages=tuple(messages),
            offers_tools=bool(tools.texts),
            tool_names=tools.names,
        )

    def wants_usage(self, body: Json) -> bool:
        return True

    def asking_for_usage(self, body: Json) -> Mapping[str, Any]:
        return {}

    def is_asked_usage(self, event: Json) -> bool:
        return False

    def max_tokens_key(self, body: Json) -> str | None:
        return "max_output_tokens" if body.get("max_output_tokens") is not None else None

    def stateful_id(self, body: Json) -> str | None:
        return fields.text(body, "previous_response_id")

    def read(self, event: Json, reply: Reply) -> None:
        kind = event.get("type")
        if kind == "response.output_text.delta":
            reply.written.add(fields.text(event, "delta") or "")
        elif kind == "response.output_item.done":
            _read_call(fields.obj(event, "item"), reply)
        elif event.get("object") == "response":
            _read_response(event, reply)
        elif "response" in event:
            _read_response(fields.obj(event, "response"), reply)

    def is_error(self, event: Json) -> Failure | None:
        kind = event.get("type")
        if kind == "response.failed":
            return read_error(fields.obj(fields.obj(event, "response"), "error"))
        if event.get("error"):
            # The body of an answer has `error: null`, unless it failed.
            return read_error(event["error"])
        return read_error({**event, "type": None}) if kind == "error" else None

    def opening(self, answer_id: str, model: str, created_at: int, body: Json) -> ResponseOpening:
        return ResponseOpening(response_of(answer_id, model, created_at, body))

    def error_body(self, failure: Failure) -> bytes:
        return orjson.dumps({"error": openai_error(failure)})

    def error_event(self, failure: Failure) -> bytes:
        return ResponseOpening(response_of("resp_failed", "", 0, {})).error_event(failure)


class Numbered:
    """The events of one stream, each with its number."""

    def __init__(self) -> None:
        self.num_events = 0
        """Sent so far."""

    def numbered(self, event: Json) -> bytes:
        """The next event of the stream."""
        event = event | {"sequence_number": self.num_events}
        self.num_events += 1
        return sse.event(orjson.dumps(event), fields.text(event, "type"))


class ResponseOpening(Numbered):
    """An `Opening`. The helpers of OpenAI's SDKs take no event before `response.created`, and none of a response
    with another id."""

    def __init__(self, response: Json) -> None:
        """`response`: as it is while nothing of its output has come."""
        super().__init__()
        self._response = response

    def keep_alive(self) -> bytes:
        kind = "response.in_progress" if self.num_events else "response.created"
        return self.numbered({"type": kind, "response": self._response})

    def joined(self, event: bytes, parsed: Json) -> bytes:
        if parsed.get("type") == "response.created":
            return b""
        response = fields.obj(parsed, "response")
        named = {"response": response | {key: self._response[key] for key in NAMES}} if response else {}
        return self.numbered(parsed | named)

    def error_event(self, failure: Failure) -> bytes:
        return self.numbered(failed(self._response, failure))


def response_of(answer_id: str, model: str, created_at: int, body: Json) -> Json:
    """A response that has just begun: what its request says, and every field that the SDKs' types declare without
    a default."""
    said = {key: value for key in _ECHOED if (value := body.get(key)) is not None}
    named = {"id": answer_id, "object": "response", "created_at": created_at, "model": model}
    return {**_DEFAULTS, **said, **named, "status": "in_progress"}


def failed(response: Json, failure: Failure) -> Json:
    """`response.failed` is what Codex retries; it takes the delay of a `rate_limit_exceeded` from the text."""
    message = failure.message
    if failure.status == 429:
        code = "rate_limit_exceeded"
        if failure.retry_after_s is not None:
            message = f"{message} Please try again in {math.ceil(failure.retry_after_s)}s."
    else:
        code = failure.code or ("server_error" if failure.status >= 500 else "invalid_prompt")
    error = {"code": code, "message": message}
    return {"type": "response.failed", "response": response | {"status": "failed", "error": error}}


def _item(item: Json) -> bytes | None:
    """One input item, named by its role or type; None for one that says nothing (a bare reasoning item)."""
    kind = fields.text(item, "type") or "message"
    if kind == "message":
        return canonical.message(
            fields.text(item, "role") or "", {"content": canonical.content(item.get("content"))}
        )
    members = canonical.clean(item)
    members.pop("type", None)
    if kind == "item_reference":
        members["id"] = item.get("id")
    for key in ("content", "output", "summary"):
        if key in members:
            members[key] = canonical.content(members[key])
    if "arguments" in members:
        members["arguments"] = canonical.arguments(members["arguments"])
    if not any(members.values()):
        return None
    return canonical.message(kind, members)


def _read_call(item: Json, reply: Reply) -> None:
    if item.get("type") in _CALLS:
        arguments = fields.text(item, "arguments") or fields.text(item, "input") or ""
        reply.tool_calls.append(
            ToolCall(fields.text(item, "call_id") or "", fields.text(item, "name") or "", arguments)
        )


def _read_response(response: Json, reply: Reply) -> None:
    """A whole answer, or what a stream says of it. Its output is read unless the stream has shown it already."""
    reply.model = fields.text(response, "model") or reply.model
    status = fields.text(response, "status")
    if status not in _ENDED:
        return
    reply.finish_reason = fields.text(fields.obj(response, "incomplete_details"), "reason") or status
    reply.is_complete = True
    if reply.written.num_chars or reply.tool_calls:
        return
    for item in canonical.objects(response.get("output")):
        _read_call(item, reply)
        if item.get("type") == "message":
            for part in canonical.objects(item.get("content")):
                reply.written.add(canonical.text_of(part) or "")
