"""One batch with batch-agent 0.2.0, with ours and with a bare aiohttp gather, side by side.

    python -m benchmarks.clients.batch_clients

Each agent: a call to a model (60 ms), a tool (200 ms), a call to a model; floor 0.32 s. The engine is a process of
its own that does nothing but wait. `batch_client_program.py` is what a user writes, the same for both versions.
Arms take turns; each figure is the median of the repetitions (of 0.2.0 with 200 agents and more, of one run), and
CPU is that of the client's process alone.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.results import command_parser, write
from tests.real.parts import ORIGINAL_PYTHON, require
from tests.real.process import free_port

USER = Path(__file__).with_name("batch_client_program.py")
LONGEST_S = 300.0
OURS, NAIVE, OLD, OLD_TUNED = "ours", "naive aiohttp", "0.2.0", "0.2.0, kvflow off"


@dataclass(frozen=True)
class ClientArm:
    name: str
    program: str
    """First argument of `batch_client_program.py`."""
    python: str = sys.executable
    way: str = "engine"
    """Straight to the engine, through a `gateway` process, or through one `in process`."""


ARMS = (
    ClientArm(NAIVE, "naive"),
    ClientArm(OURS, "batch-agent"),
    ClientArm(OLD, "batch-agent", str(ORIGINAL_PYTHON)),
    ClientArm(OLD_TUNED, "batch-agent-plain", str(ORIGINAL_PYTHON)),
    ClientArm("naive aiohttp through a gateway", "naive", way="gateway"),
    ClientArm("ours through a gateway", "batch-agent", way="gateway"),
    ClientArm("ours with its own gateway", "batch-agent", way="in process"),
)


@contextmanager
def server(*command: str) -> Iterator[None]:
    """A process that prints one line when it is ready."""
    process = subprocess.Popen([sys.executable, "-m", *command], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        while line := process.stdout.readline():
            if "eady" in line:
                break
        yield
    finally:
        process.terminate()
        process.wait()


def play(arm: ClientArm, engine: int, gateway: int, num_agents: int, num_files: int) -> dict[str, Any]:
    """One run, in a process of its own."""
    ports = {"engine": engine, "gateway": gateway}
    env = {name: value for name, value in os.environ.items() if not name.startswith("OPENAI_")}
    env.pop("PYTHONDONTWRITEBYTECODE", None)  # pip compiles what it installs
    if arm.way in ports:
        env["OPENAI_BASE_URL"] = f"http://127.0.0.1:{ports[arm.way]}/v1"
    command = [arm.python, str(USER), arm.program, str(engine), str(num_agents), str(num_files)]
    try:
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=LONGEST_S)
    except subprocess.TimeoutExpired:
        return {"is_late": True}
    if done.returncode:
        raise RuntimeError(f"{arm.name}: {done.stderr[-2000:]}")
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


@dataclass(frozen=True)
class ClientRuns:
    num_agents: int
    num_files: int
    arm: str
    runs: list[dict[str, Any]]

    def median(self, key: str) -> float | None:
        values = [run[key] for run in self.runs if key in run]
        return statistics.median(values) if values else None


def table(rows: list[ClientRuns]) -> str:
    heads = ("agents", "keys", "client", "wall s", "of naive", "CPU s", "of naive", "tool runs", "first result s")
    lines = ["| " + " | ".join([*heads, "MB", "outputs"]) + " |", "|---" * 11 + "|"]
    for row in rows:
        naive = next(
            r for r in rows if (r.num_agents, r.num_files, r.arm) == (row.num_agents, row.num_files, NAIVE)
        )
        if row.median("wall_s") is None:
            cells = [f"over {LONGEST_S:.0f}", *[""] * 7]
        else:
            cells = [
                *_against(row, naive, "wall_s"),
                *_against(row, naive, "cpu_s"),
                f"{row.median('tool_runs'):.0f}",
                f"{row.median('first_s'):.2f}",
                f"{row.median('rss_mb'):.0f}",
                f"{row.median('num_ok'):.0f}",
            ]
        lines.append("| " + " | ".join([str(row.num_agents), str(row.num_files), row.arm, *cells]) + " |")
    return "\n".join(lines)


def _against(row: ClientRuns, naive: ClientRuns, key: str) -> list[str]:
    value, base = row.median(key), naive.median(key)
    assert value is not None
    assert base is not None
    return [f"{value:.2f}", f"{value / base:.2f}x"]


def main(arguments: argparse.Namespace) -> None:
    require("batch-agent", ORIGINAL_PYTHON)
    engine, gateway = free_port(), free_port()
    rows = []
    with ExitStack() as stack:
        stack.enter_context(server("benchmarks.clients.fixed_latency_engine", str(engine)))
        flags = ["--engine", f"vllm://127.0.0.1:{engine}", "--port", str(gateway), "--set", "logging.level=error"]
        stack.enter_context(server("gateway", "serve", *flags))
        for num_agents in arguments.agents:
            for num_files in arguments.files:
                runs: dict[str, list[dict[str, Any]]] = {arm.name: [] for arm in ARMS}
                for repetition in range(arguments.repetitions):
                    for arm in ARMS:
                        is_slow = arm.name in (OLD, OLD_TUNED) and num_agents >= 200
                        if not (is_slow and repetition):
                            runs[arm.name].append(play(arm, engine, gateway, num_agents, num_files))
                            print(num_agents, num_files, arm.name, runs[arm.name][-1], file=sys.stderr, flush=True)
                rows += [ClientRuns(num_agents, num_files, name, done) for name, done in runs.items()]
    text = table(rows)
    print(text)
    write(arguments.results, "batch-clients", text, rows)


def parse() -> argparse.Namespace:
    parser = command_parser(__doc__, __file__)
    parser.add_argument("--agents", nargs="+", type=int, default=[50, 200, 1000])
    parser.add_argument("--files", nargs="+", type=int, default=[50, 4])
    parser.add_argument("--repetitions", type=int, default=5)
    return parser.parse_args()


if __name__ == "__main__":
    main(parse())
