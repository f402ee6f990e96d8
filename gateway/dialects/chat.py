"""`/v1/chat/completions`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gateway.core import fields
from gateway.core.errors import Failure
from gateway.core.fields import Json
from gateway.core.reply import Reply, ToolCall
from gateway.dialects import base, canonical
from gateway.dialects.base import Script, ToolList
from gateway.dialects.openai_format import Chunks, OpenAiFormat, chunks
from policies.recognition.chains import Texts

_SHAPES = base.COMMON | {"messages": base.LIST, "tools": base.LIST}
_MAX_TOOL_CALLS = 1024
"""Above it an index of a stream is taken for nonsense."""


class Chat(OpenAiFormat):
    name = "chat"
    is_conversation = True
    conversation_key = "messages"

    def check(self, body: Json) -> Failure | None:
        return base.wrong_field(body, _SHAPES, required="messages", objects_in=("messages", "tools"))

    def script(self, body: Json, tools: ToolList | None = None) -> Script:
        if tools is None:
            definitions = canonical.objects(body.get("tools")) or canonical.objects(body.get("functions"))
            tools = canonical.tools(definitions)
        messages = canonical.objects(body.get("messages"))
        num_system = 0
        while num_system < len(messages) and messages[num_system].get("role") in ("system", "developer"):
            num_system += 1
        return Script(
            tools=tools.texts,
            system=canonical.system([message.get("content") for message in messages[:num_system]]),
            messages=Texts(len(messages) - num_system, lambda at: _message(messages[num_system + at])),
            offers_tools=bool(tools.texts),
            tool_names=tools.names,
            num_system=num_system,
        )

    def max_tokens_key(self, body: Json) -> str | None:
        if body.get("max_completion_tokens") is not None:
            return "max_completion_tokens"
        return super().max_tokens_key(body)

    def read(self, event: Json, reply: Reply) -> None:
        """Of several choices (`n`) only the first is read."""
        reply.model = fields.text(event, "model") or reply.model
        for choice in canonical.objects(event.get("choices")):
            if choice.get("index", 0) != 0:
                continue
            _read_message(fields.obj(choice, "delta") or fields.obj(choice, "message"), reply)
            finish = fields.text(choice, "finish_reason")
            if finish is not None:
                reply.finish_reason = finish
                reply.is_complete = True

    def opening(self, answer_id: str, model: str, created_at: int, body: Json) -> Chunks:
        # No role: the SDKs' accumulators concatenate strings, and the engine's first chunk brings one.
        choice = {"index": 0, "delta": {}, "finish_reason": None}
        return chunks(answer_id, model, created_at, "chat.completion.chunk", choice)


def _message(message: Json) -> bytes:
    """Only what templates render, and the ids of tool calls, which separate siblings that are equal otherwise."""
    content = message.get("content")
    calls = [*_calls(message)] if "tool_calls" in message or "function_call" in message else None
    return canonical.message(
        fields.text(message, "role") or "",
        {
            "name": message.get("name"),
            "content": canonical.content(content) if isinstance(content, list) else content,
            "reasoning": message.get("reasoning_content") or message.get("reasoning"),
            "refusal": message.get("refusal"),
            "tool_calls": calls,
            "tool_call_id": message.get("tool_call_id"),
        },
    )


def _calls(message: Json) -> Iterator[Json]:
    for call in canonical.objects(message.get("tool_calls")):
        function = fields.obj(call, "function") or fields.obj(call, "custom")
        yield _call(call.get("id"), function)
    legacy = fields.obj(message, "function_call")
    if legacy:
        yield _call(None, legacy)


def _call(id_: Any, function: Json) -> Json:
    arguments = canonical.arguments(function.get("arguments", function.get("input")))
    return {"id": id_, "name": function.get("name"), "arguments": arguments}


def _read_message(message: Json, reply: Reply) -> None:
    """A delta of a stream, or a whole message."""
    content = message.get("content")
    if isinstance(content, str):
        reply.written.add(content)
    calls = message.get("tool_calls")
    if not calls:
        return
    for position, call in enumerate(canonical.objects(calls)):
        index = fields.integer(call, "index")
        if index is None:  # a whole message, or an engine that sends each call in one piece
            index = position
        if not 0 <= index < _MAX_TOOL_CALLS:
            continue
        while len(reply.tool_calls) <= index:
            reply.tool_calls.append(ToolCall("", "", ""))
        slot = reply.tool_calls[index]
        function = fields.obj(call, "function") or fields.obj(call, "custom")
        slot.id = fields.text(call, "id") or slot.id
        slot.name = fields.text(function, "name") or slot.name
        slot.written.add(fields.text(function, "arguments") or fields.text(function, "input") or "")
