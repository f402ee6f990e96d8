"""Rounds of `/v1/responses` as one answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import orjson

from gateway.core import fields
from gateway.core.errors import Failure
from gateway.core.fields import Json
from gateway.core.reply import ToolCall
from gateway.dialects import canonical
from gateway.dialects.responses import NAMES, Numbered, failed, response_of
from gateway.dialects.rounds import End, Round, RoundTerms, Spoken, added, mark
from tool_runtime.types import Result, Tool

_CALL = "function_call"
_OF_MODEL = (_CALL, "custom_tool_call", "reasoning", "local_shell_call", "web_search_call")
_BEGUN = ("response.created", "response.in_progress", "response.queued")
_ENDED = ("response.completed", "response.incomplete")


class ResponsesRounds:
    """The `Format`."""

    key = "input"
    echoes_tools = True

    def takes_tools(self, body: Json) -> bool:
        return not fields.flag(body, "background")

    def declared(self, body: Json) -> Iterator[str]:
        """Tools of a namespace under both names that engines give them."""
        for definition in canonical.objects(body.get("tools")):
            names = canonical.tool_names([definition])
            yield from names
            if definition.get("type") == "namespace":
                yield from (f"{definition.get('name')}__{name}" for name in names)

    def definition(self, tool: Tool) -> Json:
        about = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
        return {"type": "function", **about, "strict": False}

    def choice(self, body: Json, ours: Callable[[str], bool]) -> tuple[bool, Any]:
        named = fields.text(fields.obj(body, "tool_choice"), "name")
        return body.get("tool_choice") == "required" or (named is not None and ours(named)), "auto"

    def no_choice(self) -> Any:
        return "none"

    def history(self, body: Json) -> list[Json]:
        value = body.get(self.key)
        return [{"role": "user", "content": value}] if isinstance(value, str) else fields.items(body, self.key)

    def results(self, results: Sequence[Result]) -> list[Json]:
        return [
            {"type": "function_call_output", "call_id": result.call.id, "output": result.text}
            for result in results
        ]

    def answers(self, history: Sequence[Json]) -> Iterator[tuple[int, int, bytes]]:
        """An answer is a run of items of the model: it may be several messages and calls."""
        start = None
        for at, item in enumerate([*history, {}]):
            if _is_of_model(item):
                start = at if start is None else start
            elif start is not None:
                yield start, at, _mark(history[start:at])
                start = None

    def restored(self, history: Sequence[Json], end: int, said: list[Json]) -> tuple[int, list[Json]]:
        return end, said

    def earlier_calls(self, history: Sequence[Json], name: str) -> tuple[str, ...]:
        calls = (item for item in history if item.get("type") == _CALL and item.get("name") == name)
        return tuple(fields.text(call, "arguments") or "" for call in calls)

    def begin(self) -> ResponsesAnswer:
        return ResponsesAnswer()


class ResponsesAnswer(Numbered):
    """The `PublicAnswer`."""

    def __init__(self) -> None:
        super().__init__()
        self._begun: Json = {}
        """The response as it began, whose names it keeps."""
        self.items: list[Json] = []
        """That the client was given, of the rounds that are over."""
        self.usage: Json = {}
        self._is_ours: Callable[[str], bool] = bool
        self._round: ResponsesRound | None = None
        """That runs."""

    @property
    def id(self) -> str:
        return fields.text(self._begun, "id") or ""

    @property
    def calls(self) -> list[ToolCall]:
        calls = (item for item in self.items if item.get("type") in (_CALL, "custom_tool_call"))
        return [
            ToolCall(
                fields.text(call, "call_id") or "",
                fields.text(call, "name") or "",
                fields.text(call, "arguments") or fields.text(call, "input") or "",
            )
            for call in calls
        ]

    @property
    def text(self) -> str:
        return _text(self.items)

    @property
    def mark(self) -> bytes:
        return _mark(self.items)

    def round(self, terms: RoundTerms) -> ResponsesRound:
        self._is_ours = terms.is_ours
        self._round = ResponsesRound(self, terms)
        return self._round

    def add(self, round_: Round) -> None:
        assert isinstance(round_, ResponsesRound)
        self.usage = added(self.usage, round_.usage)
        self.items += round_.given()
        self._round = None

    def body(self, last: bytes) -> bytes:
        return orjson.dumps(self.whole(self.public(orjson.loads(last)), self.items, self.usage))

    def keep_alive(self, answer_id: str, model: str, created_at: int, body: Json) -> bytes:
        self._begun = self._begun or response_of(answer_id, model, created_at, body)
        kind = "response.in_progress" if self.num_events else "response.created"
        return self.numbered({"type": kind, "response": self._so_far("in_progress")})

    def error_event(self, failure: Failure) -> bytes:
        return self.numbered(failed(self._so_far("failed"), failure))

    def begin(self, response: Json) -> None:
        """Hear of the response; the first time names it."""
        self._begun = self._begun or self.public(response)

    def public(self, response: Json) -> Json:
        """One of an engine under the names of the answer. Engines echo the tools of the request: the client sees
        its own."""
        tools = canonical.objects(response.get("tools"))
        kept = [tool for tool in tools if not all(map(self._is_ours, canonical.tool_names([tool])))]
        changed = {"tools": kept} if len(kept) < len(tools) else {}
        return response | changed | {key: self._begun[key] for key in NAMES if key in self._begun}

    def whole(self, response: Json, items: Sequence[Json], usage: Json) -> Json:
        """A response object of this answer, that is public."""
        return response | {"output": items} | ({"usage": usage} if usage else {})

    def _so_far(self, status: str) -> Json:
        running = self._round.given() if self._round is not None else []
        return self._begun | {"status": status, "output": [*self.items, *running]}


class ResponsesRound(Round):
    """One model call. Items come one after the other, each with its index."""

    def __init__(self, answer: ResponsesAnswer, terms: RoundTerms) -> None:
        super().__init__(terms)
        self._answer = answer
        self._items: dict[int, Json] = {}
        self._calls: dict[int, Spoken] = {}

    def said(self) -> list[Json]:
        return self.given() if self.end is End.FINAL else [self._whole(index) for index in sorted(self._items)]

    def given(self) -> list[Json]:
        """Items that the client sees."""
        return [self._items[index] for index in sorted(self._items) if not self._is_hidden(index)]

    def read(self, body: Json) -> None:
        self._answer.begin(body)
        self._finish(body)

    def shown(self, event: bytes, parsed: Json | None) -> bytes:
        if parsed is None:
            return b"" if self.end is End.INNER else event
        kind = fields.text(parsed, "type") or ""
        if kind in _BEGUN:
            response = fields.obj(parsed, "response")
            is_told = self.number > 1 or (kind == "response.created" and self._answer.num_events)
            self._answer.begin(response)
            return b"" if is_told else self._sent(event, parsed, response=self._answer.public(response))
        if kind in _ENDED:
            return self._closing(event, parsed)
        index = fields.integer(parsed, "output_index")
        if index is None:
            return self._renamed(event, parsed)
        item = fields.obj(parsed, "item")
        if item:
            self._heard(index, item, is_over=kind == "response.output_item.done")
        elif kind == "response.function_call_arguments.delta":
            self.calls.heard(index, None, None, fields.text(parsed, "delta") or "")
        elif kind == "response.function_call_arguments.done":
            self.calls.closed(index, fields.text(parsed, "arguments"))
        if self._is_hidden(index):
            return b""
        return self._sent(event, parsed, output_index=len(self._answer.items) + self.num_shown_before(index))

    def failed(self, event: bytes, parsed: Json) -> bytes:
        return self._renamed(event, parsed)

    def _renamed(self, event: bytes, parsed: Json) -> bytes:
        response = fields.obj(parsed, "response")
        return self._sent(event, parsed, **({"response": self._answer.public(response)} if response else {}))

    def _sent(self, event: bytes, parsed: Json, **changed: Any) -> bytes:
        changed["sequence_number"] = self._answer.num_events
        if all(parsed.get(key) == value for key, value in changed.items()):
            self._answer.num_events += 1
            return event
        return self._answer.numbered(parsed | changed)

    def _heard(self, index: int, item: Json, *, is_over: bool) -> None:
        is_new = index not in self._items
        self._items[index] = item
        is_call, arguments = item.get("type") == _CALL, fields.text(item, "arguments") or ""
        if is_call and index not in self._calls:
            id_, name = fields.text(item, "call_id"), fields.text(item, "name")
            self._calls[index] = self.calls.heard(index, id_, name, arguments)
        if is_new:
            self.begun(index, is_hidden=self._is_hidden(index))
        if is_call and is_over:
            self.calls.closed(index, arguments)

    def _closing(self, event: bytes, parsed: Json) -> bytes:
        response = fields.obj(parsed, "response")
        self._answer.begin(response)
        self._finish(response)
        if self.end is End.INNER:
            return b""
        if self.number == 1 and not self.calls.ours:
            return self._sent(event, parsed, response=self._answer.public(response))
        items = [*self._answer.items, *self.given()]
        whole = self._answer.whole(self._answer.public(response), items, added(self._answer.usage, self.usage))
        return self._sent(event, parsed, response=whole)

    def _finish(self, response: Json) -> None:
        self.usage = fields.obj(response, "usage")
        for index, item in enumerate(canonical.objects(response.get("output"))):
            if index not in self._items:
                self._heard(index, item, is_over=False)
        self.ended(response.get("status") != "completed")

    def _is_hidden(self, index: int) -> bool:
        return index in self._calls and self._calls[index].is_ours is not False

    def _whole(self, index: int) -> Json:
        call = self._calls.get(index)
        item = self._items[index]
        return item if call is None else item | {"call_id": call.id, "arguments": call.for_history()}


def _is_of_model(item: Json) -> bool:
    return item.get("role") == "assistant" or item.get("type") in _OF_MODEL


def _text(items: Sequence[Json]) -> str:
    messages = (item for item in items if item.get("role") == "assistant")
    contents = [canonical.content(message.get("content")) for message in messages]
    return "".join(content for content in contents if isinstance(content, str))


def _mark(items: Sequence[Json]) -> bytes:
    ids = [fields.text(item, "call_id") or "" for item in items if "call_id" in item]
    return mark(_text(items), ids)
