"""Anthropic's API: its adapter, its client, and the translation between chat completions and its messages."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import orjson

from gateway.core import fields, sse
from gateway.core.fields import Json
from gateway.core.transport import Body, HeaderList, Timeouts, Upstream, UpstreamReply, whole
from gateway.engines.base import (
    CHAT,
    MESSAGES,
    Abilities,
    EngineAdapter,
    EngineAddress,
    Outgoing,
    OutgoingRequest,
    ProviderClient,
)
from gateway.engines.providers.translation import (
    CACHE_MARKERS,
    Block,
    BodyWriter,
    ChatRequest,
    ChatWriter,
    Image,
    StreamWriter,
    ToolResult,
    ToolUse,
    TranslatedReply,
    Untranslatable,
    read_chat,
    refusal,
)

_REFUSALS = frozenset((400, 403))
_VERSION = ("anthropic-version", "2023-06-01")
_SENT = frozenset(
    ("accept", "accept-encoding", "anthropic-beta", "anthropic-version", "content-type", "user-agent")
)
"""Headers of a client that are sent on. Its name and its session are not the provider's business."""
_MODELS, _MOST_MODELS = "/v1/models", "?limit=1000"


class Anthropic(EngineAdapter):
    """Chat completions are translated on their way; `/v1/messages` pass as they are."""

    kind = "anthropic"
    probe_paths = ()
    service_url = "https://api.anthropic.com"
    key_variable = "ANTHROPIC_API_KEY"
    throttles = True
    hides_sessions = True

    def is_rented(self, address: EngineAddress) -> bool:
        return True

    def client(
        self, upstream: Upstream, address: EngineAddress, wall_clock: Callable[[], float]
    ) -> ProviderClient:
        return AnthropicClient(upstream, address.base_url, wall_clock)

    def abilities(self) -> Abilities:
        paths = frozenset((CHAT, MESSAGES, f"{MESSAGES}/count_tokens"))
        return Abilities(
            honours_priority=False, reports_cached_tokens=True, paths=paths, system_before_tools=False
        )

    def outgoing(self, request: OutgoingRequest, abilities: Abilities) -> Outgoing:
        if request.path != CHAT or CACHE_MARKERS in abilities.refused_fields:
            return Outgoing()
        return Outgoing(body={CACHE_MARKERS: True}, hint_names=(CACHE_MARKERS,))

    def refused_fields(self, status: int, message: str, sent: Outgoing) -> frozenset[str]:
        is_about_it = status in _REFUSALS and "cach" in message.lower()
        return frozenset((CACHE_MARKERS,)).intersection(sent.body) if is_about_it else frozenset()


class AnthropicClient:
    """A `ProviderClient`: calls with the key where the API wants it."""

    def __init__(self, upstream: Upstream, base_url: str, wall_clock: Callable[[], float]) -> None:
        self._upstream = upstream
        self._base_url = base_url
        self._wall_clock = wall_clock

    async def call(
        self, method: str, path: str, headers: HeaderList, body: Body | None, timeouts: Timeouts
    ) -> UpstreamReply:
        headers, url = _headers(headers), self._base_url + path
        if path.partition("?")[0] == CHAT:
            return await self._chat(headers, orjson.loads(whole(body or b"{}")), timeouts)
        if path == _MODELS:
            url += _MOST_MODELS
        return await self._upstream.call(method, url, headers, body, timeouts)

    async def _chat(self, headers: HeaderList, body: Json, timeouts: Timeouts) -> UpstreamReply:
        try:
            chat = read_chat(body)
        except Untranslatable as error:
            return refusal(400, str(error), error.param)
        sent = fields.written(anthropic_request(chat))
        reply = await self._upstream.call("POST", self._base_url + MESSAGES, headers, sent, timeouts)
        if reply.status != 200:
            return reply
        created_at = int(self._wall_clock())
        if chat.wants_stream:
            events = AnthropicEvents(StreamWriter(created_at, chat.wants_usage))
            return TranslatedReply(reply, events.feed, is_stream=True)
        return TranslatedReply(reply, partial(_whole, BodyWriter(created_at)), is_stream=False)


def _headers(headers: HeaderList) -> HeaderList:
    kept = [(name, value) for name, value in headers if name.lower() in _SENT]
    key = next((value for name, value in headers if name.lower() == "authorization"), "").removeprefix("Bearer ")
    if key:
        kept.append(("x-api-key", key))
    return kept if any(name.lower() == _VERSION[0] for name, _ in kept) else [*kept, _VERSION]


# ---- a chat completion as a request of `/v1/messages`

DEFAULT_MAX_TOKENS = 8192
"""The API wants a bound where OpenAI's does not; this one fits every model since Claude 3.5."""
_MOST_TEMPERATURE = 1.0
_CACHED: Json = {"type": "ephemeral"}


def anthropic_request(chat: ChatRequest) -> Json:
    """Body of a call of `/v1/messages`."""
    body: Json = {
        "model": chat.model,
        "max_tokens": chat.max_tokens or DEFAULT_MAX_TOKENS,
        "messages": [{"role": turn.role, "content": list(map(_block, turn.blocks))} for turn in chat.turns],
    }
    if chat.system:
        body["system"] = [{"type": "text", "text": text} for text in chat.system]
    if chat.tools:
        body["tools"] = [_tool(function) for function in chat.tools]
        body["tool_choice"] = _choice(chat)
    if chat.temperature is not None:
        body["temperature"] = min(_MOST_TEMPERATURE, chat.temperature)
    if chat.top_p is not None:
        body["top_p"] = chat.top_p
    if chat.stop:
        body["stop_sequences"] = chat.stop
    if chat.schema is not None:
        body["output_config"] = {"format": {"type": "json_schema", "schema": chat.schema[1]}}
    if chat.user:
        body["metadata"] = {"user_id": chat.user}
    if chat.wants_stream:
        body["stream"] = True
    if chat.marks_cache:
        _mark(body, chat.goes_on)
    return body


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


def _choice(chat: ChatRequest) -> Json:
    choice = chat.tool_choice
    if choice == "none":
        return {"type": "none"}
    given: Json = {"type": "any" if choice == "required" else "auto"}
    if choice.startswith("="):
        given = {"type": "tool", "name": choice[1:]}
    return given if chat.is_parallel else given | {"disable_parallel_tool_use": True}


def _mark(body: Json, goes_on: bool) -> None:
    """Mark where a cached prefix may end: behind tools and system, which siblings share, and, where a further turn
    may come, behind the user's last two messages. This turn reads up to the first of these, the next one up to the
    second."""
    shared = body.get("system") or body.get("tools")
    ends = [shared[-1]] if shared else []
    if goes_on:
        users = [message["content"] for message in body["messages"] if message["role"] == "user"]
        ends += [content[-1] for content in users[-2:] if content]
    for end in ends:
        end["cache_control"] = _CACHED


# ---- its answer as a chat completion

_REASONS = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "pause_turn": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "refusal": "content_filter",
}


def _whole(writer: BodyWriter, raw: bytes) -> bytes:
    message: Json = orjson.loads(raw)
    writer.open_answer(fields.text(message, "id") or "", fields.text(message, "model") or "")
    for block in fields.items(message, "content"):
        if block.get("type") == "text":
            writer.write_text(fields.text(block, "text") or "")
        elif block.get("type") == "thinking":
            writer.write_reasoning(fields.text(block, "thinking") or "")
        elif block.get("type") == "tool_use":
            writer.open_call(fields.text(block, "id") or "", fields.text(block, "name") or "")
            writer.write_arguments(fields.written(fields.obj(block, "input")).decode())
    writer.write_finish(_reason(message.get("stop_reason")))
    _write_usage(fields.obj(message, "usage"), writer)
    return writer.body()


class AnthropicEvents:
    """The events of a streamed answer."""

    def __init__(self, writer: StreamWriter) -> None:
        self._writer = writer
        self._splitter = sse.EventSplitter()
        self._usage: Json = {}
        """Counts are cumulative: the last one that came holds."""
        self._has_arguments = True

    def feed(self, chunk: bytes) -> bytes:
        """Translate the events of a chunk. Raises EventTooLong."""
        for event in self._splitter.feed(chunk):
            if (data := sse.data_of(event)) is not None:
                self._read(orjson.loads(data))
        return self._writer.flush()

    def _read(self, event: Json) -> None:
        writer, kind = self._writer, event.get("type")
        if kind == "message_start":
            message = fields.obj(event, "message")
            self._count(fields.obj(message, "usage"))
            writer.open_answer(fields.text(message, "id") or "", fields.text(message, "model") or "")
        elif kind == "content_block_start":
            self._open_block(fields.obj(event, "content_block"))
        elif kind == "content_block_delta":
            self._read_delta(fields.obj(event, "delta"))
        elif kind == "content_block_stop" and not self._has_arguments:
            writer.write_arguments("{}")  # of a tool without parameters, of which the API sends nothing
            self._has_arguments = True
        elif kind == "message_delta":
            self._count(fields.obj(event, "usage"))
            writer.write_finish(_reason(fields.obj(event, "delta").get("stop_reason")))
        elif kind == "message_stop":
            _write_usage(self._usage, writer)
            writer.close()
        elif kind == "error":
            error = fields.obj(event, "error")
            writer.write_error(fields.text(error, "type") or "api_error", fields.text(error, "message") or "")

    def _open_block(self, block: Json) -> None:
        if block.get("type") == "tool_use":
            self._writer.open_call(fields.text(block, "id") or "", fields.text(block, "name") or "")
            self._has_arguments = False
        elif text := fields.text(block, "text"):
            self._writer.write_text(text)

    def _read_delta(self, delta: Json) -> None:
        kind = delta.get("type")
        if kind == "text_delta":
            self._writer.write_text(fields.text(delta, "text") or "")
        elif kind == "thinking_delta":
            self._writer.write_reasoning(fields.text(delta, "thinking") or "")
        elif kind == "input_json_delta" and (text := fields.text(delta, "partial_json")):
            self._writer.write_arguments(text)
            self._has_arguments = True

    def _count(self, usage: Json) -> None:
        self._usage |= {key: count for key in usage if (count := fields.integer(usage, key)) is not None}


def _write_usage(usage: Json, writer: ChatWriter) -> None:
    names = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens", "output_tokens")
    uncached, read, written, output = (fields.integer(usage, name) or 0 for name in names)
    writer.write_usage(uncached, read, written, output)


def _reason(stop_reason: Any) -> str:
    return _REASONS.get(stop_reason, "stop")
