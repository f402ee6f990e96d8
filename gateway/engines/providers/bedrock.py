"""Bedrock's Converse API: chat completions as its requests, its answers as those of chat completions. Pure."""

from __future__ import annotations

from typing import Any

import orjson

from gateway.core import fields
from gateway.core.fields import Json
from gateway.engines.providers.asked import Block, ChatRequest, Image, ToolResult, ToolUse, Untranslatable
from gateway.engines.providers.told import StreamTeller, Teller

_REASONS = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "content_filtered": "content_filter",
    "guardrail_intervened": "content_filter",
}
_CACHE_POINT: Json = {"cachePoint": {"type": "default"}}


def request(asked: ChatRequest) -> Json:
    """Body of a call of Converse or ConverseStream. Raises Untranslatable."""
    messages = [{"role": turn.role, "content": list(map(_block, turn.blocks))} for turn in asked.turns]
    body: Json = {"messages": messages}
    if asked.system:
        body["system"] = [{"text": text} for text in asked.system]
    if asked.tools and not (asked.tool_choice == "none" and not _has_tool_blocks(asked)):
        body["toolConfig"] = _tools(asked)
    if limits := _limits(asked):
        body["inferenceConfig"] = limits
    if asked.schema is not None:
        name, schema = asked.schema
        told = {"jsonSchema": {"name": name, "schema": orjson.dumps(schema).decode()}}
        body["outputConfig"] = {"textFormat": {"type": "json_schema", "structure": told}}
    if asked.marks_cache:
        _mark(body, asked.goes_on)
    return body


def tell(body: Json, teller: Teller, answer_id: str, model: str) -> None:
    """A whole answer."""
    teller.begin(answer_id, model)
    for block in fields.items(fields.obj(fields.obj(body, "output"), "message"), "content"):
        if (text := fields.text(block, "text")) is not None:
            teller.text(text)
        elif call := fields.obj(block, "toolUse"):
            teller.call(fields.text(call, "toolUseId") or "", fields.text(call, "name") or "")
            teller.arguments(orjson.dumps(fields.obj(call, "input")).decode())
        elif thought := fields.obj(fields.obj(block, "reasoningContent"), "reasoningText"):
            teller.reasoning(fields.text(thought, "text") or "")
    teller.finish(_REASONS.get(fields.text(body, "stopReason") or "", "stop"))
    _tell_usage(fields.obj(body, "usage"), teller)


class BedrockEvents:
    """The events of a streamed answer, by their names."""

    def __init__(self, teller: StreamTeller, answer_id: str, model: str) -> None:
        self._teller = teller
        self._id, self._model = answer_id, model
        self._has_arguments = True

    def read(self, name: str, event: Json) -> None:
        teller = self._teller
        if name == "messageStart":
            teller.begin(self._id, self._model)
        elif name == "contentBlockStart" and (call := fields.obj(fields.obj(event, "start"), "toolUse")):
            teller.call(fields.text(call, "toolUseId") or "", fields.text(call, "name") or "")
            self._has_arguments = False
        elif name == "contentBlockDelta":
            self._delta(fields.obj(event, "delta"))
        elif name == "contentBlockStop" and not self._has_arguments:
            teller.arguments("{}")  # of a tool without parameters, of which nothing is sent
            self._has_arguments = True
        elif name == "messageStop":
            teller.finish(_REASONS.get(fields.text(event, "stopReason") or "", "stop"))
        elif name == "metadata":  # the last one
            _tell_usage(fields.obj(event, "usage"), teller)
            teller.end()
        elif name.endswith("Exception"):
            teller.failed(_KINDS.get(name, "server_error"), fields.text(event, "message") or name)

    def _delta(self, delta: Json) -> None:
        if text := fields.text(delta, "text"):
            self._teller.text(text)
        elif text := fields.text(fields.obj(delta, "toolUse"), "input"):
            self._teller.arguments(text)
            self._has_arguments = True
        elif text := fields.text(fields.obj(delta, "reasoningContent"), "text"):
            self._teller.reasoning(text)


_KINDS = {
    "throttlingException": "rate_limit_error",
    "validationException": "invalid_request_error",
    "serviceUnavailableException": "overloaded_error",
}


def _block(block: Block) -> Json:
    match block:
        case str():
            return {"text": block}
        case Image("", _):
            raise Untranslatable("Bedrock takes images as data URLs only.", "messages")
        case Image(media_type, data):
            return {"image": {"format": media_type.partition("/")[2], "source": {"bytes": data}}}
        case ToolUse(id_, name, arguments):
            return {"toolUse": {"toolUseId": id_, "name": name, "input": arguments}}
        case ToolResult(id_, parts):
            content = [_block(part) for part in parts if part] or [
                {"text": "(nothing)"}
            ]  # an empty one is refused
            return {"toolResult": {"toolUseId": id_, "content": content}}


def _tools(asked: ChatRequest) -> Json:
    """Converse cannot forbid calls: with `none` they stay declared if the history has any, as it demands."""
    choice, tools = asked.tool_choice, []
    for function in asked.tools:
        schema = fields.obj(function, "parameters") or {"type": "object", "properties": {}}
        spec: Json = {"name": function["name"], "inputSchema": {"json": schema}}
        if description := fields.text(function, "description"):
            spec["description"] = description
        tools.append({"toolSpec": spec})
    told: Json = {"tools": tools}
    if choice.startswith("="):
        told["toolChoice"] = {"tool": {"name": choice[1:]}}
    elif choice == "required":
        told["toolChoice"] = {"any": {}}
    return told


def _has_tool_blocks(asked: ChatRequest) -> bool:
    return any(isinstance(block, ToolUse | ToolResult) for turn in asked.turns for block in turn.blocks)


def _limits(asked: ChatRequest) -> Json:
    limits = {
        "maxTokens": asked.max_tokens,
        "temperature": asked.temperature,
        "topP": asked.top_p,
        "stopSequences": asked.stop or None,
    }
    return {key: value for key, value in limits.items() if value is not None}


def _mark(body: Json, goes_on: bool) -> None:
    """As `anthropic._mark`, in blocks of their own."""
    shared: list[Any] | None = body.get("system") or fields.obj(body, "toolConfig").get("tools")
    if shared:
        shared.append(_CACHE_POINT)
    if goes_on:
        users = [message["content"] for message in body["messages"] if message["role"] == "user"]
        for content in users[-2:]:
            content.append(_CACHE_POINT)


def _tell_usage(told: Json, teller: Teller) -> None:
    names = ("inputTokens", "cacheReadInputTokens", "cacheWriteInputTokens", "outputTokens")
    uncached, read, written, output = (fields.integer(told, name) or 0 for name in names)
    teller.usage(uncached, read, written, output)
