"""The model turns of `toolkit` as an engine answers them on `/v1/messages` and `/v1/responses`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import orjson
from aiohttp import web

from tests.path.fake_engine import Call, Play
from tests.path.toolkit import Says
from tool_runtime.types import Json

REASONS = {"stop": "end_turn", "tool_calls": "tool_use", "length": "max_tokens"}


def speaks(turn: Says, step: int = 0) -> Play:
    """Answers in the dialect of the path that it was asked on; `step`: bytes per write, 0 for whole events."""

    async def play(call: Call) -> web.StreamResponse:
        events, body = (message_events, message) if "messages" in call.path else (response_events, response)
        if not call.body.get("stream"):
            return await call.reply(200, body(turn, call.body))
        whole = list(events(turn, call.body))
        raw = b"".join(whole)
        await call.start()
        for part in (raw[at : at + step] for at in range(0, len(raw), step)) if step else whole:
            await call.write(part)
        return await call.end()

    return play


def message(turn: Says, asked: Json) -> Json:
    blocks: list[Json] = [{"type": "text", "text": turn.text}] if turn.text else []
    for id_, name, arguments in turn.calls:
        blocks.append({"type": "tool_use", "id": id_, "name": name, "input": orjson.loads(arguments)})
    frame = {"id": turn.id, "type": "message", "role": "assistant", "model": "m", "content": blocks}
    usage = {"input_tokens": 10, "output_tokens": 5}
    return frame | {"stop_reason": REASONS[turn.reason], "stop_sequence": None, "usage": usage}


def message_events(turn: Says, asked: Json) -> Iterator[bytes]:
    whole = message(turn, asked)
    started = whole | {"content": [], "stop_reason": None, "usage": {"input_tokens": 10, "output_tokens": 0}}
    yield _event("message_start", message=started)
    for index, block in enumerate(whole["content"]):
        if block["type"] == "text":
            yield _event("content_block_start", index=index, content_block={"type": "text", "text": ""})
            deltas = [{"type": "text_delta", "text": char} for char in block["text"]]
        else:
            yield _event("content_block_start", index=index, content_block=block | {"input": {}})
            arguments = turn.calls[index - bool(turn.text)][2]
            deltas = [{"type": "input_json_delta", "partial_json": char} for char in arguments]
        for delta in deltas:
            yield _event("content_block_delta", index=index, delta=delta)
        yield _event("content_block_stop", index=index)
    delta = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
    yield _event("message_delta", delta=delta, usage=whole["usage"])
    yield _event("message_stop")


def items(turn: Says) -> Iterator[Json]:
    if turn.text:
        content = [{"type": "output_text", "text": turn.text, "annotations": []}]
        about = {"type": "message", "id": f"msg_{turn.id}", "role": "assistant", "status": "completed"}
        yield about | {"content": content}
    for id_, name, arguments in turn.calls:
        about = {"type": "function_call", "id": f"fc_{id_}", "call_id": id_, "status": "completed"}
        yield about | {"name": name, "arguments": arguments}


def response(turn: Says, asked: Json, status: str = "completed") -> Json:
    usage = {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15}
    details = {"input_tokens_details": {"cached_tokens": 2}, "output_tokens_details": {"reasoning_tokens": 0}}
    frame: Json = {"id": turn.id, "object": "response", "created_at": 1, "model": "m", "status": status}
    frame |= {"error": None, "incomplete_details": None, "instructions": None, "metadata": {}}
    frame |= {"parallel_tool_calls": True, "temperature": 1.0, "tool_choice": "auto", "top_p": 1.0}
    frame |= {"tools": asked.get("tools", []), "output": [] if status != "completed" else list(items(turn))}
    return frame | {"usage": usage | details if status == "completed" else None}


def response_events(turn: Says, asked: Json) -> Iterator[bytes]:
    numbers = iter(range(10_000))

    def event(kind: str, **fields: Any) -> bytes:
        return _event(kind, sequence_number=next(numbers), **fields)

    yield event("response.created", response=response(turn, asked, "in_progress"))
    yield event("response.in_progress", response=response(turn, asked, "in_progress"))
    for index, item in enumerate(items(turn)):
        empty: Json = {"content": []} if item["type"] == "message" else {"arguments": ""}
        yield event(
            "response.output_item.added", output_index=index, item=item | empty | {"status": "in_progress"}
        )
        place = {"item_id": item["id"], "output_index": index}
        yield from (_text if item["type"] == "message" else _arguments)(item, place, event)
        yield event("response.output_item.done", output_index=index, item=item)
    yield event("response.completed", response=response(turn, asked))


def _text(item: Json, place: Json, event: Callable[..., bytes]) -> Iterator[bytes]:
    part = item["content"][0]
    place = place | {"content_index": 0}
    yield event("response.content_part.added", **place, part=part | {"text": ""})
    for char in part["text"]:
        yield event("response.output_text.delta", **place, delta=char, logprobs=[])
    yield event("response.output_text.done", **place, text=part["text"], logprobs=[])
    yield event("response.content_part.done", **place, part=part)


def _arguments(item: Json, place: Json, event: Callable[..., bytes]) -> Iterator[bytes]:
    for char in item["arguments"]:
        yield event("response.function_call_arguments.delta", **place, delta=char)
    said = {"arguments": item["arguments"], "name": item["name"]}
    yield event("response.function_call_arguments.done", **place, **said)


def _event(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\ndata: ".encode() + orjson.dumps({"type": kind, **fields}) + b"\n\n"
