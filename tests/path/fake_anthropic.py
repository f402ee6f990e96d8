"""A server of Anthropic's API that takes what the real one takes: its SDK's types, and the rules beyond types."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson
from aiohttp import web
from anthropic.types import Message
from anthropic.types.message_create_params import MessageCreateParamsNonStreaming, MessageCreateParamsStreaming
from pydantic import TypeAdapter, ValidationError

from gateway.core import sse
from tests.path.fake_service import FakeService, Refusal, Refused

KEY = "sk-ant-test"
USAGE = {
    "input_tokens": 5,
    "cache_creation_input_tokens": 20,
    "cache_read_input_tokens": 100,
    "output_tokens": 7,
}
_WHOLE: TypeAdapter[Any] = TypeAdapter(MessageCreateParamsNonStreaming)
_STREAMED: TypeAdapter[Any] = TypeAdapter(MessageCreateParamsStreaming)
_KEYS = {
    *("model", "max_tokens", "messages", "system", "tools", "tool_choice", "temperature", "top_p", "top_k"),
    *("stop_sequences", "stream", "metadata", "output_config", "thinking", "service_tier"),
}
_MOST_MARKERS = 4


class FakeAnthropic(FakeService):
    """Script: lists of content blocks, or Refusals."""

    def __init__(self) -> None:
        super().__init__()
        self.application.router.add_get("/v1/models", self._models)
        self.application.router.add_post("/v1/messages", self._messages)

    async def _models(self, request: web.Request) -> web.StreamResponse:
        self.num_listed += 1
        if problem := _unauthorised(request):
            return problem
        row = {"type": "model", "id": "claude-x", "display_name": "X", "created_at": "2026-01-01T00:00:00Z"}
        page = {"data": [row], "has_more": False, "first_id": "claude-x", "last_id": "claude-x"}
        return web.json_response(page)

    async def _messages(self, request: web.Request) -> web.StreamResponse:
        if problem := _unauthorised(request):
            return problem
        body = orjson.loads(await request.read())
        self.bodies.append(body)
        self.headers.append(request.headers)
        try:
            check(body)
        except (Refused, ValidationError) as error:
            return _error(400, "invalid_request_error", str(error))
        content = self.script.pop(0)
        if isinstance(content, Refusal):
            return web.json_response(content.body, status=content.status, headers=content.headers)
        reason = "tool_use" if any(block["type"] == "tool_use" for block in content) else "end_turn"
        message = {"id": "msg_1", "type": "message", "role": "assistant", "model": body["model"]}
        message |= {"content": content, "stop_reason": reason, "stop_sequence": None, "usage": USAGE}
        Message.model_validate(message)
        if not body.get("stream"):
            return web.json_response(message)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for event in events(message):
            await response.write(sse.event(orjson.dumps(event), event["type"]))
        return response


def events(message: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """As the API streams a message: texts and arguments in pieces."""
    opening = message | {"content": [], "stop_reason": None, "usage": USAGE | {"output_tokens": 1}}
    yield {"type": "message_start", "message": opening}
    yield {"type": "ping"}
    for index, block in enumerate(message["content"]):
        empty: dict[str, Any] = {"text": {"text": ""}, "thinking": {"thinking": "", "signature": ""}}.get(
            block["type"], {"input": {}}
        )
        yield {"type": "content_block_start", "index": index, "content_block": block | empty}
        for delta in _deltas(block):
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    ended = {"stop_reason": message["stop_reason"], "stop_sequence": None}
    yield {"type": "message_delta", "delta": ended, "usage": {"output_tokens": USAGE["output_tokens"]}}
    yield {"type": "message_stop"}


def _deltas(block: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if block["type"] == "tool_use":
        text = orjson.dumps(block["input"]).decode() if block["input"] else ""
        for piece in ("", text[:4], text[4:]):
            yield {"type": "input_json_delta", "partial_json": piece}
        return
    kind = block["type"]
    for piece in (block[kind][:3], block[kind][3:]):
        yield {"type": f"{kind}_delta", kind: piece}


def check(body: dict[str, Any]) -> None:
    """Raises Refused, ValidationError."""
    _exhaust((_STREAMED if body.get("stream") else _WHOLE).validate_python(body))
    if unknown := body.keys() - _KEYS:
        raise Refused(f"{', '.join(unknown)}: Extra inputs are not permitted")
    if body["messages"][0]["role"] != "user":
        raise Refused("messages: first message must use the user role")
    open_calls: set[str] = set()
    for message in body["messages"]:
        if not message["content"]:
            raise Refused("messages: content must not be empty")
        kinds = [block["type"] for block in message["content"]]
        told = {block["tool_use_id"] for block in message["content"] if block["type"] == "tool_result"}
        if told != open_calls:
            raise Refused("messages: tool_use ids were found without tool_result blocks immediately after")
        if "tool_result" in kinds and kinds != sorted(kinds, key=lambda kind: kind != "tool_result"):
            raise Refused("messages: tool_result blocks must come first")
        open_calls = {block["id"] for block in message["content"] if block["type"] == "tool_use"}
    if orjson.dumps(body).count(b'"cache_control"') > _MOST_MARKERS:
        raise Refused("A maximum of 4 blocks with cache_control may be provided.")


def _exhaust(value: Any) -> None:
    """Iterables are validated only while they are read."""
    if isinstance(value, dict):
        for item in value.values():
            _exhaust(item)
    elif not isinstance(value, str | bytes | None) and hasattr(value, "__iter__"):
        for item in value:
            _exhaust(item)


def _unauthorised(request: web.Request) -> web.Response | None:
    if request.headers.get("x-api-key") != KEY or "Authorization" in request.headers:
        return _error(401, "authentication_error", "invalid x-api-key")
    if "anthropic-version" not in request.headers:
        return _error(400, "invalid_request_error", "anthropic-version: header is required")
    return None


def _error(status: int, kind: str, message: str) -> web.Response:
    return web.json_response({"type": "error", "error": {"type": kind, "message": message}}, status=status)
