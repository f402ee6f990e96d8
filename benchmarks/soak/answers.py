"""What an engine answers in each wire format, streamed and not: valid, short, and without meaning."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import orjson

Json: TypeAlias = dict[str, Any]


def _sse(data: Json, name: str = "") -> bytes:
    return (f"event: {name}\n".encode() if name else b"") + b"data: " + orjson.dumps(data) + b"\n\n"


def _usage(body: Json) -> Json:
    num_tokens = len(orjson.dumps(body)) // 4
    return {"prompt_tokens": num_tokens, "completion_tokens": 8, "total_tokens": num_tokens + 8}


def _own_tool(body: Json) -> bool:
    """Whether a tool that its asker runs is to be called: offered, and not yet answered."""
    has_result = any(message.get("role") == "tool" for message in body.get("messages", ())[-1:])
    return bool(body.get("tools")) and not has_result


def _chat_message(body: Json) -> tuple[Json, str]:
    if _own_tool(body):
        function = {"name": body["tools"][0]["function"]["name"], "arguments": '{"q":"a"}'}
        call = {"index": 0, "id": "call_1", "type": "function", "function": function}
        return {"role": "assistant", "content": None, "tool_calls": [call]}, "tool_calls"
    return {"role": "assistant", "content": "words " * 8}, "stop"


def chat_body(body: Json) -> Json:
    message, finish = _chat_message(body)
    choice = {"index": 0, "message": message, "finish_reason": finish}
    about = {"id": "c", "object": "chat.completion", "created": 1, "model": body["model"]}
    return about | {"choices": [choice], "usage": _usage(body)}


def chat_events(body: Json, chance: random.Random) -> Iterator[bytes]:
    about = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": body["model"]}
    message, finish = _chat_message(body)
    yield _sse(about | {"choices": [{"index": 0, "delta": {"role": "assistant"}, "finish_reason": None}]})
    for _ in range(chance.randint(1, 12) if finish == "stop" else 1):
        yield _sse(about | {"choices": [{"index": 0, "delta": message, "finish_reason": None}]})
    yield _sse(about | {"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
    if (body.get("stream_options") or {}).get("include_usage"):
        yield _sse(about | {"choices": [], "usage": _usage(body)})
    yield b"data: [DONE]\n\n"


def _num_prompts(body: Json) -> int:
    return len(body["prompt"]) if isinstance(body["prompt"], list) else 1


def completions_body(body: Json) -> Json:
    choices = [{"index": n, "text": "words", "finish_reason": "stop"} for n in range(_num_prompts(body))]
    about = {"id": "c", "object": "text_completion", "created": 1, "model": body["model"]}
    return about | {"choices": choices, "usage": _usage(body)}


def completions_events(body: Json, chance: random.Random) -> Iterator[bytes]:
    about = {"id": "c", "object": "text_completion", "created": 1, "model": body["model"]}
    for finish in (None, "stop"):
        for n in range(_num_prompts(body)):
            yield _sse(about | {"choices": [{"index": n, "text": "words", "finish_reason": finish}]})
    yield b"data: [DONE]\n\n"


def messages_body(body: Json) -> Json:
    about = {"id": "msg_1", "type": "message", "role": "assistant", "model": body["model"]}
    usage = {"input_tokens": 9, "output_tokens": 8}
    return about | {"content": [{"type": "text", "text": "words"}], "stop_reason": "end_turn", "usage": usage}


def messages_events(body: Json, chance: random.Random) -> Iterator[bytes]:
    message = messages_body(body) | {"content": [], "stop_reason": None}
    yield _sse({"type": "message_start", "message": message}, "message_start")
    block = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
    yield _sse(block, "content_block_start")
    for _ in range(chance.randint(1, 12)):
        delta = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "words "}}
        yield _sse(delta, "content_block_delta")
    yield _sse({"type": "content_block_stop", "index": 0}, "content_block_stop")
    ended = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 8}}
    yield _sse(ended, "message_delta")
    yield _sse({"type": "message_stop"}, "message_stop")


def responses_body(body: Json) -> Json:
    content = [{"type": "output_text", "text": "words", "annotations": []}]
    item = {"type": "message", "id": "i", "role": "assistant", "status": "completed", "content": content}
    about = {"id": "resp_1", "object": "response", "status": "completed", "model": body["model"]}
    return about | {"output": [item], "usage": {"input_tokens": 9, "output_tokens": 8, "total_tokens": 17}}


def responses_events(body: Json, chance: random.Random) -> Iterator[bytes]:
    begun = responses_body(body) | {"status": "in_progress", "output": []}
    yield _sse({"type": "response.created", "response": begun}, "response.created")
    for _ in range(chance.randint(1, 12)):
        yield _sse({"type": "response.output_text.delta", "delta": "words "}, "response.output_text.delta")
    yield _sse({"type": "response.completed", "response": responses_body(body)}, "response.completed")


BODIES: dict[str, Callable[[Json], Json]] = {
    "/v1/chat/completions": chat_body,
    "/v1/completions": completions_body,
    "/v1/messages": messages_body,
    "/v1/responses": responses_body,
}
EVENTS: dict[str, Callable[[Json, random.Random], Iterator[bytes]]] = {
    "/v1/chat/completions": chat_events,
    "/v1/completions": completions_events,
    "/v1/messages": messages_events,
    "/v1/responses": responses_events,
}
