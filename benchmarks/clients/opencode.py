"""20 real OpenCode workers over 20 small files, one after the other straight at Dynamo and through the gateway.

    python -m benchmarks.clients.opencode

`OpenCodeRuntime` runs them, each in its own copy of the files. The engine is Dynamo's frontend with one mocker
worker, whose KV pool holds about a quarter of what the workers need; a proxy in front of it has the model read
files and then report. The mocker's seconds are those of a simulated GPU, a slow one; the workers' own CPU time is
real, and the same in both arms.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import statistics
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel

from batch_agent import AgentResult, BatchAgent
from batch_agent.cli import Progress
from batch_agent.runtimes import OpenCodeRuntime
from benchmarks.results import command_parser, write
from tests.real.dynamo import DynamoOptions, dynamo_stack
from tests.real.gateway import engine_url, gateway
from tests.real.parts import OPENCODE_COMMAND, RIPGREP_BIN_DIR, require
from tests.real.rewrites import at_most_tokens, replayed
from tests.real.scripts import Answer, Body, Call, answer_to
from tests.real.shim import shim

NUM_READS = 5
POOL_BLOCKS = 3000
SPEED = 0.3
"""Of the mocker, so that it takes longer than the workers' own work, which here shares two cores."""
OUTPUT = '{"num_functions": 2, "bugs": []}'
TIMEOUT_S = 900.0


class ModuleReport(BaseModel):
    num_functions: int
    bugs: list[str]


@dataclass(frozen=True)
class WorkerBatch:
    name: str
    num_ok: int
    wall_s: float
    mean_s: float
    """Of a worker, from its start to its result."""
    cached_share: float
    """Of the prompt tokens, as OpenCode counted them."""
    prompt_tokens: int
    num_turns: int
    num_sessions: int | None
    num_families: int | None


def file_name(number: int) -> str:
    return f"module_{number:02d}.py"


def source(number: int) -> str:
    return "\n".join(
        f"def function_{number}_{line}(a: int) -> int:\n    return a + {line}\n" for line in range(40)
    )


def script(num_workers: int) -> tuple[Answer, ...]:
    """All that the model ever says."""
    reads = [Call("read", {"filePath": file_name(number)}) for number in range(num_workers)]
    return (*(answer_to({}, read) for read in reads), Answer(OUTPUT), Answer("Reports"))


def model(num_workers: int, body: Body, turn: int) -> Answer:
    """Reads the file of the task and the next ones, one per turn, then reports."""
    if not body.get("tools"):
        return Answer("Reports")
    if turn >= NUM_READS:
        return Answer(OUTPUT)
    task = re.search(r"Report on module_(\d+)", json.dumps(body["messages"]))
    first = int(task[1]) if task else 0
    return answer_to({}, Call("read", {"filePath": file_name((first + turn) % num_workers)}))


async def play(name: str, num_workers: int) -> WorkerBatch:
    """One batch on a fresh engine, and a fresh gateway if it goes through one."""
    options = DynamoOptions(num_blocks=POOL_BLOCKS, speedup_ratio=SPEED, replies=script(num_workers))
    rewrites = at_most_tokens(200), replayed(lambda body, turn: model(num_workers, body, turn))
    async with AsyncExitStack() as stack:
        dynamo = await stack.enter_async_context(dynamo_stack(options))
        link = await stack.enter_async_context(shim(dynamo.base_url, *rewrites))
        front = None
        if name == "gateway":
            front = await stack.enter_async_context(gateway(engine_url("dynamo", link.base_url)))
        place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        started = time.monotonic()
        results = await run(front.base_url if front else link.base_url, dynamo.model, num_workers, place)
        wall_s = time.monotonic() - started
        rows = [row for row in await front.sessions() if row["kind"] == "agent"] if front else None
    prompt_tokens = sum(result.usage.prompt_tokens for result in results)
    return WorkerBatch(
        name=name,
        num_ok=sum(isinstance(result.output, ModuleReport) for result in results),
        wall_s=wall_s,
        mean_s=statistics.mean(result.timings.total_s for result in results),
        cached_share=sum(result.usage.cached_tokens for result in results) / max(1, prompt_tokens),
        prompt_tokens=prompt_tokens,
        num_turns=sum(result.turns for result in results),
        num_sessions=len(rows) if rows is not None else None,
        num_families=len({row["family"] for row in rows}) if rows is not None else None,
    )


async def run(base_url: str, model: str, num_workers: int, place: Path) -> list[AgentResult]:
    """The batch, in a directory of its own."""
    files = place / "files"
    files.mkdir()
    for number in range(num_workers):
        (files / file_name(number)).write_text(source(number))
    progress = Progress(num_workers)
    results = await BatchAgent.run(
        runtime=OpenCodeRuntime(
            gateway=base_url,
            model=model,
            working_dir=str(files),
            opencode_bin=str(OPENCODE_COMMAND),
            extra_env={"PATH": f"{RIPGREP_BIN_DIR}:{os.environ['PATH']}", "HOME": str(place / "home")},
        ),
        task="Report on {file}",
        inputs=[{"file": file_name(number)} for number in range(num_workers)],
        output_schema=ModuleReport,
        max_agents=num_workers,
        timeout_per_agent=TIMEOUT_S,
        on_result=progress,
    )
    progress.end()
    for failed in (result for result in results if not result.ok):
        print(failed.error, file=sys.stderr)
    return results


def table(arms: list[WorkerBatch]) -> str:
    heads = ("way", "reports", "wall s", "mean worker s", "prompt tokens", "from the cache", "turns", "sessions")
    lines = ["| " + " | ".join([*heads, "families"]) + " |", "|---" * 9 + "|"]
    for arm in arms:
        cells = [arm.name, arm.num_ok, f"{arm.wall_s:.1f}", f"{arm.mean_s:.1f}", f"{arm.prompt_tokens:,}"]
        cells += [f"{arm.cached_share:.1%}", arm.num_turns, arm.num_sessions or "", arm.num_families or ""]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


async def main(arguments: argparse.Namespace) -> None:
    require("opencode", OPENCODE_COMMAND, RIPGREP_BIN_DIR / "rg")
    arms = []
    for _ in range(arguments.repetitions):
        arms += [await play(name, arguments.workers) for name in ("straight", "gateway")]
    text = table(arms)
    print(text)
    write(arguments.results, "opencode", text, arms)


def parse() -> argparse.Namespace:
    parser = command_parser(__doc__, __file__)
    parser.add_argument("--workers", type=int, default=20)
    parser.add_argument("--repetitions", type=int, default=2)
    return parser.parse_args()


if __name__ == "__main__":
    asyncio.run(main(parse()))
