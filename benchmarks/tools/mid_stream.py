"""A tool that starts while the model still writes, against one that waits for the end: what does that save?

The model calls a search, then goes on and writes a long note, with a tool that takes no time. In the other arm the
search is declared to change the world, and so is not started before the model has said all.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
from openai import AsyncOpenAI

from benchmarks.results import write
from gateway.cli.demo_fleet import prose
from gateway.core.sse import EventSplitter, data_of
from gateway.dialects.rounds import ObjectEnd
from tests.real.gateway import engine_url, gateway
from tests.real.parts import SMALL_MODEL_DIR
from tests.real.rewrites import scripted
from tests.real.scripts import Answer, Body, Call
from tests.real.shim import Exchange, shim
from tests.real.vllm import VllmOptions, vllm_server
from tool_runtime.types import Context, Effect, Json, Tool

TOOL_TIMES_S = (0.25, 1.0, 4.0)
NOTE_CHARS = 500
ARMS = {"in mid-stream": "read_only", "at the end": "destructive"}


def build(settings: Mapping[str, Any]) -> list[Tool]:
    """The tools as the gateway loads them."""

    async def search(arguments: Json, context: Context) -> str:
        await asyncio.sleep(float(arguments["query"].partition(" ")[0]))
        return "found"

    async def note(arguments: Json, context: Context) -> str:
        return "noted"

    schema = {"type": "object", "properties": {"query": {"type": "string"}}}
    return [
        Tool(name="search", description="Searches.", parameters=schema, run=search, effect=Effect.READ_ONLY),
        Tool(name="note", description="Takes a note.", parameters=schema, run=note, effect=Effect.READ_ONLY),
    ]


def script(body: Body, turn: int) -> Answer:
    """A search for what the user says, and a note; then the end."""
    query = str(body["messages"][-1]["content"])
    if turn:
        return Answer("Done.")
    return Answer("", (Call("search", {"query": query}), Call("note", {"query": prose("note", NOTE_CHARS)})))


@dataclass(frozen=True)
class AnswerTimes:
    """One answer of two rounds. Times of the engine alone, which on two cores vary, are in neither."""

    remaining_s: float
    """From the end of the search's arguments to the end of the model's turn."""
    gap_s: float
    """From there to the next model call."""


async def measure(repeats: int, results: Path | None) -> None:
    """Arms in turn, so that both see the same machine."""
    runs: dict[float, dict[str, list[AnswerTimes]]] = {
        tool_s: {arm: [] for arm in ARMS} for tool_s in TOOL_TIMES_S
    }
    async with vllm_server(VllmOptions(SMALL_MODEL_DIR)) as vllm, shim(vllm.base_url, scripted(script)) as scripts:
        for arm, effect in ARMS.items():
            use = [
                {"use": f"{__name__}:build", "names": ["search"], "effect": effect},
                {"use": f"{__name__}:build", "names": ["note"]},
            ]
            async with gateway(
                engine_url("vllm", scripts.base_url), probing__hints=False, tools__use=use
            ) as front:
                for repeat in range(-1, repeats):
                    for tool_s in TOOL_TIMES_S:
                        times = await _ask(
                            front.base_url, vllm.model, f"{tool_s} {arm} {repeat}", scripts.exchanges
                        )
                        print(f"{arm} {tool_s}: {times}", file=sys.stderr, flush=True)
                        if repeat >= 0:  # the first one is cold
                            runs[tool_s][arm].append(times)
    text = table(runs)
    print(text)
    write(results, "mid-stream", text, {str(tool_s): arms for tool_s, arms in runs.items()})


async def _ask(base_url: str, model: str, query: str, exchanges: list[Exchange]) -> AnswerTimes:
    exchanges.clear()
    async with AsyncOpenAI(base_url=f"{base_url}/v1", api_key="x", max_retries=0, timeout=300) as client:
        messages: Any = [{"role": "user", "content": query}]
        stream = await client.chat.completions.create(model=model, messages=messages, max_tokens=1000, stream=True)
        async for _ in stream:
            pass
    first, second = (exchange for exchange in exchanges if exchange.received.path.startswith("/v1/chat/"))
    ended_s = first.chunks[-1][0]
    return AnswerTimes(ended_s - _complete_s(first), second.started_s - ended_s)


def _complete_s(exchange: Exchange) -> float:
    """When the arguments of the first call were complete."""
    splitter, end = EventSplitter(), ObjectEnd()
    for at, chunk in exchange.chunks:
        for event in splitter.feed(chunk):
            if (data := data_of(event)) is None or data == b"[DONE]":
                continue
            for choice in orjson.loads(data)["choices"]:
                for call in choice["delta"].get("tool_calls") or ():
                    if call["index"] == 0 and end.feed(call["function"].get("arguments") or ""):
                        return at
    raise LookupError("the model did not call the search")


def table(runs: dict[float, dict[str, list[AnswerTimes]]]) -> str:
    lines = [
        "The gap is the time from the end of one model call to the start of the next one.",
        "",
        "| tool s | model goes on for s | gap s, tool at the end | in mid-stream | saved s | of the possible |",
        "|---" * 6 + "|",
    ]
    for tool_s, arms in runs.items():
        late_s = statistics.median(ran.gap_s for ran in arms["at the end"])
        early = arms["in mid-stream"]
        early_s, remaining_s = (
            statistics.mean(getattr(r, name) for r in early) for name in ("gap_s", "remaining_s")
        )
        saved_s = late_s - early_s
        possible_s = statistics.mean(min(tool_s, ran.remaining_s) for ran in early)
        lines.append(
            f"| {tool_s} | {remaining_s:.2f} | {late_s:.2f} | {early_s:.2f} | {saved_s:.2f} |"
            f" {saved_s / possible_s:.0%} |"
        )
    return "\n".join(lines)
