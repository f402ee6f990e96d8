"""1,000 agents of 3 turns through one gateway: do all end, in how much memory, and is it seen while it runs?

    python -m benchmarks.batches.thousand_agents [--agents 1000] [--engines embedded dynamo]

The client is `batch-agent run` with its standard error on a terminal, the gateway `turngate serve`, each in a
process of its own. Engines: the embedded one, a model; and Dynamo's frontend with its mocker, made to call
tools by a proxy between gateway and engine. Memory is the highest resident set of each process.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import pty
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.results import command_parser, write
from tests.real.dynamo import DynamoOptions, dynamo_stack
from tests.real.gateway import engine_url, gateway
from tests.real.process import free_port, server
from tests.real.rewrites import at_most_tokens, replayed
from tests.real.scripts import Call, Step, answer_to, steps
from tests.real.shim import shim

NUM_TURNS = 3
SYSTEM = "You read notes and report on them. " * 120
OUTPUT = '{"report": "done"}'
CALLS = tuple(Call("read_notes", {"path": f"notes-{number}.txt"}) for number in range(NUM_TURNS - 1))
STEPS: tuple[Step, ...] = (*CALLS, OUTPUT)
TOOLS = '''
import asyncio
from batch_agent import Tool

@Tool.define
async def read_notes(path: str) -> str:
    """Read a file of notes."""
    await asyncio.sleep(0.2)
    return f"The notes in {path}. " * 20
'''
SCHEMA = {"type": "object", "properties": {"report": {"type": "string"}}, "required": ["report"]}
EMBEDDED_SCRIPT = [
    *({"tool_calls": [{"name": call.name, "arguments": call.arguments}]} for call in CALLS),
    {"content": OUTPUT},
]


@dataclass(frozen=True)
class ClientFigures:
    engine: str
    num_agents: int
    num_ok: int
    num_turns: int
    wall_s: float
    client_mb: float
    gateway_mb: float
    client_cpu_s: float
    num_redrawn: int
    """Times that the line of progress was drawn again."""
    cached_share: float
    """Of the prompt tokens."""


@asynccontextmanager
async def embedded() -> AsyncIterator[tuple[str, str]]:
    port = free_port()
    command = [sys.executable, "-m", "gateway", "engine", "--port", str(port)]
    with tempfile.TemporaryDirectory() as place:
        async with server("engine", command, {"PYTHONPATH": os.getcwd()}, Path(place)) as running:

            async def is_up(session: Any) -> bool:
                async with session.get(f"http://127.0.0.1:{port}/health") as response:
                    return bool(response.status == 200)

            await running.wait_until_ready(is_up, 60)
            yield f"vllm://127.0.0.1:{port}", "embedded"


@asynccontextmanager
async def dynamo() -> AsyncIterator[tuple[str, str]]:
    replies = tuple(answer_to({}, step) for step in STEPS)
    options = DynamoOptions(num_workers=2, num_blocks=16_384, speedup_ratio=4, replies=replies)
    rewrites = at_most_tokens(200), replayed(steps(*STEPS))
    async with dynamo_stack(options) as running, shim(running.base_url, *rewrites) as link:
        yield engine_url("dynamo", link.base_url), running.model


ENGINES = {"embedded": embedded, "dynamo": dynamo}


async def measure(engine: str, num_agents: int) -> ClientFigures:
    async with AsyncExitStack() as stack:
        url, model = await stack.enter_async_context(ENGINES[engine]())
        front = await stack.enter_async_context(gateway(url))
        place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (place / "notes_tools.py").write_text(TOOLS)
        script = f" embedded_script: {json.dumps(EMBEDDED_SCRIPT)}" if engine == "embedded" else ""
        spec = {
            "task": "Report on the notes of agent {n}.{script}",
            "inputs": [{"n": n, "script": script} for n in range(num_agents)],
            "system_prompt": SYSTEM,
            "tools": ["notes_tools:read_notes"],
            "output_schema": SCHEMA,
            "model": model,
            "gateway": front.base_url,
            "max_turns": NUM_TURNS,
        }
        (place / "spec.json").write_text(json.dumps(spec))
        started = time.monotonic()
        usage, drawn = await asyncio.to_thread(run_client, place)
        wall_s = time.monotonic() - started
        rows = [json.loads(line) for line in (place / "out.jsonl").read_text().splitlines()]
        tokens = [row["usage"] for row in rows]
        return ClientFigures(
            engine=engine,
            num_agents=num_agents,
            num_ok=sum(row["ok"] for row in rows),
            num_turns=sum(row["turns"] for row in rows),
            wall_s=wall_s,
            client_mb=usage.ru_maxrss / 1024,
            gateway_mb=peak_mb(front.server.process.pid),
            client_cpu_s=usage.ru_utime + usage.ru_stime,
            num_redrawn=drawn,
            cached_share=sum(t["cached_tokens"] for t in tokens) / max(1, sum(t["prompt_tokens"] for t in tokens)),
        )


def run_client(place: Path) -> tuple[Any, int]:
    """Resources of the command, and how often it drew its line of progress."""
    terminal, client_end = pty.openpty()
    command = [sys.executable, "-m", "batch_agent.cli", "run", "--spec", "spec.json", "--output", "out.jsonl"]
    env = {**os.environ, "PYTHONPATH": os.getcwd()}
    pid = os.posix_spawn(
        "/usr/bin/env",
        ["env", "-C", str(place), *command],
        env,
        file_actions=[(os.POSIX_SPAWN_DUP2, client_end, 2)],
    )
    os.close(client_end)
    drawn = b""
    try:
        while chunk := os.read(terminal, 65536):
            drawn += chunk
            sys.stderr.write(chunk.decode(errors="replace"))
    except OSError:  # the other end is closed
        pass
    _, status, usage = os.wait4(pid, 0)
    if os.waitstatus_to_exitcode(status) not in (0, 1):
        raise RuntimeError(f"batch-agent: {drawn.decode(errors='replace')}")
    return usage, drawn.count(b"\r\x1b[K")


def peak_mb(pid: int) -> float:
    """Highest resident set of a running process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def table(figures: list[ClientFigures]) -> str:
    heads = ("engine", "agents", "with output", "model calls", "wall s", "client MB", "gateway MB", "client CPU s")
    lines = ["| " + " | ".join([*heads, "line drawn", "cached"]) + " |", "|---" * 10 + "|"]
    lines += [
        f"| {f.engine} | {f.num_agents} | {f.num_ok} | {f.num_turns} | {f.wall_s:.1f} | {f.client_mb:.0f} | "
        f"{f.gateway_mb:.0f} | {f.client_cpu_s:.1f} | {f.num_redrawn} | {f.cached_share:.0%} |"
        for f in figures
    ]
    return "\n".join(lines)


async def main(arguments: argparse.Namespace) -> None:
    figures = [await measure(engine, arguments.agents) for engine in arguments.engines]
    text = table(figures)
    print(text)
    write(arguments.results, "thousand-agents", text, figures)


def parse() -> argparse.Namespace:
    parser = command_parser(__doc__, __file__)
    parser.add_argument("--agents", type=int, default=1000)
    parser.add_argument("--engines", nargs="+", choices=list(ENGINES), default=list(ENGINES))
    return parser.parse_args()


if __name__ == "__main__":
    asyncio.run(main(parse()))
