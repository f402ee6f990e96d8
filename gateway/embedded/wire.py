"""Requests to the embedded engine, and its answers: chunks, whole answers and errors, as vLLM writes them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, ClassVar

import orjson

from gateway.core import sse
from gateway.core.fields import Json, flag, integer, items, obj, text
from gateway.embedded.answer import (
    BadScript,
    Delta,
    PlannedAnswer,
    answer_to,
    rendered_chat,
    scripted_answer,
    tokens_from,
    tokens_of,
)


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
    """An error answer for clients of `/v1/messages`."""

    def body(self) -> bytes:
        return orjson.dumps({"type": "error", "error": {"type": self.kind, "message": str(self)}})


def bad_request(message: str, param: str | None = None) -> Refusal:
    return Refusal(400, "BadRequestError", message, param)


# ---- requests


@dataclass(frozen=True, slots=True)
class Job:
    """A valid generation request: its prompt and the answer to it."""

    prompt: list[bytes]
    """Tokens."""
    answer: PlannedAnswer
    priority: int
    salt: str
    wants_stream: bool
    wants_usage: bool


def job_from(body: Json, is_chat: bool, max_model_len: int) -> Job:
    """Return the job of a request. Raises Refusal as vLLM does."""
    if body.get("n") not in (None, 1):
        raise bad_request("The embedded engine gives one answer per request: n must be 1.", "n")
    wants_stream, options = flag(body, "stream"), obj(body, "stream_options")
    if options and not wants_stream:
        raise bad_request("Stream options can only be defined when `stream=True`.", "stream_options")
    priority = body.get("priority") or 0
    if not isinstance(priority, int):
        raise bad_request("priority must be a whole number; lower goes first.", "priority")
    prompt = prompt_tokens(body, is_chat)
    limit = max_tokens(body, len(prompt), max_model_len)
    try:
        script = scripted_answer(body)
    except BadScript as error:
        raise bad_request(str(error), "embedded_script") from None
    answer = answer_to(b"".join(prompt), script, limit, flag(body, "ignore_eos"))
    wants_usage = wants_stream and flag(options, "include_usage")
    return Job(prompt, answer, priority, text(body, "cache_salt") or "", wants_stream, wants_usage)


def prompt_tokens(body: Json, is_chat: bool) -> list[bytes]:
    """Return the tokens of a request's prompt. Raises Refusal if it has none."""
    if is_chat:
        if not items(body, "messages"):
            raise bad_request("messages must be a list that is not empty.", "messages")
        return tokens_of(rendered_chat(body))
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, str) and prompt:
        return tokens_of(prompt)
    if isinstance(prompt, list) and prompt and all(isinstance(number, int) for number in prompt):
        try:
            return tokens_from(prompt)
        except ValueError as error:
            raise bad_request(str(error), "prompt") from None
    raise bad_request("prompt must be one text, or one list of token ids, and not empty.", "prompt")


def max_tokens(body: Json, num_prompt_tokens: int, max_model_len: int) -> int:
    """Return the longest answer that a request allows. Raises Refusal if it does not fit behind the prompt."""
    key = "max_completion_tokens" if body.get("max_completion_tokens") is not None else "max_tokens"
    limit = integer(body, key)
    room = max_model_len - num_prompt_tokens
    if limit is None and room >= 1:
        return room
    if limit is not None and limit < 1:
        raise bad_request(f"{key} must be at least 1, got {limit}.", key)
    if limit is None or limit > room:
        raise bad_request(
            f"This model's maximum context length is {max_model_len} tokens. However, you requested "
            f"{num_prompt_tokens + (limit or 1)} tokens ({num_prompt_tokens} in the messages, {limit or 1} in the "
            "completion). Please reduce the length of the messages or completion.",
            key,
        )
    return limit


def check_model(body: Json, served: str) -> None:
    """Raises Refusal for the name of another model. A request without a model is served."""
    requested_model = text(body, "model")
    if requested_model is not None and requested_model != served:
        raise Refusal(404, "NotFoundError", f"The model `{requested_model}` does not exist.", "model")


# ---- answers, which `EmbeddedEngine` sends


@dataclass(slots=True)
class Wire(ABC):
    """The answer to one request in its wire format. Events are whole server-sent events."""

    id: str
    created_at: int
    model: str
    chunk_object: ClassVar[str]

    def opening(self) -> Iterator[bytes]:
        return iter(())

    @abstractmethod
    def events(self, deltas: Sequence[Delta]) -> Iterator[bytes]: ...

    @abstractmethod
    def closing(self, finish_reason: str) -> Iterator[bytes]: ...

    @abstractmethod
    def whole(self, answer: PlannedAnswer, usage: Json) -> bytes: ...

    def usage_event(self, usage: Json) -> bytes:
        return self.chunk([], usage=usage)

    def chunk(self, choices: list[Json], **more: Any) -> bytes:
        return sse.event(self.json(self.chunk_object, choices, **more))

    def json(self, kind: str, choices: list[Json], **more: Any) -> bytes:
        frame = {
            "id": self.id,
            "object": kind,
            "created": self.created_at,
            "model": self.model,
            "choices": choices,
        }
        return orjson.dumps(frame | more)


@dataclass(slots=True)
class ChatWire(Wire):
    num_calls: int = 0
    """Tool calls so far."""
    chunk_object: ClassVar[str] = "chat.completion.chunk"

    def opening(self) -> Iterator[bytes]:
        yield self._delta({"role": "assistant", "content": ""})

    def events(self, deltas: Sequence[Delta]) -> Iterator[bytes]:
        for (index, name, call_id), run in groupby(deltas, key=_call_of):
            text = "".join(delta.text for delta in run)
            if index is None:
                yield self._delta({"content": text})
            elif name is None:
                yield self._delta({"tool_calls": [{"index": index, "function": {"arguments": text}}]})
            else:
                yield self._delta({"tool_calls": [{"index": index, **self._call(name, call_id)}]})

    def closing(self, finish_reason: str) -> Iterator[bytes]:
        yield self._delta({}, finish_reason)

    def whole(self, answer: PlannedAnswer, usage: Json) -> bytes:
        calls = [self._call(each.call_name, each.call_id) for each in answer.deltas if each.call_name is not None]
        for index, call in enumerate(calls):
            call["function"]["arguments"] = answer.text(call_index=index)
        content = answer.text()
        message: Json = {"role": "assistant", "content": content or (None if calls else "")}
        message |= {"tool_calls": calls} if calls else {}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": answer.finish_reason}
        return self.json("chat.completion", [choice], usage=usage)

    def _call(self, name: str, call_id: str | None) -> Json:
        """Return a tool call without its arguments."""
        self.num_calls += 1
        call_id = call_id or f"call_{self.id.removeprefix('chatcmpl-')}_{self.num_calls}"
        return {"id": call_id, "type": "function", "function": {"name": name, "arguments": ""}}

    def _delta(self, delta: Json, finish_reason: str | None = None) -> bytes:
        return self.chunk([{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}])


def _call_of(delta: Delta) -> tuple[int | None, str | None, str | None]:
    return delta.call_index, delta.call_name, delta.call_id


@dataclass(slots=True)
class CompletionWire(Wire):
    """Answers to one prompt, or to several under their indexes."""

    chunk_object: ClassVar[str] = "text_completion"

    def events(self, deltas: Sequence[Delta]) -> Iterator[bytes]:
        yield self.chunk([_choice("".join(delta.text for delta in deltas), None)])

    def closing(self, finish_reason: str) -> Iterator[bytes]:
        yield self.chunk([_choice("", finish_reason)])

    def whole(self, answer: PlannedAnswer, usage: Json) -> bytes:
        return self.whole_list([answer], usage)

    def whole_list(self, answers: Sequence[PlannedAnswer], usage: Json) -> bytes:
        choices = [_choice(answer.text(), answer.finish_reason, index) for index, answer in enumerate(answers)]
        return self.json("text_completion", choices, usage=usage)

    def whole_event(self, index: int, answer: PlannedAnswer) -> bytes:
        """Return the whole answer to one of several prompts as one event."""
        return self.chunk([_choice(answer.text(), answer.finish_reason, index)])


def _choice(text: str, finish_reason: str | None, index: int = 0) -> Json:
    return {"index": index, "text": text, "logprobs": None, "finish_reason": finish_reason}
