"""Reads chat completions, plain or streamed, as they came: nothing in them is written anew."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import orjson

from batch_agent.errors import BadAnswer, ConnectError, HTTPStatusError
from batch_agent.results import Usage
from batch_agent.spec import Message
from tool_runtime.types import Call

Json = dict[str, Any]

_TEXTS = ("content", "reasoning", "reasoning_content", "refusal")
_SENT_BACK = frozenset((*_TEXTS, "role", "tool_calls"))


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer of the model."""

    message: Message
    """For the history; texts and tool arguments are the model's own."""
    text: str
    calls: list[Call]
    finish_reason: str
    usage: Usage
    queued_s: float = 0.0


def reply_of(body: Json, queued_s: float = 0.0) -> Reply:
    """Raises BadAnswer."""
    try:
        choice = body["choices"][0]
        given: Message = choice["message"]
        message = {key: value for key, value in given.items() if key in _SENT_BACK and value is not None}
        message.setdefault("role", "assistant")
        calls = [_call(position, call) for position, call in enumerate(message.pop("tool_calls", ()))]
    except (KeyError, IndexError, TypeError, AttributeError):
        raise BadAnswer(f"the gateway answered what is no chat completion: {str(body)[:300]}") from None
    if calls:
        message["tool_calls"] = calls
    message.setdefault("content", None if calls else "")
    told = [Call(call["id"], call["function"]["name"], call["function"]["arguments"]) for call in calls]
    return Reply(
        message, _text(message["content"]), told, choice.get("finish_reason") or "", usage_of(body), queued_s
    )


def usage_of(body: Json) -> Usage:
    usage = body.get("usage") or {}
    details = usage.get("prompt_tokens_details") or {}
    return Usage(
        usage.get("prompt_tokens") or 0, details.get("cached_tokens") or 0, usage.get("completion_tokens") or 0
    )


def _call(position: int, call: Json) -> Json:
    """As it is sent back. Some engines leave the id out, or write arguments as an object."""
    function = call["function"]
    arguments = function.get("arguments") or ""
    if not isinstance(arguments, str):
        arguments = orjson.dumps(arguments).decode()
    id_ = call.get("id") or f"call_{position}"
    return {"id": id_, "type": "function", "function": {"name": function["name"], "arguments": arguments}}


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "".join(part.get("text") or "" for part in content if isinstance(part, dict))
    return content or ""


def events_of(stream: bytes) -> Iterator[bytes]:
    """The data of each event of a whole stream, [DONE] left out."""
    for line in stream.splitlines():
        if line.startswith(b"data:") and (data := line[5:].strip()) != b"[DONE]":
            yield data


def joined(events: Iterable[bytes]) -> Json:
    """A streamed completion as the plain one would be.

    Raises ConnectError if the end is missing, HTTPStatusError if an event tells of an error.
    """
    texts: dict[str, list[str]] = {}
    calls: dict[int, _StreamedCall] = {}
    finish_reason, usage = None, None
    for event in map(orjson.loads, events):
        if "error" in event:
            is_wrong = isinstance(event["error"], dict) and event["error"].get("type") == "invalid_request_error"
            raise HTTPStatusError(400 if is_wrong else 502, error_text(event), retryable=not is_wrong)
        usage = event.get("usage") or usage
        for choice in event.get("choices") or ():
            finish_reason = choice.get("finish_reason") or finish_reason
            delta = choice.get("delta") or {}
            for key in _TEXTS:
                if delta.get(key):
                    texts.setdefault(key, []).append(delta[key])
            for part in delta.get("tool_calls") or ():
                calls.setdefault(part.get("index", 0), _StreamedCall()).add(part)
    if finish_reason is None:
        raise ConnectError("the stream ended before the answer did")
    message: Message = {"role": "assistant"} | {key: "".join(pieces) for key, pieces in texts.items()}
    if calls:
        message["tool_calls"] = [calls[index].whole() for index in sorted(calls)]
    return {"choices": [{"message": message, "finish_reason": finish_reason}], "usage": usage}


@dataclass(slots=True)
class _StreamedCall:
    """The pieces of one call."""

    id: Any = None
    names: list[str] = field(default_factory=list)
    arguments: list[str] = field(default_factory=list)

    def add(self, part: Json) -> None:
        self.id = part.get("id") or self.id
        function = part.get("function") or {}
        self.names.append(function.get("name") or "")
        self.arguments.append(function.get("arguments") or "")

    def whole(self) -> Json:
        return {"function": {"name": "".join(self.names), "arguments": "".join(self.arguments)}, "id": self.id}


def error_text(body: Any) -> str:
    """The message of an error in OpenAI's envelope, or of Dynamo's bare object."""
    error = body.get("error", body) if isinstance(body, dict) else body
    return str(error.get("message", error) if isinstance(error, dict) else error)[:1000]
