"""`/v1/chat/completions`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import orjson

from gateway.core import fields, sse
from gateway.core.errors import Failure
from gateway.core.fields import Json
from gateway.core.reply import MOST_CALLS, CallT, Reply, ToolCall, ToolCalls
from gateway.core.slices import Steps
from gateway.dialects import base, canonical
from gateway.dialects.base import Chunks, Dialect, Script, chunks
from gateway.dialects.canonical import ToolList
from gateway.dialects.description import OBJECTS, CallDescription, nullable
from gateway.dialects.rounds import Completed, End, IsHidden, PublicAnswer, Round, ToolFormat, added, mark
from policies.recognition.chains import Texts

if TYPE_CHECKING:
    from tool_runtime.types import Result, Tool

_STEP_CALLS = 2_048
_SHAPES = base.COMMON | {"messages": base.LIST, "tools": base.LIST}


class Chat(Dialect):
    name = "chat"
    description = CallDescription(
        "A turn of a conversation",
        {"messages": OBJECTS, "tools": nullable(OBJECTS)},
        ["messages"],
        {"max_tokens": 16, "messages": [{"role": "user", "content": "Hello"}]},
    )
    is_conversation = True
    history_key = "messages"
    is_item_a_message = True
    bound_keys = ("max_completion_tokens", "max_tokens")
    may_omit_bound = True

    def check(self, body: Json) -> Failure | None:
        return base.wrong_field(body, _SHAPES, required="messages", objects_in=("messages", "tools"))

    def script(self, body: Json, tools: ToolList | None = None) -> Script:
        if tools is None:
            tools = canonical.tools(self.definitions(body))
        messages, num_system = _messages(body)
        system = canonical.system([message.get("content") for message in messages[:num_system]])
        return _script(tools, system, messages, num_system)

    def script_in_steps(self, body: Json, tools: ToolList) -> Steps[Script]:
        messages, num_system = _messages(body)
        yield
        system = yield from canonical.system_in_steps(message.get("content") for message in messages[:num_system])
        return _script(tools, system, messages, num_system)

    def definitions(self, body: Json) -> list[Json]:
        return canonical.objects(body.get("tools")) or canonical.objects(body.get("functions"))

    def read(self, event: Json, reply: Reply) -> None:
        """Of several choices (`n`) only the first is read."""
        if (model := event.get("model")) and isinstance(model, str):
            reply.model = model
        for choice in canonical.objects(event.get("choices")):
            message = choice.get("delta")
            if not message or not isinstance(message, dict):
                message = fields.obj(choice, "message")
            content = message.get("content")
            if choice.get("index", 0) != 0:
                reply.has_other_answers = True
                reply.num_other_chars += sum(len(text) for text in message.values() if isinstance(text, str))
                continue
            if isinstance(content, str):
                reply.written.append(content)
            if thought := fields.text(message, "reasoning_content") or fields.text(message, "reasoning"):
                reply.num_other_chars += len(thought)
            if calls := message.get("tool_calls"):
                for position, piece in enumerate(canonical.objects(calls)):
                    _put_call(reply.tool_calls, position, piece)
            finish = choice.get("finish_reason")
            if isinstance(finish, str):
                reply.finish_reason = finish
                reply.is_complete = True

    def opening(self, answer_id: str, model: str, created_at: int, body: Json) -> Chunks:
        # No role: the SDKs' accumulators concatenate strings, and the engine's first chunk brings one.
        choice = {"index": 0, "delta": {}, "finish_reason": None}
        return chunks(answer_id, model, created_at, "chat.completion.chunk", choice)

    def tool_format(self) -> ChatTools:
        return ChatTools()


# ---- the messages of a request, in canonical form


def _messages(body: Json) -> tuple[list[Json], int]:
    """Return the messages, and how many of them make the system text."""
    messages = canonical.objects(body.get("messages"))
    num_system = 0
    while num_system < len(messages) and messages[num_system].get("role") in ("system", "developer"):
        num_system += 1
    return messages, num_system


def _script(tools: ToolList, system: bytes, messages: list[Json], num_system: int) -> Script:
    # By place: names take thrice the time to pass.
    return Script(
        tools.texts,  # tools
        system,
        Texts(
            len(messages) - num_system,
            lambda at: _message(messages[num_system + at]),  # write
            lambda at: _message_in_steps(messages[num_system + at]),  # write_in_steps
            lambda at: canonical.beginning(_role(messages[num_system + at])),  # begin
        ),
        bool(tools.texts),  # offers_tools
        tools.names,  # tool_names
        num_system,
    )


def _role(message: Json) -> str:
    return fields.text(message, "role") or ""


def _message(message: Json) -> bytes:
    content = message.get("content")
    content = canonical.content(content) if isinstance(content, list) else content
    calls = [*_calls(message)] if "tool_calls" in message or "function_call" in message else None
    return canonical.message(_role(message), _members(message, content, calls))


def _message_in_steps(message: Json) -> Steps[bytes]:
    content = yield from canonical.content_in_steps(message.get("content"))
    calls = list[Json]()
    for call in _calls(message):
        calls.append(call)
        if len(calls) % _STEP_CALLS == 0:
            yield
    return (yield from canonical.message_in_steps(_role(message), _members(message, content, calls)))


def _members(message: Json, content: Any, calls: Sequence[Json] | None) -> Json:
    """Keep only what templates render, and the ids of tool calls: they separate otherwise equal siblings."""
    return {
        "name": message.get("name"),
        "content": content,
        "reasoning": message.get("reasoning_content") or message.get("reasoning"),
        "refusal": message.get("refusal"),
        "tool_calls": calls,
        "tool_call_id": message.get("tool_call_id"),
    }


def _calls(message: Json) -> Iterator[Json]:
    for call in canonical.objects(message.get("tool_calls")):
        function = fields.obj(call, "function") or fields.obj(call, "custom")
        yield _call(call.get("id"), function)
    legacy = fields.obj(message, "function_call")
    if legacy:
        yield _call(None, legacy)


def _call(id_: Any, function: Json) -> Json:
    arguments = canonical.arguments(function.get("arguments", function.get("input")))
    return {"id": id_, "name": function.get("name"), "arguments": arguments}


# ---- the tool calls of an answer


def _put_call(calls: ToolCalls[CallT], position: int, piece: Json) -> CallT | None:
    """Add a piece of a call at this position of a delta, or a whole call, to the others. None: it is nonsense."""
    index = fields.integer(piece, "index")
    if index is None:  # a whole message, or an engine that sends each call in one piece
        index = position
    if not 0 <= index < MOST_CALLS:
        return None
    function = fields.obj(piece, "function") or fields.obj(piece, "custom")
    arguments = fields.text(function, "arguments") or fields.text(function, "input") or ""
    return calls.put_piece(index, fields.text(piece, "id"), fields.text(function, "name"), arguments)


# ---- tools of the gateway: one public answer over several model calls

_TEXT_KEYS = ("content", "reasoning_content", "reasoning")
"""Texts of an assistant message that templates render."""
_CUT_SHORT = ("length", "content_filter")
_APART = "\n\n"
"""Between the texts of two rounds, which are paragraphs of one message."""


class ChatTools(ToolFormat):
    def takes_tools(self, body: Json) -> bool:
        return (fields.integer(body, "n") or 1) == 1

    def declared(self, body: Json) -> Iterator[str]:
        yield from super().declared(body)
        yield from canonical.tool_names(canonical.objects(body.get("functions")))

    def definition(self, tool: Tool) -> Json:
        function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
        return {"type": "function", "function": function}

    def choice(self, body: Json, is_hidden: IsHidden) -> tuple[bool, Any]:
        named = fields.text(fields.obj(fields.obj(body, "tool_choice"), "function"), "name")
        return body.get("tool_choice") == "required" or (named is not None and is_hidden(named)), "auto"

    def results(self, results: Sequence[Result]) -> list[Json]:
        return [{"role": "tool", "tool_call_id": result.call.id, "content": result.text} for result in results]

    def answers(self, history: Sequence[Json]) -> Iterator[tuple[int, int, bytes]]:
        for at, message in enumerate(history):
            if message.get("role") == "assistant":
                content = canonical.content(message.get("content"))
                ids = [fields.text(call, "id") or "" for call in canonical.objects(message.get("tool_calls"))]
                yield at, at + 1, mark(content if isinstance(content, str) else "", ids)

    def earlier_calls(self, history: Sequence[Json], name: str) -> tuple[str, ...]:
        calls = (call for message in history for call in canonical.objects(message.get("tool_calls")))
        functions = (fields.obj(call, "function") for call in calls)
        return tuple(fields.text(f, "arguments") or "" for f in functions if f.get("name") == name)

    def new_answer(self, is_hidden: IsHidden, completed: Completed) -> ChatAnswer:
        return ChatAnswer(is_hidden, completed)


class ChatAnswer(PublicAnswer):
    def __init__(self, is_hidden: IsHidden, completed: Completed) -> None:
        super().__init__(is_hidden, completed)
        self._id = ""
        self._model = ""
        self._created: Any = None
        self._calls: list[ToolCall] = []
        self.has_role = False
        self.shown_calls: list[Json] = []
        """The client's calls as the engine wrote them in a body."""
        self._texts: dict[str, list[str]] = {}
        """The texts that the client was given, by key of the message, in pieces."""

    @property
    def id(self) -> str:
        return self._id

    @property
    def calls(self) -> list[ToolCall]:
        return self._calls

    @property
    def text(self) -> str:
        return "".join(self._texts.get("content", ()))

    @property
    def mark(self) -> bytes:
        return mark(self.text, [call.id for call in self._calls])

    def round(self, number: int, must_end: bool) -> ChatRound:
        return ChatRound(self, number, must_end)

    def close_round(self, round_: Round) -> None:
        super().close_round(round_)
        self._calls = [ToolCall(call.id, call.name, call.arguments) for call in round_.calls.shown]

    def body(self, last: bytes) -> bytes:
        parsed: Json = orjson.loads(last)
        choice = next(iter(canonical.objects(parsed.get("choices"))), {})
        message = fields.obj(choice, "message") | {key: "".join(texts) for key, texts in self._texts.items()}
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
        return fields.written(parsed)

    def keep_alive(self, answer_id: str, model: str, created_at: int, body: Json) -> bytes:
        self._set_name(answer_id, model, created_at)
        return Chat().opening(self._id, self._model, self._created, body).keep_alive()

    def error_event(self, failure: Failure) -> bytes:
        return Chat().error_event(failure)

    def learn_name(self, parsed: Json) -> None:
        """Read the name that an engine gives the answer."""
        self._set_name(fields.text(parsed, "id"), fields.text(parsed, "model"), parsed.get("created"))

    def _set_name(self, id_: str | None, model: str | None, created: Any) -> None:
        """Set the name once: the first one stays."""
        self._id, self._model = self._id or id_ or "", self._model or model or ""
        self._created = created if self._created is None else self._created

    @property
    def name(self) -> Json:
        """Return what every chunk repeats."""
        return {"id": self._id, "created": self._created, "model": self._model}

    def give(self, key: str, text: str, is_first: bool) -> str:
        """Return a round's text as the client gets it, set apart from what an earlier round wrote."""
        given = self._texts.setdefault(key, [])
        if is_first and given and not given[-1][-1:].isspace() and not text[:1].isspace():
            text = _APART + text
        given.append(text)
        return text


class ChatRound(Round):
    def __init__(self, answer: ChatAnswer, number: int, must_end: bool) -> None:
        super().__init__(answer, number, must_end)
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
            for call in (self.calls.shown if self.end is End.FINAL else self.calls)
        ]
        return [message | ({"tool_calls": calls} if calls else {})]

    def read(self, body: Json) -> None:
        self._answer.learn_name(body)
        self.usage = fields.obj(body, "usage")
        for choice in canonical.objects(body.get("choices")):
            message = fields.obj(choice, "message")
            self._give_texts(message)
            self._answer.shown_calls = self._shown_calls(message)
            self.ended(choice.get("finish_reason") in _CUT_SHORT)

    def shown(self, event: bytes, parsed: Json | None) -> bytes:
        if parsed is None:
            return b"" if self.end is End.INNER else event
        self._answer.learn_name(parsed)
        usage = fields.obj(parsed, "usage")
        if usage:
            self.usage = usage
        choice = next(iter(canonical.objects(parsed.get("choices"))), None)
        if choice is None:
            if self.end is End.INNER:
                return b""
            return self._written(parsed) if self._is_rewritten(parsed) else event
        delta, reason = fields.obj(choice, "delta"), choice.get("finish_reason")
        texts, calls = self._give_texts(delta), self._shown_calls(delta)
        if reason is not None:
            self.ended(reason in _CUT_SHORT)
        if reason is None and not calls and not delta.get("tool_calls") and not self._is_rewritten(parsed):
            self._answer.has_role |= "role" in delta
            return event
        return self._rewritten(event, parsed, choice, texts, calls)

    def _rewritten(self, event: bytes, parsed: Json, choice: Json, texts: Json, calls: list[Json]) -> bytes:
        """Write an event of a later round, or one that has a call or the end in it."""
        given = fields.obj(choice, "delta")
        delta = {key: value for key, value in given.items() if key not in ("role", "tool_calls")} | texts
        if "role" in given and not self._answer.has_role:
            self._answer.has_role = True
            delta = {"role": given["role"], **delta}
        if calls:
            delta["tool_calls"] = calls
        reason = choice.get("finish_reason")
        if self.end is End.INNER:
            reason = None
        elif reason == "tool_calls" and not self.calls.shown:
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
        return sse.event(fields.written(parsed | changed))

    def _give_texts(self, delta: Json) -> Json:
        """Return the texts of a delta as the client gets them."""
        texts = {}
        for key in _TEXT_KEYS:
            if isinstance(text := delta.get(key), str) and text:
                said = self._said.setdefault(key, [])
                texts[key] = self._answer.give(key, text, not said)
                said.append(text)
        return texts

    def _shown_calls(self, delta: Json) -> list[Json]:
        """Return the client's calls of a delta, numbered as if there were no others."""
        shown = []
        for position, piece in enumerate(canonical.objects(delta.get("tool_calls"))):
            call = _put_call(self.calls, position, piece)
            if call is not None and call.is_hidden is False:
                shown.append(piece if "index" not in piece else piece | {"index": call.place})
        return shown
