"""Tools inside the gateway against a client loop that holds its slot while they run, on engines of other makers.

    python -m benchmarks.tools slow-tool --engine dynamo
    python -m benchmarks.tools research --engine dynamo
    python -m benchmarks.tools research --engine vllm
    python -m benchmarks.tools mid-stream

Both arms are the official openai SDK, ask the same of the engine (hashes say so), and have the same number of
model calls in flight. The models cannot choose: a shim in front of the engine makes them say what the script says,
by the engine's own sampling, parsers and cache.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from benchmarks.results import command_parser, write
from benchmarks.tools import agents, mid_stream
from benchmarks.tools.agents import ArmRun, ToolFleet
from tests.real.dynamo import DynamoOptions, dynamo_stack
from tests.real.gateway import engine_url, gateway
from tests.real.rewrites import replayed, scripted
from tests.real.shim import Shim, shim
from tests.real.vllm import VllmOptions, vllm_server

FLEETS = {
    "slow-tool": ToolFleet("slow-tool", num_agents=100, num_topics=10, tool_s=0.8, in_flight=32),
    "research": ToolFleet("research", num_agents=20, num_topics=9, tool_s=0.4, in_flight=8),
}
NUM_BLOCKS = 8192
"""The cache holds every agent: what is compared is the slot, not the cache."""


@asynccontextmanager
async def line(kind: str, fleet: ToolFleet) -> AsyncIterator[tuple[Shim, str]]:
    """A fresh engine behind a shim that scripts it, and its model's name."""
    if kind == "dynamo":
        options = DynamoOptions(num_blocks=NUM_BLOCKS, replies=fleet.answers())
        async with (
            dynamo_stack(options) as dynamo,
            shim(dynamo.base_url, replayed(fleet.script)) as scripts,
        ):
            yield scripts, dynamo.model
    else:
        async with (
            vllm_server(VllmOptions(num_blocks=NUM_BLOCKS // 2)) as vllm,
            shim(vllm.base_url, scripted(fleet.script)) as scripts,
        ):
            yield scripts, vllm.model


async def straight(kind: str, fleet: ToolFleet) -> ArmRun:
    """The client loop, at the engine."""
    async with line(kind, fleet) as (scripts, model):
        await agents.warm_up(fleet, scripts.base_url, model)
        scripts.exchanges.clear()
        wall_s, num_answers, num_searches = await agents.client_loop(fleet, scripts.base_url, model)
        return ArmRun(wall_s, num_answers, num_searches, agents.prompts_sha256(scripts.to("/v1/chat/")))


async def through(kind: str, fleet: ToolFleet, policy: str) -> ArmRun:
    """One request per agent, at the gateway."""
    tools = {"use": "benchmarks.tools.agents:build", "options": {"seconds": fleet.tool_s}, "ttl_s": 60}
    async with (
        line(kind, fleet) as (scripts, model),
        gateway(
            engine_url(kind, scripts.base_url),
            policy__name=policy,
            policy__slots_per_replica=fleet.in_flight,
            probing__hints=False,
            tools__use=[tools],
        ) as front,
    ):
        await agents.warm_up(fleet, front.base_url, model)
        scripts.exchanges.clear()
        wall_s, num_answers = await agents.one_request_each(fleet, front.base_url, model)
        num_searches = int(await front.metric("turngate_tool_executed_total", tool="search"))
        return ArmRun(wall_s, num_answers, num_searches, agents.prompts_sha256(scripts.to("/v1/chat/")))


async def compare(kind: str, fleet: ToolFleet, repeats: int, results: Path | None) -> None:
    instant = replace(fleet, tool_s=0.0)
    todo: dict[str, Callable[[], Awaitable[ArmRun]]] = {
        "client loop": lambda: straight(kind, fleet),
        "gateway": lambda: through(kind, fleet, "turns"),
        "gateway, first come first served": lambda: through(kind, fleet, "fifo"),
    }
    if kind == "vllm":
        todo["gateway, tool of 0 s"] = lambda: through(kind, instant, "turns")
    arms: dict[str, list[ArmRun]] = {arm: [] for arm in todo}
    for repeat in range(repeats):
        for arm, runs in arms.items():
            runs.append(await todo[arm]())
            print(f"{repeat + 1}/{repeats} {arm}: {runs[-1]}", file=sys.stderr, flush=True)
    text = table(fleet, arms)
    print(text)
    write(results, f"{fleet.name}-{kind}", text, arms)


def table(fleet: ToolFleet, arms: dict[str, list[ArmRun]]) -> str:
    base_s = statistics.median(run.wall_s for run in arms["client loop"])
    lines = [
        f"{fleet.num_agents} agents of two turns, {fleet.num_topics} different searches of {fleet.tool_s} s,"
        f" {fleet.in_flight} model calls in flight.",
        "",
        "| arm | wall s | against the client loop | searches run | answered | prompts |",
        "|---" * 6 + "|",
    ]
    for arm, runs in arms.items():
        walls = sorted(run.wall_s for run in runs)
        wall_s = statistics.median(walls)
        hashes = sorted({run.prompts_sha256 for run in runs})
        searches = max(run.num_searches for run in runs)
        answered = min(run.num_answers for run in runs)
        spread = f"{wall_s:.2f} [{walls[0]:.2f}-{walls[-1]:.2f}]"
        lines.append(
            f"| {arm} | {spread} | {wall_s / base_s:.2f} | {searches} | {answered} | {', '.join(hashes)} |"
        )
    return "\n".join(lines)


def parse() -> argparse.Namespace:
    parser = command_parser(__doc__, __file__)
    parser.add_argument("workload", choices=(*FLEETS, "mid-stream"))
    parser.add_argument("--engine", choices=("dynamo", "vllm"), default="dynamo")
    parser.add_argument("--repeats", type=int, default=3)
    return parser.parse_args()


async def main(arguments: argparse.Namespace) -> None:
    if arguments.workload == "mid-stream":
        await mid_stream.measure(arguments.repeats, arguments.results)
    else:
        await compare(arguments.engine, FLEETS[arguments.workload], arguments.repeats, arguments.results)


if __name__ == "__main__":
    asyncio.run(main(parse()))
