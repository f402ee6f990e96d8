"""`/v1/messages` on the embedded engine: requests as chats, and answers as content blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import orjson

from gateway.core import sse
from gateway.core.fields import Json, excerpt, items, obj, text
from gateway.embedded.answer import Delta, PlannedAnswer
from gateway.embedded.jobs import Refusal, bad_request
from gateway.embedded.wire import Wire, call_of

_SAME = ("model", "stream", "max_tokens", "priority", "cache_salt", "seed", "embedded_script")
_TYPE_OF_STATUS = {404: "not_found_error", 413: "request_too_large", 503: "overloaded_error"}


class AnthropicRefusal(Refusal):
    """An error answer for clients of `/v1/messages`."""

    def __init__(self, refusal: Refusal) -> None:
        kind = _TYPE_OF_STATUS.get(refusal.status, "invalid_request_error")
        super().__init__(refusal.status, kind, str(refusal), refusal.param)

    def body(self) -> bytes:
        return orjson.dumps({"type": "error", "error": {"type": self.kind, "message": str(self)}})


# ---- requests


def chat_of_message(body: Json, counts_only: bool = False) -> Json:
    """Return the chat request that means the same. `counts_only`: it is not to be answered. Raises Refusal."""
    if body.get("max_tokens") is None and not counts_only:
        raise bad_request("max_tokens is missing: a request needs one.", "max_tokens")
    chat: Json = {key: body[key] for key in _SAME if key in body}
    messages = [message for one in items(body, "messages") if isinstance(one, dict) for message in _messages(one)]
    if not messages:
        raise bad_request("messages must be a list that is not empty.", "messages")
    if body.get("system"):
        messages.insert(0, {"role": "system", "content": body["system"]})
    chat["messages"] = messages
    if stops := items(body, "stop_sequences"):
        chat["stop"] = stops
    if tools := list(_tools(body)):
        chat["tools"] = tools
    if choice := obj(body, "tool_choice"):
        chat["tool_choice"] = _tool_choice(choice)
    wanted = obj(obj(body, "output_config"), "format") or obj(body, "output_format")
    if wanted:
        chat["response_format"] = {"type": wanted.get("type"), "json_schema": {"schema": wanted.get("schema")}}
    return chat


def _tools(body: Json) -> Iterator[Json]:
    """Yield the client's tools. Those that Anthropic's servers define have no schema."""
    for tool in items(body, "tools"):
        if isinstance(tool, dict) and (name := text(tool, "name")):
            about = {key: tool[key] for key in ("name", "description") if key in tool}
            yield {
                "type": "function",
                "function": {**about, "name": name, "parameters": obj(tool, "input_schema")},
            }


def _tool_choice(choice: Json) -> Any:
    match text(choice, "type"):
        case "auto" | "none" as same:
            return same
        case "any":
            return "required"
        case "tool":
            return {"type": "function", "function": {"name": choice.get("name")}}
        case other:
            raise bad_request(f"tool_choice {excerpt(str(other))!r} is unknown.", "tool_choice")


def _messages(message: Json) -> Iterator[Json]:
    """Yield the chat messages of one message: each result of a tool is a message."""
    role, content = text(message, "role") or "user", message.get("content")
    if isinstance(content, str):
        yield {"role": role, "content": content}
        return
    blocks = [block for block in items(message, "content") if isinstance(block, dict)]
    if role == "assistant":
        uses = [block for block in blocks if block.get("type") == "tool_use"]
        calls = [{"function": {"name": u.get("name"), "arguments": _arguments(u)}} for u in uses]
        said = [block for block in blocks if block.get("type") == "text"]
        yield {"role": role, "content": said, **({"tool_calls": calls} if calls else {})}
        return
    for is_result, run in groupby(blocks, key=lambda block: block.get("type") == "tool_result"):
        if is_result:
            for block in run:
                yield {"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": block.get("content")}
        else:
            yield {"role": role, "content": list(run)}


def _arguments(use: Json) -> str:
    return orjson.dumps(use.get("input") or {}).decode()


# ---- answers


class MessagesWire(Wire):
    """One message, whose blocks come one after the other."""

    def __init__(self, number: str, model: str) -> None:
        """`number`: what the ids of this answer end with."""
        self._number = number
        self._message = {"id": f"msg_{number}", "type": "message", "role": "assistant", "model": model}
        self._num_blocks = 0
        self._is_open = False
        self._end: Json = {}

    def opening(self, index: int, usage: Json) -> Iterator[bytes]:
        begun: Json = {
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": _usage(usage, num_output=0),
        }
        yield _event("message_start", message=self._message | begun)

    def events(self, index: int, deltas: Sequence[Delta]) -> Iterator[bytes]:
        for (call, name, call_id), run in groupby(deltas, key=call_of):
            written = "".join(delta.text for delta in run)
            if name is not None:
                yield from self._close_block()
                yield self._open_block(self._use(name, call_id, self._num_blocks))
            elif not self._is_open:
                yield self._open_block({"type": "text", "text": ""})
            if written:
                kind, key = ("text_delta", "text") if call is None else ("input_json_delta", "partial_json")
                delta = {"type": kind, key: written}
                yield _event("content_block_delta", index=self._num_blocks, delta=delta)

    def closing(self, index: int, answer: PlannedAnswer) -> Iterator[bytes]:
        if not self._is_open:
            yield self._open_block({"type": "text", "text": ""})
        yield from self._close_block()
        self._end = _end(answer)

    def ending(self, usage: Json, is_wanted: bool) -> Iterator[bytes]:
        yield _event("message_delta", delta=self._end, usage=_usage(usage, usage["completion_tokens"]))
        yield _event("message_stop")

    def whole(self, answers: Sequence[PlannedAnswer], usage: Json) -> bytes:
        answer = answers[0]
        heads = [delta for delta in answer.deltas if delta.call_name is not None]
        content: list[Json] = []
        if (said := answer.text()) or not heads:
            content.append({"type": "text", "text": said})
        for index, head in enumerate(heads):
            use = self._use(head.call_name, head.call_id, len(content))
            content.append(use | {"input": _input(answer.text(call_index=index))})
        about = {"content": content, **_end(answer), "usage": _usage(usage, usage["completion_tokens"])}
        return orjson.dumps(self._message | about)

    def _use(self, name: str | None, call_id: str | None, place: int) -> Json:
        call_id = call_id or f"toolu_{self._number}_{place}"
        return {"type": "tool_use", "id": call_id, "name": name, "input": {}}

    def _open_block(self, block: Json) -> bytes:
        self._is_open = True
        return _event("content_block_start", index=self._num_blocks, content_block=block)

    def _close_block(self) -> Iterator[bytes]:
        if self._is_open:
            yield _event("content_block_stop", index=self._num_blocks)
            self._num_blocks += 1
        self._is_open = False


def _input(arguments: str) -> Any:
    """Return the arguments of a call; those that were cut are empty."""
    try:
        return orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return {}


def _end(answer: PlannedAnswer) -> Json:
    reasons = {"length": "max_tokens", "tool_calls": "tool_use"}
    reason = "stop_sequence" if answer.stop_text is not None else reasons.get(answer.finish_reason, "end_turn")
    return {"stop_reason": reason, "stop_sequence": answer.stop_text}


def _usage(usage: Json, num_output: int) -> Json:
    """Return usage in Anthropic's sense: `input_tokens` are those that were computed."""
    num_cached = usage["prompt_tokens_details"]["cached_tokens"]
    return {
        "input_tokens": usage["prompt_tokens"] - num_cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": num_cached,
        "output_tokens": num_output,
        "embedded_queue_ms": usage["embedded_queue_ms"],
    }


def _event(kind: str, **more: Any) -> bytes:
    return sse.event(orjson.dumps({"type": kind, **more}), kind)
