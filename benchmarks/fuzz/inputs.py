"""Inputs to begin with, the words of their formats, and how one input becomes another."""

from __future__ import annotations

import random

import orjson

_TURN = {
    "role": "user",
    "content": [{"type": "text", "text": "hi"}, {"type": "image_url", "image_url": {"url": "x"}}],
}
_CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
_TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]
_CHAT = {
    "model": "m",
    "stream": True,
    "stream_options": {"include_usage": False},
    "max_tokens": 5,
    "tools": _TOOLS,
    "messages": [
        {"role": "system", "content": "s"},
        _TURN,
        {"role": "assistant", "content": None, "tool_calls": [_CALL]},
        {"role": "tool", "tool_call_id": "c", "content": "r"},
    ],
}
_ITEMS = [
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
    {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c", "output": "r"},
    {"type": "reasoning", "summary": []},
]
BODIES = [
    orjson.dumps(body)
    for body in (
        _CHAT,
        {"model": "m", "messages": [_TURN], "n": 2, "priority": 1, "user": "u"},
        {"model": "m", "prompt": "hi", "stream": True},
        {"model": "m", "prompt": ["a", "b"], "n": 2},
        {"model": "m", "prompt": [[1, 2], [3]], "max_tokens": 9},
        {"model": "m", "input": _ITEMS, "instructions": "i", "previous_response_id": "r", "store": True},
        {"model": "m", "messages": [_TURN], "system": [{"type": "text", "text": "s"}], "max_tokens": 5},
        {"model": "m", "input": ["a", "b"]},
    )
]
_ABOUT = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
EVENTS = [
    b"data: " + orjson.dumps(event) + b"\n\n"
    for event in (
        _ABOUT | {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]},
        _ABOUT | {"choices": [{"index": 0, "delta": {"content": "hi"}, "finish_reason": None}]},
        _ABOUT
        | {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, **_CALL}]}, "finish_reason": None}]},
        _ABOUT | {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]},
        _ABOUT | {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}},
        {"id": "c", "choices": [{"index": 1, "text": "a", "finish_reason": "stop"}]},
        {"type": "message_start", "message": {"id": "m", "usage": {"input_tokens": 1}}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "tool_use", "id": "c", "name": "f"}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": "{"}},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 1}},
        {"type": "response.created", "response": {"id": "r", "status": "in_progress", "output": []}},
        {"type": "response.output_item.done", "item": _ITEMS[1]},
        {"type": "response.completed", "response": {"id": "r", "status": "completed", "output": _ITEMS}},
        {"error": {"message": "no", "type": "server_error", "code": 503}},
    )
] + [b"data: [DONE]\n\n", b": ping\n\n", b"event: x\ndata: a\ndata: b\r\n\r\n", b"data\n\n", b"\r\r"]
_STREAM = b"".join(EVENTS[:5])
PAGE = (
    b'vllm:cache_config_info{block_size="16",num_gpu_blocks="100",engine="0"} 1\n'
    b'vllm:num_requests_running{engine="0"} 0\nprocess_start_time_seconds 1.7e+09\n'
    b'sglang:max_total_num_tokens{a="b"} 5\n\0{"data":[{"id":"m","max_model_len":4096}]}'
)
CONFIG = (
    b"engines: [vllm://h:1, {url: 'sglang://g:2', name: x}]\nlisten: {host: 127.0.0.1, port: 0}\n"
    b"policy: {name: fifo, ceiling: 0.5}\nlimits: {body_bytes: 10}\nmodels: {aliases: {a: b}}\n"
)
SEEDS: dict[str, list[bytes]] = {
    "sse": [b"\0" + _STREAM, *(b"\3" + event for event in EVENTS)],
    "relay": [bytes((kind, 1)) + b"\0".join(EVENTS) for kind in range(5)],
    "bodies": [bytes((kind,)) + body for kind in range(5) for body in BODIES],
    "headers": [b"ses_1\nthread\nsession\nown\ndynamo\n5", "ü\n\udcff".encode(errors="surrogateescape")],
    "errors": [b"\0" + event[6:-2] for event in EVENTS[:14]],
    "pages": [bytes((kind,)) + PAGE for kind in range(4)],
    "configuration": [CONFIG],
    "path": [
        bytes((kind,)) + body + b"\0\3" + b"\1" + event + b"\1" + _STREAM
        for kind in range(5)
        for body in BODIES
        for event in EVENTS[::4]
    ],
}
WORDS = [
    *(
        b'"model"',
        b'"stream":true',
        b'"messages":',
        b'"input":',
        b'"prompt":',
        b'"tools":',
        b'"role"',
        b'"content"',
    ),
    *(
        b"null",
        b"true",
        b"1e999",
        b"-1",
        b"9223372036854775808",
        b'"\\ud800"',
        b"\xff\xfe",
        b"[[[[",
        b"{}",
        b"[]",
        b'""',
    ),
    *(
        b"data: ",
        b"\n\n",
        b"\r\n",
        b"\r",
        b"event: ",
        b"[DONE]",
        b"\0",
        b"\1",
        b"CUT",
        b'"index":7',
        b'"choices":',
    ),
    *(
        b'"usage":',
        b'"error":',
        b'"finish_reason":"stop"',
        b'"delta":',
        b'"type":',
        b'"n":3',
        b'"text":',
        b"url:",
        b": [",
    ),
]


def mutated(seed: bytes, chance: random.Random, others: list[bytes]) -> bytes:
    """One to four small changes: bytes, words of the formats, pieces of itself or of another input."""
    data = bytearray(seed)
    for _ in range(chance.randint(1, 4)):
        at, end = sorted((chance.randint(0, len(data)), chance.randint(0, len(data))))
        end = min(end, at + 40)
        match chance.randrange(6):
            case 0:
                data[at:at] = bytes((chance.randrange(256),))
            case 1:
                del data[at:end]
            case 2:
                data[at:end] = chance.choice(WORDS)
            case 3:
                data[at:at] = chance.choice(WORDS)
            case 4:
                data[at:at] = data[at:end] * chance.randint(1, 3)
            case _:
                other = chance.choice(others)
                start = chance.randint(0, len(other))
                data[at:end] = other[start : start + chance.randint(1, 60)]
    return bytes(data)
