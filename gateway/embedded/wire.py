"""What the embedded engine puts on the wire: chunks, whole answers and errors, as vLLM writes them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Protocol

import orjson

from gateway.core import sse
from gateway.core.fields import Json
from gateway.embedded.answer import Delta


class Refusal(Exception):
    """An error answer."""

    def __init__(self, status: int, kind: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.param = param

    def body(self) -> bytes:
        error = {"message": str(self), "type": self.kind, "param": self.param, "code": self.status}
        return orjson.dumps({"error": error})


class AnthropicRefusal(Refusal):
    """In the shape that clients of `/v1/messages` read."""

    def body(self) -> bytes:
        return orjson.dumps({"type": "error", "error": {"type": self.kind, "message": str(self)}})


def bad_request(message: str, param: str | None = None) -> Refusal:
    return Refusal(400, "BadRequestError", message, param)


class Wire(Protocol):
    """The answer to one request in its wire format; events are whole SSE events."""

    def opening(self) -> Iterator[bytes]: ...

    def events(self, deltas: Sequence[Delta]) -> Iterator[bytes]: ...

    def closing(self, finish_reason: str) -> Iterator[bytes]: ...

    def usage_event(self, usage: Json) -> bytes: ...

    def whole(self, deltas: Sequence[Delta], finish_reason: str, usage: Json) -> bytes: ...


@dataclass(slots=True)
class _Frame:
    """What every chunk and answer of one request has in common."""

    id: str
    created_at: int
    model: str

    def json(self, kind: str, choices: list[Any], **more: Any) -> bytes:
        frame = {
            "id": self.id,
            "object": kind,
            "created": self.created_at,
            "model": self.model,
            "choices": choices,
        }
        return orjson.dumps(frame | more)


@dataclass(slots=True)
class ChatWire(_Frame):
    num_calls: int = 0
    """Tool calls so far."""

    def opening(self) -> Iterator[bytes]:
        yield self._chunk({"role": "assistant", "content": ""})

    def events(self, deltas: Sequence[Delta]) -> Iterator[bytes]:
        for (index, name), run in groupby(deltas, key=lambda delta: (delta.call_index, delta.call_name)):
            text = "".join(delta.text for delta in run)
            if index is None:
                yield self._chunk({"content": text})
            elif name is None:
                yield self._chunk({"tool_calls": [{"index": index, "function": {"arguments": text}}]})
            else:
                yield self._chunk({"tool_calls": [{"index": index, **self._call(name)}]})

    def closing(self, finish_reason: str) -> Iterator[bytes]:
        yield self._chunk({}, finish_reason)

    def usage_event(self, usage: Json) -> bytes:
        return sse.event(self.json("chat.completion.chunk", [], usage=usage))

    def whole(self, deltas: Sequence[Delta], finish_reason: str, usage: Json) -> bytes:
        content = "".join(delta.text for delta in deltas if delta.call_index is None)
        calls: list[Json] = []
        arguments: list[list[str]] = []
        for delta in deltas:
            if delta.call_name is not None:
                calls.append(self._call(delta.call_name))
                arguments.append([])
            elif delta.call_index is not None:
                arguments[delta.call_index].append(delta.text)
        for call, texts in zip(calls, arguments, strict=True):
            call["function"]["arguments"] = "".join(texts)
        message: Json = {"role": "assistant", "content": content or (None if calls else "")}
        message |= {"tool_calls": calls} if calls else {}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish_reason}
        return self.json("chat.completion", [choice], usage=usage)

    def _call(self, name: str) -> Json:
        """A tool call without its arguments."""
        self.num_calls += 1
        call_id = f"call_{self.id.removeprefix('chatcmpl-')}_{self.num_calls}"
        return {"id": call_id, "type": "function", "function": {"name": name, "arguments": ""}}

    def _chunk(self, delta: Json, finish_reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return sse.event(self.json("chat.completion.chunk", [choice]))


@dataclass(slots=True)
class CompletionWire(_Frame):
    def opening(self) -> Iterator[bytes]:
        return iter(())

    def events(self, deltas: Sequence[Delta]) -> Iterator[bytes]:
        yield self._chunk("".join(delta.text for delta in deltas))

    def closing(self, finish_reason: str) -> Iterator[bytes]:
        yield self._chunk("", finish_reason)

    def usage_event(self, usage: Json) -> bytes:
        return sse.event(self.json("text_completion", [], usage=usage))

    def whole(self, deltas: Sequence[Delta], finish_reason: str, usage: Json) -> bytes:
        text = "".join(delta.text for delta in deltas)
        return self.json("text_completion", [self._choice(text, finish_reason)], usage=usage)

    def _chunk(self, text: str, finish_reason: str | None = None) -> bytes:
        return sse.event(self.json("text_completion", [self._choice(text, finish_reason)]))

    def _choice(self, text: str, finish_reason: str | None) -> Json:
        return {"index": 0, "text": text, "logprobs": None, "finish_reason": finish_reason}
