"""Rounds of `/v1/messages` as one answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import orjson

from gateway.core import fields, sse
from gateway.core.errors import Failure
from gateway.core.fields import Json
from gateway.core.reply import TextBuffer, ToolCall
from gateway.dialects import canonical
from gateway.dialects.messages import Pings
from gateway.dialects.rounds import End, Round, RoundTerms, Spoken, added, mark
from tool_runtime.types import Result, Status, Tool

_CUT_SHORT = ("max_tokens", "refusal", "model_context_window_exceeded")
_PIECES = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}
"""Of a block: type of the delta -> key of both."""


class MessagesRounds:
    """The `Format`."""

    key = "messages"
    echoes_tools = False

    def takes_tools(self, body: Json) -> bool:
        return True

    def declared(self, body: Json) -> Iterator[str]:
        yield from canonical.tool_names(canonical.objects(body.get("tools")))

    def definition(self, tool: Tool) -> Json:
        return {"name": tool.name, "description": tool.description, "input_schema": tool.parameters}

    def choice(self, body: Json, ours: Callable[[str], bool]) -> tuple[bool, Any]:
        choice = fields.obj(body, "tool_choice")
        named = fields.text(choice, "name")
        return choice.get("type") == "any" or (named is not None and ours(named)), {"type": "auto"}

    def no_choice(self) -> Any:
        return {"type": "none"}

    def history(self, body: Json) -> list[Json]:
        return fields.items(body, self.key)

    def results(self, results: Sequence[Result]) -> list[Json]:
        """One message: all results of a turn have to be in the one that follows it."""
        blocks = [
            {"type": "tool_result", "tool_use_id": result.call.id, "content": result.text}
            | ({} if result.status is Status.OK else {"is_error": True})
            for result in results
        ]
        return [{"role": "user", "content": blocks}] if blocks else []

    def answers(self, history: Sequence[Json]) -> Iterator[tuple[int, int, bytes]]:
        for at, message in enumerate(history):
            if message.get("role") == "assistant":
                yield at, at + 1, _mark(_blocks(message))

    def restored(self, history: Sequence[Json], end: int, said: list[Json]) -> tuple[int, list[Json]]:
        """Our results go into the message in which the client sends its own."""
        if said[-1]["role"] != "user" or end >= len(history) or history[end].get("role") != "user":
            return end, said
        theirs = history[end]
        return end + 1, [*said[:-1], {**theirs, "content": [*said[-1]["content"], *_blocks(theirs)]}]

    def earlier_calls(self, history: Sequence[Json], name: str) -> tuple[str, ...]:
        blocks = (block for message in history for block in _blocks(message))
        calls = (block for block in blocks if block.get("type") == "tool_use" and block.get("name") == name)
        return tuple(orjson.dumps(call.get("input")).decode() for call in calls)

    def begin(self) -> MessagesAnswer:
        return MessagesAnswer()


class MessagesAnswer:
    """The `PublicAnswer`."""

    def __init__(self) -> None:
        self.id = ""
        self.blocks: list[Json] = []
        """That the client was given."""
        self.usage: Json = {}

    @property
    def calls(self) -> list[ToolCall]:
        uses = (block for block in self.blocks if block.get("type") == "tool_use")
        return [ToolCall(use["id"], use["name"], orjson.dumps(use["input"]).decode()) for use in uses]

    @property
    def text(self) -> str:
        return _text(self.blocks)

    @property
    def mark(self) -> bytes:
        return _mark(self.blocks)

    def round(self, terms: RoundTerms) -> MessagesRound:
        return MessagesRound(self, terms)

    def add(self, round_: Round) -> None:
        assert isinstance(round_, MessagesRound)
        self.usage = added(self.usage, round_.usage)
        self.blocks += round_.given()

    def body(self, last: bytes) -> bytes:
        parsed: Json = orjson.loads(last)
        parsed |= {"id": self.id, "content": self.blocks, "usage": self.usage}
        if parsed.get("stop_reason") == "tool_use" and not self.calls:
            parsed["stop_reason"] = "end_turn"
        return orjson.dumps(parsed)

    def keep_alive(self, answer_id: str, model: str, created_at: int, body: Json) -> bytes:
        return Pings().keep_alive()

    def error_event(self, failure: Failure) -> bytes:
        return Pings().error_event(failure)


class MessagesRound(Round):
    """One model call. Blocks come one after the other, each with its index."""

    def __init__(self, answer: MessagesAnswer, terms: RoundTerms) -> None:
        super().__init__(terms)
        self._answer = answer
        self._blocks: dict[int, Json] = {}
        self._pieces: dict[int, dict[str, TextBuffer]] = {}
        """Of a block: what came for it behind its start, by key."""
        self._uses: dict[int, Spoken] = {}

    def said(self) -> list[Json]:
        blocks = self.given() if self.end is End.FINAL else [self._whole(index) for index in self._blocks]
        return [{"role": "assistant", "content": blocks}]

    def given(self) -> list[Json]:
        """Blocks that the client sees."""
        return [self._whole(index) for index in self._blocks if not self._is_hidden(index)]

    def read(self, body: Json) -> None:
        self._begin(body)
        for index, block in enumerate(canonical.objects(body.get("content"))):
            self._start(index, block)
        self.ended(body.get("stop_reason") in _CUT_SHORT)

    def shown(self, event: bytes, parsed: Json | None) -> bytes:
        kind = parsed.get("type") if parsed is not None else None
        if parsed is None or kind == "ping":
            return event
        if kind == "message_start":
            self._begin(fields.obj(parsed, "message"))
            return event if self.number == 1 else b""
        if kind in ("message_delta", "message_stop"):
            return self._closing(event, parsed)
        index = fields.integer(parsed, "index")
        if index is None:
            return event
        if kind == "content_block_start":
            self._start(index, fields.obj(parsed, "content_block"))
        elif kind == "content_block_delta":
            self._go_on(index, fields.obj(parsed, "delta"))
        elif kind == "content_block_stop":
            self.calls.closed(index)
        return b"" if self._is_hidden(index) else self._renumbered(event, parsed, index)

    def _begin(self, message: Json) -> None:
        if self.number == 1:
            self._answer.id = fields.text(message, "id") or self._answer.id
        self.usage = {**self.usage, **fields.obj(message, "usage")}

    def _start(self, index: int, block: Json) -> None:
        is_new = index not in self._blocks
        self._blocks[index] = block
        self._pieces.pop(index, None)
        if block.get("type") == "tool_use":
            given = fields.obj(block, "input")
            arguments = orjson.dumps(given).decode() if given else ""
            id_, name = fields.text(block, "id"), fields.text(block, "name")
            self._uses[index] = self.calls.heard(index, id_, name, arguments)
        if is_new:
            self.begun(index, is_hidden=self._is_hidden(index))

    def _go_on(self, index: int, delta: Json) -> None:
        if index not in self._blocks:
            self._start(index, {})
        kind = fields.text(delta, "type") or ""
        if (key := _PIECES.get(kind)) is not None:
            pieces = self._pieces.setdefault(index, {})
            if key not in pieces:
                pieces[key] = TextBuffer(fields.text(self._blocks[index], key) or "")
            pieces[key].add(fields.text(delta, key) or "")
        elif kind == "input_json_delta" and index in self._uses:
            self.calls.heard(index, None, None, fields.text(delta, "partial_json") or "")

    def _closing(self, event: bytes, parsed: Json) -> bytes:
        delta = fields.obj(parsed, "delta")
        reason = fields.text(delta, "stop_reason")
        self.usage = {**self.usage, **fields.obj(parsed, "usage")}
        if reason is not None:
            self.ended(reason in _CUT_SHORT)
        if self.end is End.INNER:
            return b""
        is_false = reason == "tool_use" and not self.calls.clients
        if parsed["type"] == "message_stop" or (self.number == 1 and not is_false):
            return event
        changed = {"usage": added(self._answer.usage, self.usage)}
        if is_false:
            changed["delta"] = {**delta, "stop_reason": "end_turn"}
        return sse.event(orjson.dumps(parsed | changed), "message_delta")

    def _is_hidden(self, index: int) -> bool:
        return index in self._uses and self._uses[index].is_ours is not False

    def _renumbered(self, event: bytes, parsed: Json, index: int) -> bytes:
        place = len(self._answer.blocks) + self.num_shown_before(index)
        return event if place == index else sse.event(orjson.dumps(parsed | {"index": place}), parsed["type"])

    def _whole(self, index: int) -> Json:
        use = self._uses.get(index)
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
