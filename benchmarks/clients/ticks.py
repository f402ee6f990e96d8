"""A tick: every agent of a group makes one model call at once, and all wait for the last. What do 4 and 16 cost?

    python -m benchmarks.clients.ticks [--rounds 5] [--engine embedded]

With the official SDK and nothing but `asyncio.gather`: straight at the engine, and through the gateway. On a real
vLLM on the CPU, whose time is also that of everything else on the machine; on the embedded engine, whose time is a
model's, what is left is what the gateway adds.

The agents of a group are siblings: they share their instructions, then each has its own task. The first tick of a
group finds nothing of it in the cache; each later one adds the agent's last answer and an observation. Groups of
all sizes take turns in each round. A ratio is that of one round: a tick of n agents against a tick of one by the
same way in the same round.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import openai

from benchmarks.results import command_parser, write
from gateway.cli.demo_fleet import prose
from gateway.cli.demo_process import command
from tests.real.gateway import engine_url, gateway
from tests.real.vllm import VllmOptions, vllm_server

SIZES = (1, 4, 16)
BARS = {4: 1.5, 16: 3.0}
SHARED_CHARS, OWN_CHARS = 4_000, 300
OUTPUT_TOKENS = 96
LATER_TICKS = 3
WAYS = ("straight", "gateway")
EMBEDDED = ["engine", "--port", "0", "--set", "embedded.slots=64"]
FIRST, LATER = "first", "later"


@dataclass(frozen=True)
class TickTiming:
    """One measurement."""

    round: int
    way: str
    size: int
    kind: str
    seconds: float


async def group(client: openai.AsyncOpenAI, model: str, name: str, size: int) -> list[float]:
    """Seconds of each tick of a new group; the first one is cold."""
    opening = {"role": "system", "content": prose(name, SHARED_CHARS)}
    histories: list[list[Any]] = [[opening, _observed(f"{name}/{agent}/0")] for agent in range(size)]
    seconds = []
    for tick in range(1 + LATER_TICKS):
        began = time.perf_counter()
        answers = await asyncio.gather(*(_answer(client, model, history) for history in histories))
        seconds.append(time.perf_counter() - began)
        for agent, answer in enumerate(answers):
            said = {"role": "assistant", "content": answer}
            histories[agent] += [said, _observed(f"{name}/{agent}/{tick + 1}")]
    return seconds


async def _answer(client: openai.AsyncOpenAI, model: str, messages: list[Any]) -> str:
    done = await client.chat.completions.create(
        model=model, messages=messages, max_tokens=OUTPUT_TOKENS, temperature=0, extra_body={"ignore_eos": True}
    )
    return done.choices[0].message.content or ""


def _observed(name: str) -> dict[str, str]:
    return {"role": "user", "content": prose(name, OWN_CHARS)}


@asynccontextmanager
async def stack(engine: str) -> AsyncIterator[tuple[dict[str, str], str]]:
    """Base URLs of both ways, and the model that is served there."""
    if engine == "embedded":
        async with command(EMBEDDED) as url:
            serve = ["serve", "--port", "0", "--engine", engine_url("vllm", url), "--set", "logging.level=warning"]
            async with command(serve) as front_url:
                yield {"straight": url, "gateway": front_url}, "embedded"
        return
    async with vllm_server(VllmOptions()) as vllm, gateway(engine_url("vllm", vllm.base_url)) as front:
        yield {"straight": vllm.base_url, "gateway": front.base_url}, "tiny"


async def measure(engine: str, num_rounds: int) -> list[TickTiming]:
    timings: list[TickTiming] = []
    async with stack(engine) as (urls, model):
        clients = {way: openai.AsyncOpenAI(base_url=f"{urls[way]}/v1", api_key="none") for way in WAYS}
        for number in range(-1, num_rounds):  # the one before the first compiles and connects
            for size in SIZES:
                for way in WAYS if number % 2 else reversed(WAYS):
                    first_s, *later_s = await group(clients[way], model, f"{number}/{way}/{size}", size)
                    ticks = [(FIRST, first_s), (LATER, statistics.median(later_s))]
                    timings += [
                        TickTiming(number, way, size, kind, seconds) for kind, seconds in ticks if number >= 0
                    ]
                    print(
                        number, way, size, *(f"{kind} {s:.2f} s" for kind, s in ticks), file=sys.stderr, flush=True
                    )
        for client in clients.values():
            await client.close()
    return timings


def table(ticks: Sequence[TickTiming]) -> str:
    seconds = {(tick.round, tick.way, tick.size, tick.kind): tick.seconds for tick in ticks}
    rounds = sorted({tick.round for tick in ticks})
    lines = [
        "| tick | agents | straight, s | of one | gateway, s | of one | lowest to highest | bar |",
        "|---" * 8 + "|",
    ]
    for kind in (FIRST, LATER):
        for size in SIZES:
            cells, ratios = [], [0.0]
            for way in WAYS:
                ratios = [seconds[r, way, size, kind] / seconds[r, way, 1, kind] for r in rounds]
                middle_s = statistics.median(seconds[r, way, size, kind] for r in rounds)
                cells += [f"{middle_s:.2f}", f"{statistics.median(ratios):.2f}x"]
            span = f"{min(ratios):.2f} to {max(ratios):.2f}"
            bar = f"{BARS[size]}x" if size in BARS else ""
            lines.append(f"| {kind} | {size} | {' | '.join(cells)} | {span} | {bar} |")
    return "\n".join(lines)


async def main(arguments: argparse.Namespace) -> None:
    ticks = await measure(arguments.engine, arguments.rounds)
    text = (
        f"Medians of {arguments.rounds} rounds; the lowest and highest ratio are the gateway's.\n\n{table(ticks)}"
    )
    print(text)
    name = "ticks" if arguments.engine == "vllm" else f"ticks-{arguments.engine}"
    write(arguments.results, name, text, ticks)


def parse() -> argparse.Namespace:
    parser = command_parser(__doc__, __file__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--engine", choices=("vllm", "embedded"), default="vllm")
    return parser.parse_args()


if __name__ == "__main__":
    asyncio.run(main(parse()))
