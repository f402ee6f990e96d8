"""Anthropic's Messages API: chat completions as its requests, its answers as those of chat completions. Pure."""

from __future__ import annotations

from typing import Any

import orjson

from gateway.core import fields, sse
from gateway.core.fields import Json
from gateway.engines.providers.asked import Block, ChatRequest, Image, ToolResult, ToolUse
from gateway.engines.providers.told import StreamTeller, Teller

DEFAULT_MAX_TOKENS = 8192
"""The API wants a bound where OpenAI's does not; this one fits every model since Claude 3.5."""
_MOST_TEMPERATURE = 1.0
_REASONS = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "pause_turn": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "refusal": "content_filter",
}
_CACHED: Json = {"type": "ephemeral"}


def request(asked: ChatRequest) -> Json:
    """Body of a call of `/v1/messages`."""
    body: Json = {
        "model": asked.model,
        "max_tokens": asked.max_tokens or DEFAULT_MAX_TOKENS,
        "messages": [{"role": turn.role, "content": list(map(_block, turn.blocks))} for turn in asked.turns],
    }
    if asked.system:
        body["system"] = [{"type": "text", "text": text} for text in asked.system]
    if asked.tools:
        body["tools"] = [_tool(function) for function in asked.tools]
        body["tool_choice"] = _choice(asked)
    if asked.temperature is not None:
        body["temperature"] = min(_MOST_TEMPERATURE, asked.temperature)
    if asked.top_p is not None:
        body["top_p"] = asked.top_p
    if asked.stop:
        body["stop_sequences"] = asked.stop
    if asked.schema is not None:
        body["output_config"] = {"format": {"type": "json_schema", "schema": asked.schema[1]}}
    if asked.user:
        body["metadata"] = {"user_id": asked.user}
    if asked.wants_stream:
        body["stream"] = True
    if asked.marks_cache:
        _mark(body, asked.goes_on)
    return body


def tell(message: Json, teller: Teller) -> None:
    """A whole answer."""
    teller.begin(fields.text(message, "id") or "", fields.text(message, "model") or "")
    for block in fields.items(message, "content"):
        if block.get("type") == "text":
            teller.text(fields.text(block, "text") or "")
        elif block.get("type") == "thinking":
            teller.reasoning(fields.text(block, "thinking") or "")
        elif block.get("type") == "tool_use":
            teller.call(fields.text(block, "id") or "", fields.text(block, "name") or "")
            teller.arguments(orjson.dumps(fields.obj(block, "input")).decode())
    teller.finish(_reason(message.get("stop_reason")))
    _Usage().add(fields.obj(message, "usage")).tell(teller)


class AnthropicEvents:
    """The events of a streamed answer."""

    def __init__(self, teller: StreamTeller) -> None:
        self._teller = teller
        self._splitter = sse.EventSplitter()
        self._usage = _Usage()
        self._has_arguments = True

    def feed(self, chunk: bytes) -> bytes:
        """What the client gets for it. Raises EventTooLong."""
        for event in self._splitter.feed(chunk):
            if (data := sse.data_of(event)) is not None:
                self._read(orjson.loads(data))
        return self._teller.taken()

    def _read(self, event: Json) -> None:
        teller, kind = self._teller, event.get("type")
        if kind == "message_start":
            message = fields.obj(event, "message")
            self._usage.add(fields.obj(message, "usage"))
            teller.begin(fields.text(message, "id") or "", fields.text(message, "model") or "")
        elif kind == "content_block_start":
            self._start(fields.obj(event, "content_block"))
        elif kind == "content_block_delta":
            self._delta(fields.obj(event, "delta"))
        elif kind == "content_block_stop" and not self._has_arguments:
            teller.arguments("{}")  # of a tool without parameters, of which the API sends nothing
            self._has_arguments = True
        elif kind == "message_delta":
            self._usage.add(fields.obj(event, "usage"))
            teller.finish(_reason(fields.obj(event, "delta").get("stop_reason")))
        elif kind == "message_stop":
            self._usage.tell(teller)
            teller.end()
        elif kind == "error":
            error = fields.obj(event, "error")
            teller.failed(fields.text(error, "type") or "api_error", fields.text(error, "message") or "")

    def _start(self, block: Json) -> None:
        if block.get("type") == "tool_use":
            self._teller.call(fields.text(block, "id") or "", fields.text(block, "name") or "")
            self._has_arguments = False
        elif text := fields.text(block, "text"):
            self._teller.text(text)

    def _delta(self, delta: Json) -> None:
        kind = delta.get("type")
        if kind == "text_delta":
            self._teller.text(fields.text(delta, "text") or "")
        elif kind == "thinking_delta":
            self._teller.reasoning(fields.text(delta, "thinking") or "")
        elif kind == "input_json_delta" and (text := fields.text(delta, "partial_json")):
            self._teller.arguments(text)
            self._has_arguments = True


class _Usage:
    """Counts are cumulative: the last one that was told holds."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def add(self, told: Json) -> _Usage:
        self._counts |= {key: count for key in told if (count := fields.integer(told, key)) is not None}
        return self

    def tell(self, teller: Teller) -> None:
        count = self._counts.get
        teller.usage(
            count("input_tokens", 0),
            count("cache_read_input_tokens", 0),
            count("cache_creation_input_tokens", 0),
            count("output_tokens", 0),
        )


def _block(block: Block) -> Json:
    match block:
        case str():
            return {"type": "text", "text": block}
        case Image(media_type, data):
            source = {"type": "base64", "media_type": media_type, "data": data}
            return {"type": "image", "source": source if media_type else {"type": "url", "url": data}}
        case ToolUse(id_, name, arguments):
            return {"type": "tool_use", "id": id_, "name": name, "input": arguments}
        case ToolResult(id_, parts):
            content = [_block(part) for part in parts if part]
            return {"type": "tool_result", "tool_use_id": id_} | ({"content": content} if content else {})


def _tool(function: Json) -> Json:
    schema = fields.obj(function, "parameters") or {"type": "object", "properties": {}}
    tool: Json = {"name": function["name"], "input_schema": schema}
    if description := fields.text(function, "description"):
        tool["description"] = description
    return tool


def _choice(asked: ChatRequest) -> Json:
    choice = asked.tool_choice
    if choice == "none":
        return {"type": "none"}
    told: Json = {"type": "any" if choice == "required" else "auto"}
    if choice.startswith("="):
        told = {"type": "tool", "name": choice[1:]}
    return told if asked.is_parallel else told | {"disable_parallel_tool_use": True}


def _mark(body: Json, goes_on: bool) -> None:
    """Where the API may end what it caches: behind tools and system, which siblings share, and, where a further
    turn may come, behind the user's last two messages: what the turn before wrote, and what the next will read."""
    shared = body.get("system") or body.get("tools")
    ends = [shared[-1]] if shared else []
    if goes_on:
        users = [message["content"] for message in body["messages"] if message["role"] == "user"]
        ends += [content[-1] for content in users[-2:] if content]
    for end in ends:
        end["cache_control"] = _CACHED


def _reason(told: Any) -> str:
    return _REASONS.get(told, "stop")
