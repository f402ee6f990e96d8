"""`/v1/responses`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import orjson

from gateway.core import fields, sse
from gateway.core.errors import Failure
from gateway.core.fields import Json
from gateway.core.reply import MOST_CALLS, Reply, ToolCall
from gateway.core.slices import Steps
from gateway.dialects import base, canonical
from gateway.dialects.base import Dialect, Script, read_error
from gateway.dialects.canonical import ToolList
from gateway.dialects.description import OBJECTS, TEXT, CallDescription, nullable
from gateway.dialects.rounds import Completed, End, IsHidden, PublicAnswer, Round, ToolFormat, added, mark
from policies.recognition.prompts import SPEAKERS

if TYPE_CHECKING:
    from tool_runtime.types import Result, Tool

_SHAPES = base.COMMON | {
    "input": base.TEXT_OR_LIST,
    "instructions": base.TEXT,
    "tools": base.LIST,
    "previous_response_id": base.TEXT,
    "background": base.FLAG,
}
_CALLS = ("function_call", "custom_tool_call")
_ENDED = ("completed", "incomplete")
_UNREAD_DELTAS = frozenset(("response.reasoning_text.delta", "response.reasoning_summary_text.delta"))
_BEGUN = frozenset(("response.created", "response.in_progress", "response.queued"))


class Responses(Dialect):
    name = "responses"
    description = CallDescription(
        "A turn, as a response",
        {
            "input": nullable({"anyOf": [TEXT, OBJECTS]}),
            "instructions": nullable(TEXT),
            "tools": nullable(OBJECTS),
            "previous_response_id": nullable(TEXT),
        },
        example={"input": "Hello"},
    )
    is_conversation = True
    tries_websocket = True
    history_key = "input"
    system_keys = ("instructions",)
    bound_keys = ("max_output_tokens",)
    may_omit_bound = True
    always_sends_usage = True
    preambles = _BEGUN
    stores_answers = True

    def check(self, body: Json) -> Failure | None:
        return base.wrong_field(body, _SHAPES, objects_in=("input", "tools"))

    def script(self, body: Json, tools: ToolList | None = None) -> Script:
        if tools is None:
            tools = canonical.tools(self.definitions(body))
        system, items = self._parts(body)
        messages = [message for message in map(_item, items) if message is not None]
        return _script(tools, canonical.system(system), messages)

    def script_in_steps(self, body: Json, tools: ToolList) -> Steps[Script]:
        system, items = self._parts(body)
        text = yield from canonical.system_in_steps(system)
        messages: list[bytes] = []
        for item in items:
            yield
            if (message := (yield from _item_in_steps(item))) is not None:
                messages.append(message)
        return _script(tools, text, messages)

    def _parts(self, body: Json) -> tuple[list[Any], list[Json]]:
        """Return the contents of the system text, and the items that follow it."""
        items = canonical.objects(self.history(body))
        num_system = 0
        while num_system < len(items) and items[num_system].get("role") in ("system", "developer"):
            num_system += 1
        return [body.get("instructions"), *(item.get("content") for item in items[:num_system])], items[
            num_system:
        ]

    def history(self, body: Json) -> list[Json]:
        """Return the items; a text is one message of the user."""
        value = body.get("input")
        return [{"role": "user", "content": value}] if isinstance(value, str) else fields.items(body, "input")

    def answers_later(self, body: Json) -> bool:
        return fields.flag(body, "background")

    def stateful_id(self, body: Json) -> str | None:
        return fields.text(body, "previous_response_id")

    def read(self, event: Json, reply: Reply) -> None:
        kind = event.get("type")
        if kind == "response.output_text.delta":
            reply.written.append(fields.text(event, "delta") or "")
        elif isinstance(kind, str) and kind in _UNREAD_DELTAS:
            reply.num_other_chars += len(fields.text(event, "delta") or "")
        elif kind == "response.output_item.done":
            _read_call(fields.obj(event, "item"), reply)
        elif event.get("object") == "response":
            _read_response(event, reply)
        elif "response" in event:
            _read_response(fields.obj(event, "response"), reply)

    def opening(self, answer_id: str, model: str, created_at: int, body: Json) -> ResponseOpening:
        return ResponseOpening(response_of(answer_id, model, created_at, body))

    def tool_format(self) -> ResponsesTools:
        return ResponsesTools()

    def is_error(self, event: Json) -> Failure | None:
        kind = event.get("type")
        if kind == "response.failed":
            return read_error(fields.obj(fields.obj(event, "response"), "error"))
        if event.get("error"):
            # The body of an answer has `error: null`, unless it failed.
            return read_error(event["error"])
        return read_error({**event, "type": None}) if kind == "error" else None

    def error_event(self, failure: Failure) -> bytes:
        return ResponseOpening(response_of("resp_failed", "", 0, {})).error_event(failure)


# ---- the items of a request, in canonical form


def _script(tools: ToolList, system: bytes, messages: Sequence[bytes]) -> Script:
    return Script(
        tools=tools.texts,
        system=system,
        messages=tuple(messages),
        offers_tools=bool(tools.texts),
        tool_names=tools.names,
    )


def _item(item: Json) -> bytes | None:
    """Return one input item, named by its role or type; None for an empty one (a bare reasoning item)."""
    kind = fields.text(item, "type") or "message"
    if kind == "message":
        content = canonical.content(item.get("content"))
        return canonical.message(fields.text(item, "role") or "", {"content": content})
    members = _members(item, kind)
    for key in _CONTENTS:
        if key in members:
            members[key] = canonical.content(members[key])
    return canonical.message(kind, members) if any(members.values()) else None


def _item_in_steps(item: Json) -> Steps[bytes | None]:
    """As `_item`, of one that may be long."""
    kind = fields.text(item, "type") or "message"
    if kind == "message":
        content = yield from canonical.content_in_steps(item.get("content"))
        return (yield from canonical.message_in_steps(fields.text(item, "role") or "", {"content": content}))
    members = _members(item, kind)
    for key in _CONTENTS:
        if key in members:
            members[key] = yield from canonical.content_in_steps(members[key])
    return (yield from canonical.message_in_steps(kind, members)) if any(members.values()) else None


_CONTENTS = ("content", "output", "summary")


def _members(item: Json, kind: str) -> Json:
    members = canonical.clean(item)
    members.pop("type", None)
    if kind == "item_reference":
        members["id"] = item.get("id")
    if "arguments" in members:
        members["arguments"] = canonical.arguments(members["arguments"])
    return members


# ---- the items of an answer


def _read_call(item: Json, reply: Reply) -> None:
    if item.get("type") in _CALLS and len(reply.tool_calls) < MOST_CALLS:
        reply.tool_calls.put_piece(len(reply.tool_calls), *_call_of(item))


def _call_of(item: Json) -> tuple[str | None, str | None, str]:
    """Return id, name and arguments of a call."""
    arguments = fields.text(item, "arguments") or fields.text(item, "input") or ""
    return fields.text(item, "call_id"), fields.text(item, "name"), arguments


def _read_response(response: Json, reply: Reply) -> None:
    """Read a whole answer, or the state of one in a stream. Output that the stream has shown is not read again."""
    reply.model = fields.text(response, "model") or reply.model
    status = fields.text(response, "status")
    if status not in _ENDED:
        return
    reply.finish_reason = fields.text(fields.obj(response, "incomplete_details"), "reason") or status
    reply.is_complete = True
    if reply.written.num_chars or reply.tool_calls:
        return
    for item in canonical.objects(response.get("output")):
        _read_call(item, reply)
        if item.get("type") == "message":
            for part in canonical.objects(item.get("content")):
                reply.written.append(canonical.text_of(part) or "")


# ---- what a client is sent before an engine answers

_NAMES = ("id", "created_at", "model")
"""The names of a response, which every event of it repeats."""
_DEFAULTS: Json = {
    "error": None,
    "incomplete_details": None,
    "instructions": None,
    "metadata": {},
    "output": [],
    "parallel_tool_calls": True,
    "temperature": None,
    "tool_choice": "auto",
    "tools": [],
    "top_p": None,
    "usage": None,
}
_ECHOED = (
    *("instructions", "metadata", "parallel_tool_calls", "temperature", "tool_choice", "tools", "top_p"),
    *("background", "max_output_tokens", "max_tool_calls", "previous_response_id", "prompt_cache_key"),
    *("reasoning", "safety_identifier", "service_tier", "store", "text", "top_logprobs", "truncation", "user"),
)
"""The keys that a response repeats of its request, in the same shape."""


class NumberedEvents:
    """The events of one stream, each with its number."""

    num_events = 0
    """Sent so far."""

    def numbered(self, event: Json) -> bytes:
        """Return the next event of the stream."""
        event = event | {"sequence_number": self.num_events}
        self.num_events += 1
        return sse.event(fields.written(event), fields.text(event, "type"))


class ResponseOpening(NumberedEvents):
    """An `Opening`. The helpers of OpenAI's SDKs take no event before `response.created`, and none of a response
    with another id."""

    def __init__(self, response: Json) -> None:
        """`response`: as it is while nothing of its output has come."""
        self._response = response

    def keep_alive(self) -> bytes:
        kind = "response.in_progress" if self.num_events else "response.created"
        return self.numbered({"type": kind, "response": self._response})

    def joined(self, event: bytes, parsed: Json) -> bytes:
        if parsed.get("type") == "response.created":
            return b""
        response = fields.obj(parsed, "response")
        named = {"response": response | {key: self._response[key] for key in _NAMES}} if response else {}
        return self.numbered(parsed | named)

    def error_event(self, failure: Failure) -> bytes:
        return self.numbered(failed(self._response, failure))


def response_of(answer_id: str, model: str, created_at: int, body: Json) -> Json:
    """Return a response that has just begun. It has what its request says, and every field that the SDKs' types
    declare without a default."""
    said = {key: value for key in _ECHOED if (value := body.get(key)) is not None}
    named = {"id": answer_id, "object": "response", "created_at": created_at, "model": model}
    return {**_DEFAULTS, **said, **named, "status": "in_progress"}


def failed(response: Json, failure: Failure) -> Json:
    """Return the event that fails a response. Codex retries it, and takes the delay of a 429 from the text."""
    message = failure.message
    if failure.status == 429:
        code = "rate_limit_exceeded"
        if failure.retry_after_s is not None:
            message = f"{message} Please try again in {math.ceil(failure.retry_after_s)}s."
    else:
        code = failure.code or ("server_error" if failure.status >= 500 else "invalid_prompt")
    error = {"code": code, "message": message}
    return {"type": "response.failed", "response": response | {"status": "failed", "error": error}}


# ---- tools of the gateway: one public answer over several model calls

_CALL = "function_call"
_CLOSING = ("response.completed", "response.incomplete")


class ResponsesTools(ToolFormat):
    echoes_tools = True

    def takes_tools(self, body: Json) -> bool:
        return not fields.flag(body, "background")

    def declared(self, body: Json) -> Iterator[str]:
        """Yield tools of a namespace under both names that engines give them."""
        for definition in canonical.objects(body.get("tools")):
            names = canonical.tool_names([definition])
            yield from names
            if definition.get("type") == "namespace":
                yield from (f"{definition.get('name')}__{name}" for name in names)

    def definition(self, tool: Tool) -> Json:
        about = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
        return {"type": "function", **about, "strict": False}

    def choice(self, body: Json, is_hidden: IsHidden) -> tuple[bool, Any]:
        named = fields.text(fields.obj(body, "tool_choice"), "name")
        return body.get("tool_choice") == "required" or (named is not None and is_hidden(named)), "auto"

    def results(self, results: Sequence[Result]) -> list[Json]:
        return [
            {"type": "function_call_output", "call_id": result.call.id, "output": result.text}
            for result in results
        ]

    def answers(self, history: Sequence[Json]) -> Iterator[tuple[int, int, bytes]]:
        """Take a run of the model's items for one answer: it may be several messages and calls."""
        start = None
        for at, item in enumerate([*history, {}]):
            if _is_of_model(item):
                start = at if start is None else start
            elif start is not None:
                yield start, at, _mark(history[start:at])
                start = None

    def earlier_calls(self, history: Sequence[Json], name: str) -> tuple[str, ...]:
        calls = (item for item in history if item.get("type") == _CALL and item.get("name") == name)
        return tuple(fields.text(call, "arguments") or "" for call in calls)

    def new_answer(self, is_hidden: IsHidden, completed: Completed) -> ResponsesAnswer:
        return ResponsesAnswer(is_hidden, completed)


class ResponsesAnswer(NumberedEvents, PublicAnswer):
    def __init__(self, is_hidden: IsHidden, completed: Completed) -> None:
        super().__init__(is_hidden, completed)
        self._begun: Json = {}
        """The response as it began, whose names it keeps."""
        self.items: list[Json] = []
        """The items that the client was given, of the rounds that are over."""
        self._round: ResponsesRound | None = None
        """The round that runs."""

    @property
    def id(self) -> str:
        return fields.text(self._begun, "id") or ""

    @property
    def calls(self) -> list[ToolCall]:
        calls = (_call_of(item) for item in self.items if item.get("type") in _CALLS)
        return [ToolCall(id_ or "", name or "", arguments) for id_, name, arguments in calls]

    @property
    def text(self) -> str:
        return _text(self.items)

    @property
    def mark(self) -> bytes:
        return _mark(self.items)

    def round(self, number: int, must_end: bool) -> ResponsesRound:
        self._round = ResponsesRound(self, number, must_end)
        return self._round

    def close_round(self, round_: Round) -> None:
        assert isinstance(round_, ResponsesRound)
        super().close_round(round_)
        self.items += round_.given()
        self._round = None

    def body(self, last: bytes) -> bytes:
        return fields.written(self.whole(self.public(orjson.loads(last)), self.items, self.usage))

    def keep_alive(self, answer_id: str, model: str, created_at: int, body: Json) -> bytes:
        self._begun = self._begun or response_of(answer_id, model, created_at, body)
        kind = "response.in_progress" if self.num_events else "response.created"
        return self.numbered({"type": kind, "response": self._so_far("in_progress")})

    def error_event(self, failure: Failure) -> bytes:
        return self.numbered(failed(self._so_far("failed"), failure))

    def learn_name(self, response: Json) -> None:
        """Read the names that an engine gives the response. The first stay."""
        self._begun = self._begun or self.public(response)

    def public(self, response: Json) -> Json:
        """Return an engine's response under the names of the answer. Engines echo the tools of the request: the
        client sees its own."""
        tools = canonical.objects(response.get("tools"))
        kept = [tool for tool in tools if not all(map(self.is_hidden, canonical.tool_names([tool])))]
        changed = {"tools": kept} if len(kept) < len(tools) else {}
        return response | changed | {key: self._begun[key] for key in _NAMES if key in self._begun}

    def whole(self, response: Json, items: Sequence[Json], usage: Json) -> Json:
        """Return a public response object of this answer."""
        return response | {"output": items} | ({"usage": usage} if usage else {})

    def _so_far(self, status: str) -> Json:
        running = self._round.given() if self._round is not None else []
        return self._begun | {"status": status, "output": [*self.items, *running]}


class ResponsesRound(Round):
    """Items come one after the other, each with its index."""

    def __init__(self, answer: ResponsesAnswer, number: int, must_end: bool) -> None:
        super().__init__(answer, number, must_end)
        self._answer = answer
        self._items: dict[int, Json] = {}

    def said(self) -> list[Json]:
        return self.given() if self.end is End.FINAL else [self._whole(index) for index in sorted(self._items)]

    def given(self) -> list[Json]:
        """Return the items that the client sees."""
        return [self._items[index] for index in sorted(self._items) if not self.is_hidden(index)]

    @property
    def calls_client(self) -> bool:
        """Custom tools are always the client's."""
        has_custom = any(item.get("type") == "custom_tool_call" for item in self._items.values())
        return has_custom or super().calls_client

    def read(self, body: Json) -> None:
        self._answer.learn_name(body)
        self._finish(body)

    def shown(self, event: bytes, parsed: Json | None) -> bytes:
        if parsed is None:
            return b"" if self.end is End.INNER else event
        kind = fields.text(parsed, "type") or ""
        if kind in _BEGUN:
            response = fields.obj(parsed, "response")
            is_repeated = self.number > 1 or (kind == "response.created" and self._answer.num_events)
            self._answer.learn_name(response)
            return b"" if is_repeated else self._sent(event, parsed, response=self._answer.public(response))
        if kind in _CLOSING:
            return self._closing(event, parsed)
        index = fields.integer(parsed, "output_index")
        if index is None:
            return self._renamed(event, parsed)
        item = fields.obj(parsed, "item")
        if item:
            self._read_item(index, item, is_over=kind == "response.output_item.done")
        elif kind == "response.function_call_arguments.delta" and self.calls.at(index) is not None:
            self.calls.put_piece(index, None, None, fields.text(parsed, "delta") or "")
        elif kind == "response.function_call_arguments.done":
            self.calls.close(index, fields.text(parsed, "arguments"))
        if self.is_hidden(index):
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

    def _read_item(self, index: int, item: Json, *, is_over: bool) -> None:
        is_new = index not in self._items
        self._items[index] = item
        is_call = item.get("type") == _CALL
        if is_call and self.calls.at(index) is None:
            self.calls.put_piece(index, *_call_of(item))
        if is_new:
            self.place_item(index)
        if is_call and is_over:
            self.calls.close(index, fields.text(item, "arguments"))

    def _closing(self, event: bytes, parsed: Json) -> bytes:
        response = fields.obj(parsed, "response")
        self._answer.learn_name(response)
        self._finish(response)
        if self.end is End.INNER:
            return b""
        if self.number == 1 and not self.calls.hidden:
            return self._sent(event, parsed, response=self._answer.public(response))
        items = [*self._answer.items, *self.given()]
        whole = self._answer.whole(self._answer.public(response), items, added(self._answer.usage, self.usage))
        return self._sent(event, parsed, response=whole)

    def _finish(self, response: Json) -> None:
        self.usage = fields.obj(response, "usage")
        for index, item in enumerate(canonical.objects(response.get("output"))):
            if index not in self._items:
                self._read_item(index, item, is_over=False)
        self.ended(response.get("status") != "completed")

    def _whole(self, index: int) -> Json:
        call = self.calls.at(index)
        item = self._items[index]
        return item if call is None else item | {"call_id": call.id, "arguments": call.for_history()}


def _is_of_model(item: Json) -> bool:
    return item.get("role") == "assistant" or item.get("type") in SPEAKERS


def _text(items: Sequence[Json]) -> str:
    messages = (item for item in items if item.get("role") == "assistant")
    contents = [canonical.content(message.get("content")) for message in messages]
    return "".join(content for content in contents if isinstance(content, str))


def _mark(items: Sequence[Json]) -> bytes:
    ids = [fields.text(item, "call_id") or "" for item in items if "call_id" in item]
    return mark(_text(items), ids)
