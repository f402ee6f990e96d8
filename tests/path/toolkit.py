"""Tools for a gateway under test, and streams in which a model calls them.

A test makes a Bench, names it in the settings, and looks at it afterwards.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson
from aiohttp import web

from tests.path.fake_engine import DONE, Call, Play
from tool_runtime.types import Context, Effect, Json, Tool

_BENCHES: dict[int, Bench] = {}
_NUMBERS = itertools.count()
USAGE = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}


@dataclass(eq=False)
class Bench:
    """What the tools of one test did. `search` answers at once unless `holds`; `fail` raises; `write` is
    destructive."""

    holds: asyncio.Event = field(default_factory=asyncio.Event)
    started: asyncio.Event = field(default_factory=asyncio.Event)
    ran: list[tuple[str, Json]] = field(default_factory=list)
    num_running: int = 0

    def __post_init__(self) -> None:
        self.number = next(_NUMBERS)
        self.holds.set()
        _BENCHES[self.number] = self

    def settings(self, **rules: Any) -> Json:
        """The section `tools`; `rules` of its one entry, and by `rounds` the bound on rounds."""
        rounds = {"max_rounds": rules.pop("rounds")} if "rounds" in rules else {}
        entry = {"use": "tests.path.toolkit:build", "options": {"bench": self.number}} | rules
        return {"use": [entry]} | rounds

    async def run(self, name: str, arguments: Json) -> str:
        self.ran.append((name, arguments))
        self.num_running += 1
        self.started.set()
        try:
            await self.holds.wait()
        finally:
            self.num_running -= 1
        if name == "fail":
            raise RuntimeError("it broke")
        return f"{name} found {arguments.get('q')}"


def build(settings: Mapping[str, Any]) -> list[Tool]:
    """As configuration loads it."""
    bench = _BENCHES[settings["bench"]]
    return [
        _tool(bench, "search", Effect.READ_ONLY),
        _tool(bench, "fail", Effect.READ_ONLY),
        _tool(bench, "write", Effect.DESTRUCTIVE),
    ]


def _tool(bench: Bench, name: str, effect: Effect) -> Tool:
    async def run(arguments: Json, context: Context) -> str:
        return await bench.run(name, arguments)

    schema = {"type": "object", "properties": {"q": {"type": "string"}}}
    return Tool(name=name, description=f"A {name}.", parameters=schema, run=run, effect=effect)


# Answers of a chat engine.


@dataclass(frozen=True)
class Says:
    """One model turn: text, then calls `(id, name, arguments)`."""

    text: str = ""
    calls: tuple[tuple[str, str, str], ...] = ()
    finish: str = ""
    id: str = "chatcmpl-1"
    thinks: str = ""

    @property
    def reason(self) -> str:
        return self.finish or ("tool_calls" if self.calls else "stop")

    def events(self, piece: int = 4) -> list[bytes]:
        """As vLLM streams it, arguments in pieces of that many characters."""
        deltas: list[Json] = [{"role": "assistant", "content": ""}]
        deltas += [{"reasoning_content": part} for part in _pieces(self.thinks, piece)]
        deltas += [{"content": part} for part in _pieces(self.text, piece)]
        for index, (id_, name, arguments) in enumerate(self.calls):
            head = {"index": index, "id": id_, "type": "function", "function": {"name": name, "arguments": ""}}
            deltas.append({"tool_calls": [head]})
            deltas += [
                {"tool_calls": [{"index": index, "function": {"arguments": part}}]}
                for part in _pieces(arguments, piece)
            ]
        events = [self._event(choices=[_choice(delta)]) for delta in deltas]
        return [*events, self._event(choices=[_choice({}, self.reason)])]

    def usage(self) -> bytes:
        return self._event(choices=[], usage=USAGE)

    def body(self) -> Json:
        message: Json = {"role": "assistant", "content": self.text or None}
        if self.calls:
            message["tool_calls"] = [
                {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}
                for id_, name, arguments in self.calls
            ]
        choice = {"index": 0, "message": message, "finish_reason": self.reason}
        return self._frame("chat.completion") | {"choices": [choice], "usage": USAGE}

    def _event(self, **fields: Any) -> bytes:
        return b"data: " + orjson.dumps(self._frame("chat.completion.chunk") | fields) + b"\n\n"

    def _frame(self, kind: str) -> Json:
        return {"id": self.id, "object": kind, "created": int(self.id[-1:]), "model": "m"}


def says(turn: Says, piece: int = 4, step: int = 0) -> Play:
    """Streamed or not, as it was asked; `step`: bytes per write, 0 for whole events."""

    async def play(call: Call) -> web.StreamResponse:
        if not call.body.get("stream"):
            return await call.reply(200, turn.body())
        asked = (call.body.get("stream_options") or {}).get("include_usage")
        events = [*turn.events(piece), *([turn.usage()] if asked else []), DONE]
        await call.start()
        for part in _cut(b"".join(events), step) if step else events:
            await call.write(part)
        return await call.end()

    return play


def deltas(body: bytes) -> list[Json]:
    """Data of a stream's events, less the end marker."""
    events = [event.removeprefix(b"data: ") for event in body.split(b"\n\n") if event.strip()]
    return [orjson.loads(event) for event in events if event != b"[DONE]"]


def _choice(delta: Json, finish: str | None = None) -> Json:
    return {"index": 0, "delta": delta, "finish_reason": finish}


def _pieces(text: str, size: int) -> Iterable[str]:
    return (text[at : at + size] for at in range(0, len(text), size))


def _cut(raw: bytes, size: int) -> Iterable[bytes]:
    return (raw[at : at + size] for at in range(0, len(raw), size))
