"""Answers of the embedded engine to chats and completions: chunks and whole answers, as vLLM writes them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, ClassVar

import orjson

from gateway.core import sse
from gateway.core.fields import Json
from gateway.embedded.answer import Delta, PlannedAnswer


class Wire(ABC):
    """The answers to one request in their wire format. Events are whole server-sent events."""

    def opening(self, index: int, usage: Json) -> Iterator[bytes]:
        """Yield the events before the text of one answer. `usage`: of the prompt."""
        return iter(())

    @abstractmethod
    def events(self, index: int, deltas: Sequence[Delta]) -> Iterator[bytes]: ...

    @abstractmethod
    def closing(self, index: int, answer: PlannedAnswer) -> Iterator[bytes]: ...

    @abstractmethod
    def ending(self, usage: Json, is_wanted: bool) -> Iterator[bytes]:
        """Yield the events after all answers. `is_wanted`: whether the client asked for the usage."""

    @abstractmethod
    def whole(self, answers: Sequence[PlannedAnswer], usage: Json) -> bytes: ...


@dataclass(slots=True)
class ChunkWire(Wire):
    """Streams of chunks, each of which names its answer."""

    id: str
    created_at: int
    model: str
    chunk_object: ClassVar[str]

    def ending(self, usage: Json, is_wanted: bool) -> Iterator[bytes]:
        if is_wanted:
            yield self.chunk([], usage=usage)
        yield sse.DONE

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
class ChatWire(ChunkWire):
    num_calls: int = 0
    """Tool calls so far, of all answers."""
    chunk_object: ClassVar[str] = "chat.completion.chunk"

    def opening(self, index: int, usage: Json) -> Iterator[bytes]:
        yield self._delta(index, {"role": "assistant", "content": ""})

    def events(self, index: int, deltas: Sequence[Delta]) -> Iterator[bytes]:
        for (call, name, call_id), run in groupby(deltas, key=call_of):
            text = "".join(delta.text for delta in run)
            if call is None:
                yield self._delta(index, {"content": text})
            elif name is None:
                yield self._delta(index, {"tool_calls": [{"index": call, "function": {"arguments": text}}]})
            else:
                yield self._delta(index, {"tool_calls": [{"index": call, **self._call(name, call_id)}]})

    def closing(self, index: int, answer: PlannedAnswer) -> Iterator[bytes]:
        yield self._delta(index, {}, answer)

    def whole(self, answers: Sequence[PlannedAnswer], usage: Json) -> bytes:
        choices = [self._choice(index, answer) for index, answer in enumerate(answers)]
        return self.json("chat.completion", choices, usage=usage)

    def _choice(self, index: int, answer: PlannedAnswer) -> Json:
        calls = [self._call(each.call_name, each.call_id) for each in answer.deltas if each.call_name is not None]
        for position, call in enumerate(calls):
            call["function"]["arguments"] = answer.text(call_index=position)
        content = answer.text()
        message: Json = {"role": "assistant", "content": content or (None if calls else "")}
        message |= {"tool_calls": calls} if calls else {}
        return {"index": index, "message": message, "logprobs": None, **_end(answer)}

    def _call(self, name: str, call_id: str | None) -> Json:
        """Return a tool call without its arguments."""
        self.num_calls += 1
        call_id = call_id or f"call_{self.id.removeprefix('chatcmpl-')}_{self.num_calls}"
        return {"id": call_id, "type": "function", "function": {"name": name, "arguments": ""}}

    def _delta(self, index: int, delta: Json, answer: PlannedAnswer | None = None) -> bytes:
        return self.chunk([{"index": index, "delta": delta, "logprobs": None, **_end(answer)}])


def call_of(delta: Delta) -> tuple[int | None, str | None, str | None]:
    """Return what the deltas of one stretch have in common: index, name and id of a call."""
    return delta.call_index, delta.call_name, delta.call_id


def _call_of(delta: Delta) -> tuple[int | None, str | None, str | None]:
    return delta.call_index, delta.call_name, delta.call_id


@dataclass(slots=True)
class CompletionWire(ChunkWire):
    """Answers to one prompt, or to several, under their indexes."""

    chunk_object: ClassVar[str] = "text_completion"

    def events(self, index: int, deltas: Sequence[Delta]) -> Iterator[bytes]:
        yield self.chunk([_text_choice(index, "".join(delta.text for delta in deltas))])

    def closing(self, index: int, answer: PlannedAnswer) -> Iterator[bytes]:
        yield self.chunk([_text_choice(index, "", answer)])

    def whole(self, answers: Sequence[PlannedAnswer], usage: Json) -> bytes:
        choices = [_text_choice(index, answer.text(), answer) for index, answer in enumerate(answers)]
        return self.json("text_completion", choices, usage=usage)

    def whole_event(self, index: int, answer: PlannedAnswer) -> bytes:
        """Return the whole answer to one of several prompts as one event."""
        return self.chunk([_text_choice(index, answer.text(), answer)])


def _text_choice(index: int, text: str, answer: PlannedAnswer | None = None) -> Json:
    return {"index": index, "text": text, "logprobs": None, **_end(answer)}


def _end(answer: PlannedAnswer | None) -> Json:
    """Return how an answer ended. None: it has not."""
    if answer is None:
        return {"finish_reason": None}
    return {"finish_reason": answer.finish_reason, "stop_reason": answer.stop_text}
