"""Rounds of `/v1/chat/completions` as one answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import orjson

from gateway.core import fields, sse
from gateway.core.errors import Failure
from gateway.core.fields import Json
from gateway.core.reply import ToolCall
from gateway.dialects import canonical
from gateway.dialects.chat import Chat as Dialect
from gateway.dialects.rounds import End, Round, RoundTerms, added, mark
from tool_runtime.types import Result, Tool

_SAID = ("content", "reasoning_content", "reasoning")
"""Text of an assistant message that templates render."""
_CUT_SHORT = ("length", "content_filter")
_MOST_CALLS = 1024
_APART = "\n\n"
"""Between the texts of two rounds, which are paragraphs of one message."""


class ChatRounds:
    """The `Format`."""

    key = "messages"
    echoes_tools = False

    def takes_tools(self, body: Json) -> bool:
        return (fields.integer(body, "n") or 1) == 1

    def declared(self, body: Json) -> Iterator[str]:
        yield from canonical.tool_names(canonical.objects(body.get("tools")))
        yield from canonical.tool_names(canonical.objects(body.get("functions")))

    def definition(self, tool: Tool) -> Json:
        function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
        return {"type": "function", "function": function}

    def choice(self, body: Json, ours: Callable[[str], bool]) -> tuple[bool, Any]:
        named = fields.text(fields.obj(fields.obj(body, "tool_choice"), "function"), "name")
        return body.get("tool_choice") == "required" or (named is not None and ours(named)), "auto"

    def no_choice(self) -> Any:
        return "none"

    def history(self, body: Json) -> list[Json]:
        return fields.items(body, self.key)

    def results(self, results: Sequence[Result]) -> list[Json]:
        return [{"role": "tool", "tool_call_id": result.call.id, "content": result.text} for result in results]

    def answers(self, history: Sequence[Json]) -> Iterator[tuple[int, int, bytes]]:
        for at, message in enumerate(history):
            if message.get("role") == "assistant":
                content = canonical.content(message.get("content"))
                ids = [fields.text(call, "id") or "" for call in canonical.objects(message.get("tool_calls"))]
                yield at, at + 1, mark(content if isinstance(content, str) else "", ids)

    def restored(self, history: Sequence[Json], end: int, said: list[Json]) -> tuple[int, list[Json]]:
        return end, said

    def earlier_calls(self, history: Sequence[Json], name: str) -> tuple[str, ...]:
        calls = (call for message in history for call in canonical.objects(message.get("tool_calls")))
        functions = (fields.obj(call, "function") for call in calls)
        return tuple(fields.text(f, "arguments") or "" for f in functions if f.get("name") == name)

    def begin(self) -> ChatAnswer:
        return ChatAnswer()


class ChatAnswer:
    """The `PublicAnswer`."""

    def __init__(self) -> None:
        self.id = ""
        self.model = ""
        self.created: Any = None
        self.has_role = False
        self.calls: list[ToolCall] = []
        self.shown_calls: list[Json] = []
        """The same in the engine's words, of a body."""
        self.usage: Json = {}
        self.said: dict[str, list[str]] = {}
        """What the client was given, by key of the message, in pieces."""

    @property
    def text(self) -> str:
        return "".join(self.said.get("content", ()))

    @property
    def mark(self) -> bytes:
        return mark(self.text, [call.id for call in self.calls])

    def round(self, terms: RoundTerms) -> ChatRound:
        return ChatRound(self, terms)

    def add(self, round_: Round) -> None:
        self.usage = added(self.usage, round_.usage)
        self.calls = [ToolCall(call.id, call.name, call.arguments) for call in round_.calls.clients]

    def body(self, last: bytes) -> bytes:
        parsed: Json = orjson.loads(last)
        choice = next(iter(canonical.objects(parsed.get("choices"))), {})
        message = fields.obj(choice, "message") | {key: "".join(texts) for key, texts in self.said.items()}
        if message.get("tool_calls"):
            message["tool_calls"] = self.shown_calls
            if not self.shown_calls:
                del message["tool_calls"]
        changed: Json = {"message": message}
        if not self.shown_calls and choice.get("finish_reason") == "tool_calls":
            changed["finish_reason"] = "stop"
        parsed |= {**self.name, "choices": [choice | changed]}
        if self.usage:
            parsed["usage"] = self.usage
        return orjson.dumps(parsed)

    def keep_alive(self, answer_id: str, model: str, created_at: int, body: Json) -> bytes:
        self._name(answer_id, model, created_at)
        return Dialect().opening(self.id, self.model, self.created, body).keep_alive()

    def error_event(self, failure: Failure) -> bytes:
        return Dialect().error_event(failure)

    def begin(self, parsed: Json) -> None:
        """Hear of the answer by the name that an engine gives it."""
        self._name(fields.text(parsed, "id"), fields.text(parsed, "model"), parsed.get("created"))

    def _name(self, id_: str | None, model: str | None, created: Any) -> None:
        """The first name stays."""
        self.id, self.model = self.id or id_ or "", self.model or model or ""
        self.created = created if self.created is None else self.created

    @property
    def name(self) -> Json:
        """What every chunk repeats."""
        return {"id": self.id, "created": self.created, "model": self.model}

    def give(self, key: str, text: str, is_first: bool) -> str:
        """Text of a round for the client, apart from what an earlier round wrote."""
        given = self.said.setdefault(key, [])
        if is_first and given and not given[-1][-1:].isspace() and not text[:1].isspace():
            text = _APART + text
        given.append(text)
        return text


class ChatRound(Round):
    """One model call."""

    def __init__(self, answer: ChatAnswer, terms: RoundTerms) -> None:
        super().__init__(terms)
        self._answer = answer
        self._said: dict[str, list[str]] = {}

    def said(self) -> list[Json]:
        message: Json = {"role": "assistant", "content": None}
        message |= {key: "".join(texts) for key, texts in self._said.items()}
        calls = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.for_history()},
            }
            for call in (self.calls.clients if self.end is End.FINAL else self.calls)
        ]
        return [message | ({"tool_calls": calls} if calls else {})]

    def read(self, body: Json) -> None:
        self._answer.begin(body)
        self.usage = fields.obj(body, "usage")
        for choice in canonical.objects(body.get("choices")):
            message = fields.obj(choice, "message")
            self._heard_text(message)
            self._answer.shown_calls = self._heard_calls(message)
            self.ended(choice.get("finish_reason") in _CUT_SHORT)

    def shown(self, event: bytes, parsed: Json | None) -> bytes:
        if parsed is None:
            return b"" if self.end is End.INNER else event
        self._answer.begin(parsed)
        usage = fields.obj(parsed, "usage")
        if usage:
            self.usage = usage
        choice = next(iter(canonical.objects(parsed.get("choices"))), None)
        if choice is None:
            if self.end is End.INNER:
                return b""
            return self._written(parsed) if self._is_rewritten(parsed) else event
        delta, reason = fields.obj(choice, "delta"), choice.get("finish_reason")
        text, calls = self._heard_text(delta), self._heard_calls(delta)
        if reason is not None:
            self.ended(reason in _CUT_SHORT)
        if reason is None and not calls and not delta.get("tool_calls") and not self._is_rewritten(parsed):
            self._answer.has_role |= "role" in delta
            return event
        return self._rewritten(event, parsed, choice, text, calls)

    def _rewritten(self, event: bytes, parsed: Json, choice: Json, text: Json, calls: list[Json]) -> bytes:
        """An event of a later round, or one that has a call or the end in it."""
        given = fields.obj(choice, "delta")
        delta = {key: value for key, value in given.items() if key not in ("role", "tool_calls")} | text
        if "role" in given and not self._answer.has_role:
            self._answer.has_role = True
            delta = {"role": given["role"], **delta}
        if calls:
            delta["tool_calls"] = calls
        reason = choice.get("finish_reason")
        if self.end is End.INNER:
            reason = None
        elif reason == "tool_calls" and not self.calls.clients:
            reason = "stop"
        if delta == given and reason == choice.get("finish_reason") and not self._is_rewritten(parsed):
            return event
        if reason is None and not any(delta.values()):
            return b""
        return self._written(parsed, {**choice, "delta": delta, "finish_reason": reason})

    def _is_rewritten(self, parsed: Json) -> bool:
        return self.number > 1 or parsed.get("id") != self._answer.id

    def _written(self, parsed: Json, *choices: Json) -> bytes:
        changed: Json = {**self._answer.name, "choices": choices}
        if usage := fields.obj(parsed, "usage"):
            changed["usage"] = added(self._answer.usage, usage)
        return sse.event(orjson.dumps(parsed | changed))

    def _heard_text(self, delta: Json) -> Json:
        """Texts of a delta as the client gets them."""
        texts = {}
        for key in _SAID:
            if isinstance(text := delta.get(key), str) and text:
                said = self._said.setdefault(key, [])
                texts[key] = self._answer.give(key, text, not said)
                said.append(text)
        return texts

    def _heard_calls(self, delta: Json) -> list[Json]:
        """The client's calls of a delta, numbered as if ours were not there."""
        shown = []
        for position, piece in enumerate(canonical.objects(delta.get("tool_calls"))):
            index = fields.integer(piece, "index")
            if index is None:  # a whole message, or an engine that sends each call in one piece
                index = position
            if not 0 <= index < _MOST_CALLS:
                continue
            function = fields.obj(piece, "function") or fields.obj(piece, "custom")
            arguments = fields.text(function, "arguments") or fields.text(function, "input") or ""
            call = self.calls.heard(index, fields.text(piece, "id"), fields.text(function, "name"), arguments)
            if call.is_ours is False:
                shown.append(piece if "index" not in piece else piece | {"index": call.place})
        return shown
