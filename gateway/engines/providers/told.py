"""Writes what a service answers as a chat completion: piece by piece as a stream, or as one body. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import orjson

from gateway.core import sse
from gateway.core.fields import Json
from gateway.core.reply import TextBuffer


class Teller(Protocol):
    """Told the pieces of one answer, in order."""

    def begin(self, answer_id: str, model: str) -> None: ...

    def text(self, text: str) -> None: ...

    def reasoning(self, text: str) -> None: ...

    def call(self, call_id: str, name: str) -> None:
        """A tool call; its arguments follow."""

    def arguments(self, text: str) -> None: ...

    def finish(self, reason: str) -> None: ...

    def usage(self, uncached: int, read: int, written: int, output: int) -> None:
        """Tokens of the prompt that were computed, found in the cache, and computed and cached; of the answer."""


def openai_usage(uncached: int, read: int, written: int, output: int) -> Json:
    prompt = uncached + read + written
    return {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "total_tokens": prompt + output,
        "prompt_tokens_details": {"cached_tokens": read, "cache_write_tokens": written},
    }


class StreamTeller:
    """As server-sent events; `taken` gives those that are new."""

    def __init__(self, created_at: int, wants_usage: bool) -> None:
        self._frame: Json = {"id": "", "object": "chat.completion.chunk", "created": created_at, "model": ""}
        self._wants_usage = wants_usage
        self._usage: Json | None = None
        self._num_calls = 0
        self._out: list[bytes] = []

    def taken(self) -> bytes:
        out, self._out = b"".join(self._out), []
        return out

    def begin(self, answer_id: str, model: str) -> None:
        self._frame |= {"id": answer_id, "model": model}
        self._delta({"role": "assistant", "content": ""})

    def text(self, text: str) -> None:
        self._delta({"content": text})

    def reasoning(self, text: str) -> None:
        self._delta({"reasoning_content": text})

    def call(self, call_id: str, name: str) -> None:
        function = {"name": name, "arguments": ""}
        self._delta(
            {"tool_calls": [{"index": self._num_calls, "id": call_id, "type": "function", "function": function}]}
        )
        self._num_calls += 1

    def arguments(self, text: str) -> None:
        self._delta({"tool_calls": [{"index": self._num_calls - 1, "function": {"arguments": text}}]})

    def finish(self, reason: str) -> None:
        self._delta({}, reason)

    def usage(self, uncached: int, read: int, written: int, output: int) -> None:
        self._usage = openai_usage(uncached, read, written, output)

    def failed(self, kind: str, message: str) -> None:
        error = {"message": message, "type": kind, "param": None, "code": None}
        self._out.append(sse.event(orjson.dumps({"error": error})))

    def end(self) -> None:
        if self._wants_usage and self._usage is not None:
            self._out.append(sse.event(orjson.dumps(self._frame | {"choices": [], "usage": self._usage})))
        self._out.append(sse.DONE)

    def _delta(self, delta: Mapping[str, Any], finish_reason: str | None = None) -> None:
        choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
        self._out.append(sse.event(orjson.dumps(self._frame | {"choices": [choice]})))


class BodyTeller:
    """As one body."""

    def __init__(self, created_at: int) -> None:
        self._body: Json = {"id": "", "object": "chat.completion", "created": created_at, "model": ""}
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[tuple[Json, TextBuffer]] = []
        """Each with its arguments."""
        self._reason: str | None = None
        self._usage: Json | None = None

    def body(self) -> bytes:
        text = "".join(self._text)
        message: Json = {"role": "assistant", "content": text or (None if self._calls else "")}
        if self._reasoning:
            message["reasoning_content"] = "".join(self._reasoning)
        if self._calls:
            message["tool_calls"] = [
                {**call, "function": {**call["function"], "arguments": str(arguments)}}
                for call, arguments in self._calls
            ]
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": self._reason}
        return orjson.dumps(self._body | {"choices": [choice], "usage": self._usage})

    def begin(self, answer_id: str, model: str) -> None:
        self._body |= {"id": answer_id, "model": model}

    def text(self, text: str) -> None:
        self._text.append(text)

    def reasoning(self, text: str) -> None:
        self._reasoning.append(text)

    def call(self, call_id: str, name: str) -> None:
        call = {"id": call_id, "type": "function", "function": {"name": name}}
        self._calls.append((call, TextBuffer()))

    def arguments(self, text: str) -> None:
        self._calls[-1][1].append(text)

    def finish(self, reason: str) -> None:
        self._reason = reason

    def usage(self, uncached: int, read: int, written: int, output: int) -> None:
        self._usage = openai_usage(uncached, read, written, output)
