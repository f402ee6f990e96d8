"""`/v1/messages`, Anthropic's format."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import orjson

from gateway.core import fields, sse
from gateway.core.errors import Failure
from gateway.core.fields import Json
from gateway.core.reply import MOST_CALLS, Reply, TextBuffer, ToolCall
from gateway.core.slices import Steps
from gateway.dialects import base, canonical
from gateway.dialects.base import Dialect, Script
from gateway.dialects.canonical import ToolList
from gateway.dialects.description import OBJECTS, CallDescription, nullable
from gateway.dialects.rounds import Completed, End, IsHidden, PublicAnswer, Round, ToolFormat, added, mark
from policies.recognition.chains import Texts

if TYPE_CHECKING:
    from tool_runtime.types import Result, Tool

_SHAPES = base.COMMON | {"messages": base.LIST, "tools": base.LIST, "system": base.TEXT_OR_LIST}
_VOLATILE_SYSTEM = "x-anthropic-billing-header:"
"""Claude Code's first system block, new in every request; engines leave it out too (vLLM pull request 36829)."""
_TYPE_OF_STATUS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    529: "overloaded_error",
}


class Messages(Dialect):
    name = "messages"
    description = CallDescription(
        "A turn, as a message",
        {
            "messages": OBJECTS,
            "tools": nullable(OBJECTS),
            "system": nullable({"type": ["string", "array"]}),
        },
        ["messages"],
        {"max_tokens": 16, "messages": [{"role": "user", "content": "Hello"}]},
        failure="Failed",
    )
    is_conversation = True
    history_key = "messages"
    is_item_a_message = True
    system_keys = ("system",)
    always_sends_usage = True
    preambles = frozenset(("message_start", "ping"))
    knows_overload = True

    def check(self, body: Json) -> Failure | None:
        return base.wrong_field(body, _SHAPES, required="messages", objects_in=("messages", "tools"))

    def script(self, body: Json, tools: ToolList | None = None) -> Script:
        if tools is None:
            tools = canonical.tools(self.definitions(body))
        return _script(tools, canonical.system([_system(body.get("system"))]), body)

    def script_in_steps(self, body: Json, tools: ToolList) -> Steps[Script]:
        yield
        system = yield from canonical.system_in_steps([_system(body.get("system"))])
        return _script(tools, system, body)

    def read(self, event: Json, reply: Reply) -> None:
        kind = event.get("type")
        if kind == "content_block_delta":
            _read_delta(event, reply)
        elif kind == "content_block_start":
            _read_block(fields.integer(event, "index") or 0, fields.obj(event, "content_block"), reply)
        elif kind == "message_start":
            reply.model = fields.text(fields.obj(event, "message"), "model") or reply.model
        elif kind == "message_delta":
            reply.finish_reason = fields.text(fields.obj(event, "delta"), "stop_reason") or reply.finish_reason
        elif kind == "message_stop":
            reply.is_complete = True
        elif kind == "message":
            reply.model = fields.text(event, "model") or reply.model
            for index, block in enumerate(canonical.objects(event.get("content"))):
                _read_block(index, block, reply)
            reply.finish_reason = fields.text(event, "stop_reason")
            reply.is_complete = reply.finish_reason is not None

    def opening(self, answer_id: str, model: str, created_at: int, body: Json) -> Pings:
        return Pings()

    def tool_format(self) -> MessagesTools:
        return MessagesTools()

    def is_error_body(self, body: Json) -> bool:
        return fields.text(fields.obj(body, "error"), "message") is not None and body.get("type") == "error"

    def error_body(self, failure: Failure) -> bytes:
        default = "api_error" if failure.status >= 500 else "invalid_request_error"
        error = {"type": _TYPE_OF_STATUS.get(failure.status, default), "message": failure.message}
        return orjson.dumps({"type": "error", "error": error})

    def error_event(self, failure: Failure) -> bytes:
        return sse.event(self.error_body(failure), "error")


class CountTokens(Messages):
    """`/v1/messages/count_tokens`: the same request, but no turn of a session."""

    is_conversation = False
    description = replace(Messages.description, summary="Tokens of a message", streams=False)


class Pings:
    """An `Opening` that begins nothing: a ping may come before `message_start`, which stays the engine's."""

    def keep_alive(self) -> bytes:
        return sse.event(b'{"type":"ping"}', "ping")

    def joined(self, event: bytes, parsed: Json) -> bytes:
        return event

    def error_event(self, failure: Failure) -> bytes:
        return Messages().error_event(failure)


# ---- the messages of a request, in canonical form


def _system(value: Any) -> Any:
    if not isinstance(value, list):
        return value
    return [part for part in value if not (canonical.text_of(part) or "").startswith(_VOLATILE_SYSTEM)]


def _script(tools: ToolList, system: bytes, body: Json) -> Script:
    messages = canonical.objects(body.get("messages"))
    return Script(
        tools=tools.texts,
        system=system,
        messages=Texts(
            len(messages),
            lambda at: _message(messages[at]),
            lambda at: _message_in_steps(messages[at]),
            lambda at: canonical.beginning(_role(messages[at])),
        ),
        offers_tools=bool(tools.texts),
        tool_names=tools.names,
    )


def _role(message: Json) -> str:
    return fields.text(message, "role") or ""


def _message(message: Json) -> bytes:
    content = message.get("content")
    if isinstance(content, list):
        content = canonical.content([*_canonical_blocks(content)])
    return canonical.message(_role(message), {"content": content})


def _message_in_steps(message: Json) -> Steps[bytes]:
    content = message.get("content")
    if isinstance(content, list):
        content = [*_canonical_blocks(content)]
        yield
        content = yield from canonical.content_in_steps(content)
    return (yield from canonical.message_in_steps(_role(message), {"content": content}))


def _canonical_blocks(content: list[Any]) -> Iterator[Any]:
    """Yield blocks with their content folded. The ids of tool calls stay; a thought's signature goes."""
    for block in content:
        kind = block.get("type") if isinstance(block, dict) else None
        if kind == "tool_use":
            yield {
                "type": kind,
                "call_id": block.get("id"),
                "name": block.get("name"),
                "input": block.get("input"),
            }
        elif kind == "tool_result":
            yield canonical.clean(block) | {"content": canonical.content(block.get("content"))}
        elif kind == "thinking":
            yield {"type": kind, "thinking": block.get("thinking")}
        else:
            yield block


# ---- the blocks of an answer


def _read_block(index: int, block: Json, reply: Reply) -> None:
    """Read a block that starts in a stream, mostly empty, or a whole one."""
    kind = block.get("type")
    if kind == "text":
        reply.written.append(fields.text(block, "text") or "")
    elif kind == "tool_use" and len(reply.tool_calls) < MOST_CALLS:
        reply.tool_calls.put_piece(index, *_call_of(block))


def _read_delta(event: Json, reply: Reply) -> None:
    delta = fields.obj(event, "delta")
    kind = delta.get("type")
    if kind == "text_delta":
        reply.written.append(fields.text(delta, "text") or "")
    elif kind == "input_json_delta":
        call = reply.tool_calls.at(fields.integer(event, "index") or 0)
        if call is not None:
            call.written.append(fields.text(delta, "partial_json") or "")
    elif kind == "thinking_delta":
        reply.num_other_chars += len(fields.text(delta, "thinking") or "")


def _call_of(block: Json) -> tuple[str | None, str | None, str]:
    """Return id, name and arguments of a tool call; a stream brings the arguments later."""
    given = fields.obj(block, "input")
    arguments = fields.written(given).decode() if given else ""
    return fields.text(block, "id"), fields.text(block, "name"), arguments


# ---- tools of the gateway: one public answer over several model calls

_CUT_SHORT = ("max_tokens", "refusal", "model_context_window_exceeded")
_PIECES = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}
"""Key of a text by the type of its delta: the same in the delta and in the block."""


class MessagesTools(ToolFormat):
    def definition(self, tool: Tool) -> Json:
        return {"name": tool.name, "description": tool.description, "input_schema": tool.parameters}

    def choice(self, body: Json, is_hidden: IsHidden) -> tuple[bool, Any]:
        choice = fields.obj(body, "tool_choice")
        named = fields.text(choice, "name")
        return choice.get("type") == "any" or (named is not None and is_hidden(named)), {"type": "auto"}

    def no_choice(self) -> Any:
        return {"type": "none"}

    def results(self, results: Sequence[Result]) -> list[Json]:
        """Put all results into one message: Anthropic wants them in the one that follows the calls."""
        blocks = [
            {"type": "tool_result", "tool_use_id": result.call.id, "content": result.text}
            | ({} if result.is_ok else {"is_error": True})
            for result in results
        ]
        return [{"role": "user", "content": blocks}] if blocks else []

    def answers(self, history: Sequence[Json]) -> Iterator[tuple[int, int, bytes]]:
        for at, message in enumerate(history):
            if message.get("role") == "assistant":
                yield at, at + 1, _mark(_blocks(message))

    def restored(self, history: Sequence[Json], end: int, said: list[Json]) -> tuple[int, list[Json]]:
        """Put hidden results into the message in which the client sends its own."""
        if said[-1]["role"] != "user" or end >= len(history) or history[end].get("role") != "user":
            return end, said
        theirs = history[end]
        return end + 1, [*said[:-1], {**theirs, "content": [*said[-1]["content"], *_blocks(theirs)]}]

    def earlier_calls(self, history: Sequence[Json], name: str) -> tuple[str, ...]:
        blocks = (block for message in history for block in _blocks(message))
        calls = (block for block in blocks if block.get("type") == "tool_use" and block.get("name") == name)
        return tuple(fields.written(call.get("input")).decode() for call in calls)

    def new_answer(self, is_hidden: IsHidden, completed: Completed) -> MessagesAnswer:
        return MessagesAnswer(is_hidden, completed)


class MessagesAnswer(PublicAnswer):
    def __init__(self, is_hidden: IsHidden, completed: Completed) -> None:
        super().__init__(is_hidden, completed)
        self._id = ""
        self.blocks: list[Json] = []
        """The blocks that the client was given, of the rounds that are over."""

    @property
    def id(self) -> str:
        return self._id

    @property
    def calls(self) -> list[ToolCall]:
        uses = (block for block in self.blocks if block.get("type") == "tool_use")
        return [ToolCall(use["id"], use["name"], fields.written(use["input"]).decode()) for use in uses]

    @property
    def text(self) -> str:
        return _text(self.blocks)

    @property
    def mark(self) -> bytes:
        return _mark(self.blocks)

    def round(self, number: int, must_end: bool) -> MessagesRound:
        return MessagesRound(self, number, must_end)

    def close_round(self, round_: Round) -> None:
        assert isinstance(round_, MessagesRound)
        super().close_round(round_)
        self.blocks += round_.given()

    def body(self, last: bytes) -> bytes:
        parsed: Json = orjson.loads(last)
        parsed |= {"id": self._id, "content": self.blocks, "usage": self.usage}
        if parsed.get("stop_reason") == "tool_use" and not self.calls:
            parsed["stop_reason"] = "end_turn"
        return fields.written(parsed)

    def keep_alive(self, answer_id: str, model: str, created_at: int, body: Json) -> bytes:
        return Pings().keep_alive()

    def error_event(self, failure: Failure) -> bytes:
        return Pings().error_event(failure)

    def learn_name(self, message: Json) -> None:
        """Read the id that an engine gives the answer."""
        self._id = fields.text(message, "id") or self._id


class MessagesRound(Round):
    """Blocks come one after the other, each with its index."""

    def __init__(self, answer: MessagesAnswer, number: int, must_end: bool) -> None:
        super().__init__(answer, number, must_end)
        self._answer = answer
        self._blocks: dict[int, Json] = {}
        self._pieces: dict[int, dict[str, TextBuffer]] = {}
        """Pieces of a block that follow its start, by key."""

    def said(self) -> list[Json]:
        blocks = self.given() if self.end is End.FINAL else [self._whole(index) for index in self._blocks]
        return [{"role": "assistant", "content": blocks}]

    def given(self) -> list[Json]:
        """Return the blocks that the client sees."""
        return [self._whole(index) for index in self._blocks if not self.is_hidden(index)]

    def read(self, body: Json) -> None:
        self._read_message(body)
        for index, block in enumerate(canonical.objects(body.get("content"))):
            self._read_start(index, block)
        self.ended(body.get("stop_reason") in _CUT_SHORT)

    def shown(self, event: bytes, parsed: Json | None) -> bytes:
        kind = parsed.get("type") if parsed is not None else None
        if parsed is None or kind == "ping":
            return event
        if kind == "message_start":
            self._read_message(fields.obj(parsed, "message"))
            return event if self.number == 1 else b""
        if kind in ("message_delta", "message_stop"):
            return self._closing(event, parsed)
        index = fields.integer(parsed, "index")
        if index is None:
            return event
        if kind == "content_block_start":
            self._read_start(index, fields.obj(parsed, "content_block"))
        elif kind == "content_block_delta":
            self._read_delta(index, fields.obj(parsed, "delta"))
        elif kind == "content_block_stop":
            self.calls.close(index)
        return b"" if self.is_hidden(index) else self._renumbered(event, parsed, index)

    def _read_message(self, message: Json) -> None:
        if self.number == 1:
            self._answer.learn_name(message)
        self.usage = {**self.usage, **fields.obj(message, "usage")}

    def _read_start(self, index: int, block: Json) -> None:
        is_new = index not in self._blocks
        self._blocks[index] = block
        self._pieces.pop(index, None)
        if block.get("type") == "tool_use":
            self.calls.put_piece(index, *_call_of(block))
        if is_new:
            self.place_item(index)

    def _read_delta(self, index: int, delta: Json) -> None:
        if index not in self._blocks:
            self._read_start(index, {})
        kind = fields.text(delta, "type") or ""
        if (key := _PIECES.get(kind)) is not None:
            pieces = self._pieces.setdefault(index, {})
            if key not in pieces:
                pieces[key] = TextBuffer(fields.text(self._blocks[index], key) or "")
            pieces[key].append(fields.text(delta, key) or "")
        elif kind == "input_json_delta" and self.calls.at(index) is not None:
            self.calls.put_piece(index, None, None, fields.text(delta, "partial_json") or "")

    def _closing(self, event: bytes, parsed: Json) -> bytes:
        delta = fields.obj(parsed, "delta")
        reason = fields.text(delta, "stop_reason")
        self.usage = {**self.usage, **fields.obj(parsed, "usage")}
        if reason is not None:
            self.ended(reason in _CUT_SHORT)
        if self.end is End.INNER:
            return b""
        is_false = reason == "tool_use" and not self.calls.shown
        if parsed["type"] == "message_stop" or (self.number == 1 and not is_false):
            return event
        changed = {"usage": added(self._answer.usage, self.usage)}
        if is_false:
            changed["delta"] = {**delta, "stop_reason": "end_turn"}
        return sse.event(fields.written(parsed | changed), "message_delta")

    def _renumbered(self, event: bytes, parsed: Json, index: int) -> bytes:
        place = len(self._answer.blocks) + self.num_shown_before(index)
        return event if place == index else sse.event(fields.written(parsed | {"index": place}), parsed["type"])

    def _whole(self, index: int) -> Json:
        use = self.calls.at(index)
        block = self._blocks[index] | {key: str(text) for key, text in self._pieces.get(index, {}).items()}
        return block if use is None else {**block, "id": use.id, "input": orjson.loads(use.for_history())}


def _blocks(message: Json) -> list[Json]:
    content = message.get("content")
    return [{"type": "text", "text": content}] if isinstance(content, str) else canonical.objects(content)


def _text(blocks: Sequence[Json]) -> str:
    return "".join(fields.text(block, "text") or "" for block in blocks if block.get("type") == "text")


def _mark(blocks: Sequence[Json]) -> bytes:
    ids = [fields.text(block, "id") or "" for block in blocks if block.get("type") == "tool_use"]
    return mark(_text(blocks), ids)
