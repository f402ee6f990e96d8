"""A fleet of agents straight at an engine and through the gateway, interleaved in one run.

    python -m benchmarks.fleet --engine dynamo --fleet below --seeds 1 2 3 4 5

Each arm gets a fresh engine. Times are the clients' own, waiting in the gateway included. Tokens are exact;
seconds are those of a simulated engine on a shared machine: read them as ratios.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import orjson

from benchmarks.results import write
from gateway.demo.agents import TIMEOUTS, Fleet, SessionRecord, prose
from gateway.demo.processes import command
from gateway.demo.report import quantile
from gateway.demo.run import BLOCK_TOKENS
from gateway.demo.workload import Shape, draw
from gateway.fields import integer, obj
from gateway.transport import Upstream
from gateway.transports.aiohttp_upstream import AiohttpUpstream
from tests.real.dynamo import DynamoOptions, dynamo_stack

FLEETS = {
    "below": (Shape(8), 8_192),
    "base": (Shape(40), 2_500),
    "ctl": (Shape(40), 8_192),
    "mixed": (Shape(40, (2, 4, 8)), 2_500),
}
"""Name -> (fleet, blocks of the engine); `below` is far from any cliff: 8 sessions where 40 fit."""


@dataclass(frozen=True, slots=True)
class Engine:
    base_url: str
    scheme: str
    model: str


@asynccontextmanager
async def embedded(num_blocks: int) -> AsyncIterator[Engine]:
    capacity = f"embedded.capacity_tokens={num_blocks * BLOCK_TOKENS}"
    async with command(["engine", "--port", "0", "--set", capacity, "--set", "embedded.slots=256"]) as base_url:
        yield Engine(base_url, "vllm", "embedded")


@asynccontextmanager
async def dynamo(num_blocks: int) -> AsyncIterator[Engine]:
    async with dynamo_stack(DynamoOptions(num_blocks=num_blocks)) as stack:
        yield Engine(stack.base_url, "dynamo", stack.model)


ENGINES = {"embedded": embedded, "dynamo": dynamo}
ARMS = {"straight": None, "passthrough": "policy.name=passthrough", "turns": "policy.name=turns"}


@dataclass(frozen=True, slots=True)
class Figures:
    """One arm at one seed."""

    makespan_s: float
    mean_session_s: float
    p99_session_s: float
    p99_ttft_first_s: float
    p99_ttft_later_s: float
    uncached_tokens: int
    prompt_tokens: int


def figures(sessions: list[SessionRecord]) -> Figures:
    turns = [turn for session in sessions for turn in session.turns]
    completions_s = [session.completion_s for session in sessions]
    ttft_s = {
        first: [t.first_token_at - t.wanted_at for t in turns if (t.index == 0) is first]
        for first in (True, False)
    }
    return Figures(
        makespan_s=max(turn.done_at for turn in turns),
        mean_session_s=statistics.mean(completions_s),
        p99_session_s=quantile(completions_s, 0.99),
        p99_ttft_first_s=quantile(ttft_s[True], 0.99),
        p99_ttft_later_s=quantile(ttft_s[False], 0.99),
        uncached_tokens=sum(turn.prompt_tokens - turn.cached_tokens for turn in turns),
        prompt_tokens=sum(turn.prompt_tokens for turn in turns),
    )


async def run_arm(engine_name: str, fleet: str, arm: str, seed: int) -> Figures:
    shape, num_blocks = FLEETS[fleet]
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(ENGINES[engine_name](num_blocks))
        upstream = AiohttpUpstream()
        stack.push_async_callback(upstream.close)
        chars_per_token = await measured_chars_per_token(upstream, engine)
        base_url = engine.base_url
        policy = ARMS[arm]
        if policy is not None:
            address = base_url.replace("http", engine.scheme, 1)
            base_url = await stack.enter_async_context(
                command(["serve", "--port", "0", "--engine", address, "--set", policy])
            )
        agents = Fleet(upstream, base_url, engine.model, _nothing, chars_per_token)
        return figures(await agents.run(draw(shape, seed)))


def _nothing() -> None:
    """Progress is printed per arm."""


async def measured_chars_per_token(upstream: Upstream, engine: Engine) -> float:
    """Of the filler text, by the engine's own tokenizer."""
    num_chars = 20_000
    message = {"role": "user", "content": prose("calibration", num_chars)}
    body = orjson.dumps({"model": engine.model, "messages": [message], "max_tokens": 1})
    headers = [("content-type", "application/json")]
    reply = await upstream.call("POST", f"{engine.base_url}/v1/chat/completions", headers, body, TIMEOUTS)
    usage = obj(orjson.loads(await reply.read(1_000_000)), "usage")
    return num_chars / (integer(usage, "prompt_tokens") or 1)


def table(results: dict[str, list[Figures]]) -> str:
    """One row per arm: medians over the seeds, and the median of the seed-by-seed ratios to straight."""
    columns: list[tuple[str, Callable[[Figures], float]]] = [
        ("makespan s", lambda f: f.makespan_s),
        ("mean session s", lambda f: f.mean_session_s),
        ("p99 session s", lambda f: f.p99_session_s),
        ("p99 TTFT turn 1 s", lambda f: f.p99_ttft_first_s),
        ("p99 TTFT later s", lambda f: f.p99_ttft_later_s),
        ("uncached tokens", lambda f: f.uncached_tokens),
    ]
    lines = ["| arm | " + " | ".join(name for name, _ in columns) + " |", "|---" * (len(columns) + 1) + "|"]
    straight = results["straight"]
    for arm, runs in results.items():
        cells = []
        for _, of in columns:
            ratios = [of(run) / of(base) for run, base in zip(runs, straight, strict=True)]
            median = statistics.median(map(of, runs))
            shown = f"{median:,.0f}" if median > 1_000 else f"{median:.2f}"
            spread = f"{statistics.median(ratios):.3f}x [{min(ratios):.3f}-{max(ratios):.3f}]"
            cells.append(shown if arm == "straight" else f"{shown} ({spread})")
        lines.append(f"| {arm} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


async def main(arguments: argparse.Namespace) -> None:
    results: dict[str, list[Figures]] = {arm: [] for arm in arguments.arms}
    for seed in arguments.seeds:
        order = arguments.arms if seed % 2 else arguments.arms[::-1]
        for arm in order:
            found = await run_arm(arguments.engine, arguments.fleet, arm, seed)
            results[arm].append(found)
            print(
                f"seed {seed} {arm}: makespan {found.makespan_s:.2f} s, mean {found.mean_session_s:.2f} s, "
                f"{found.uncached_tokens:,} uncached tokens",
                file=sys.stderr,
                flush=True,
            )
    text = table(results)
    print(text)
    write(f"fleet-{arguments.engine}-{arguments.fleet}", text, results, Path(arguments.results))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--engine", choices=ENGINES, default="embedded")
    parser.add_argument("--fleet", choices=FLEETS, default="base")
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=["straight", "turns"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--results", default="benchmarks/results", help="folder for the table and its data")
    return parser.parse_args()


if __name__ == "__main__":
    asyncio.run(main(parse()))
