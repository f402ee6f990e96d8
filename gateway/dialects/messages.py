"""`/v1/messages`, Anthropic's format."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from gateway.core import fields, sse
from gateway.core.errors import Failure
from gateway.core.fields import Json
from gateway.core.reply import Reply, ToolCall
from gateway.dialects import base, canonical
from gateway.dialects.base import Script, ToolList
from gateway.dialects.openai_format import read_error
from policies.recognition.chains import Texts

_SHAPES = base.COMMON | {"messages": base.LIST, "tools": base.LIST, "system": base.TEXT_OR_LIST}
_VOLATILE_SYSTEM = "x-anthropic-billing-header:"
"""Claude Code's first system block, new in every request; engines leave it out too (vLLM pull request 36829)."""
_TYPE_OF_STATUS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    529: "overloaded_error",
}


class Messages:
    name = "messages"
    is_conversation = True
    conversation_key = "messages"

    def check(self, body: Json) -> Failure | None:
        return base.wrong_field(body, _SHAPES, required="messages", objects_in=("messages", "tools"))

    def script(self, body: Json, tools: ToolList | None = None) -> Script:
        if tools is None:
            tools = canonical.tools(canonical.objects(body.get("tools")))
        messages = canonical.objects(body.get("messages"))
        return Script(
            tools=tools.texts,
            system=canonical.system([_system(body.get("system"))]),
            messages=Texts(len(messages), lambda at: _message(messages[at])),
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
        return "max_tokens" if body.get("max_tokens") is not None else None

    def stateful_id(self, body: Json) -> str | None:
        return None

    def read(self, event: Json, reply: Reply) -> None:
        kind = event.get("type")
        if kind == "content_block_delta":
            _read_delta(fields.obj(event, "delta"), reply)
        elif kind == "content_block_start":
            _read_block(fields.obj(event, "content_block"), reply)
        elif kind == "message_start":
            reply.model = fields.text(fields.obj(event, "message"), "model") or reply.model
        elif kind == "message_delta":
            reply.finish_reason = fields.text(fields.obj(event, "delta"), "stop_reason") or reply.finish_reason
        elif kind == "message_stop":
            reply.is_complete = True
        elif kind == "message":
            reply.model = fields.text(event, "model") or reply.model
            for block in canonical.objects(event.get("content")):
                _read_block(block, reply)
            reply.finish_reason = fields.text(event, "stop_reason")
            reply.is_complete = reply.finish_reason is not None

    def is_error(self, event: Json) -> Failure | None:
        error = event.get("error")
        return read_error(error) if error else None

    def opening(self, answer_id: str, model: str, created_at: int, body: Json) -> Pings:
        return Pings()

    def error_body(self, failure: Failure) -> bytes:
        default = "api_error" if failure.status >= 500 else "invalid_request_error"
        error = {"type": _TYPE_OF_STATUS.get(failure.status, default), "message": failure.message}
        return orjson.dumps({"type": "error", "error": error})

    def error_event(self, failure: Failure) -> bytes:
        return sse.event(self.error_body(failure), "error")


class Pings:
    """An `Opening` that begins nothing: a ping may come before `message_start`, which stays the engine's."""

    def keep_alive(self) -> bytes:
        return sse.event(b'{"type":"ping"}', "ping")

    def joined(self, event: bytes, parsed: Json) -> bytes:
        return event

    def error_event(self, failure: Failure) -> bytes:
        return Messages().error_event(failure)


class CountTokens(Messages):
    """`/v1/messages/count_tokens`: the same request, but no turn of a session."""

    is_conversation = False


def _system(value: Any) -> Any:
    if not isinstance(value, list):
        return value
    return [part for part in value if not (canonical.text_of(part) or "").startswith(_VOLATILE_SYSTEM)]


def _message(message: Json) -> bytes:
    content = message.get("content")
    if isinstance(content, list):
        content = canonical.content([*_blocks(content)])
    return canonical.message(fields.text(message, "role") or "", {"content": content})


def _blocks(content: list[Any]) -> Iterator[Any]:
    """Blocks with what lies in them folded. The ids of tool calls stay; a thought's signature goes."""
    for block in content:
        kind = block.get("type") if isinstance(block, dict) else None
        if kind == "tool_use":
            yield {
                "type": kind,
                "call_id": block.get("id"),
                "name": block.get("name"),
                "input": block.get("input"),
            }
        elif kind == "tool_result":
            yield canonical.clean(block) | {"content": canonical.content(block.get("content"))}
        elif kind == "thinking":
            yield {"type": kind, "thinking": block.get("thinking")}
        else:
            yield block


def _read_block(block: Json, reply: Reply) -> None:
    """A block that starts in a stream, mostly empty, or a whole one."""
    kind = block.get("type")
    if kind == "text":
        reply.written.add(fields.text(block, "text") or "")
    elif kind == "tool_use":
        given = fields.obj(block, "input")
        arguments = orjson.dumps(given).decode() if given else ""
        reply.tool_calls.append(
            ToolCall(fields.text(block, "id") or "", fields.text(block, "name") or "", arguments)
        )


def _read_delta(delta: Json, reply: Reply) -> None:
    """Blocks come one after the other, so arguments belong to the last call."""
    kind = delta.get("type")
    if kind == "text_delta":
        reply.written.add(fields.text(delta, "text") or "")
    elif kind == "input_json_delta" and reply.tool_calls:
        reply.tool_calls[-1].written.add(fields.text(delta, "partial_json") or "")
