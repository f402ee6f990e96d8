"""How long others wait while hostile requests are answered.

    python -m benchmarks.overhead.hostile [--quick] [--only PATTERN] [--kinds KIND] [--seconds N] [--body-mib N]

Each shape of `tests/fuzz/shapes.py` is sent 4 at once, again and again, beside 200 streams of 20 chunks a second.
Bodies, forms, input files of batches and answers of an engine are as large as `limits.body_bytes`. Where the
gateway refuses such a body, it gets the largest one that it takes in turn with it. Rounds without hostile requests
come between them. Clients and engines run on one core, the gateway on another.
"""

from __future__ import annotations

import asyncio
import os
import re
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import IO, Any

import orjson

from benchmarks.overhead.bodies import conversation
from benchmarks.overhead.cells import LOAD_CORE, PEER_CORE, SIZES, compiled
from benchmarks.overhead.hostile_clients import CALM
from benchmarks.overhead.peers import Peer, PeerAddress, RunningPeer, started
from benchmarks.overhead.processes import running
from benchmarks.overhead.streams import SETTLE_S, ReceivedChunks, StreamPlan, play
from benchmarks.results import command_parser, write
from tests.fuzz.shapes import ANSWERS, ERRORS, FORMS, LINES, REQUESTS, STREAMS
from tests.real.process import free_port

KINDS: dict[str, Iterable[str]] = {
    "request": REQUESTS,
    "stream": STREAMS,
    "answer": ANSWERS,
    "error": ERRORS,
    "form": FORMS,
    "lines": LINES,
}
STREAMS_BESIDE, GAP_MS, SPREAD_S = 200, 50, 1.0
SECONDS, QUICK_SECONDS = 5.0, 2.0
CALM_EVERY = 10
"""Rounds between two without hostile requests."""
MOST_READY_P999_MS, MOST_READY_MS, MOST_ADDED_MS = 50.0, 250.0, 30.0
START_S = 90.0
_HELD = re.compile(r"seconds=([\d.]+) step=(\S+)")
"""A line of the gateway's log about a step that held its loop."""


@dataclass(frozen=True, slots=True)
class HostileRound:
    kind: str
    name: str
    mb: list[float]
    """Of the bodies."""
    statuses: dict[str, int]
    ready_p999_ms: float
    ready_max_ms: float
    chunk_p99_ms: float
    lost: int
    """Streams without a whole answer, and looks at `/ready` without one."""
    cpu_s: float
    """Of the gateway."""
    longest_step_ms: float
    """As its log says; 0: none was longer than 50 ms."""
    step: str

    def added_ms(self, calm_ms: float) -> float:
        return self.chunk_p99_ms - calm_ms

    def holds(self, calm_ms: float) -> bool:
        is_ready = self.ready_p999_ms <= MOST_READY_P999_MS and self.ready_max_ms <= MOST_READY_MS
        return is_ready and self.added_ms(calm_ms) <= MOST_ADDED_MS and not self.lost


@dataclass(slots=True)
class Bench:
    """The running parts, and how long each round is."""

    gateway: RunningPeer
    engine_port: int
    log: IO[str]
    seconds: float
    body_bytes: int
    streams: int

    def round(self, kind: str, name: str) -> HostileRound:
        options = [
            str(self.gateway.port),
            str(self.engine_port),
            kind,
            name,
            str(self.seconds),
            str(self.body_bytes),
        ]
        command = [sys.executable, "-m", "benchmarks.overhead.hostile_clients", *options]
        pinned: Callable[[], None] = lambda: os.sched_setaffinity(0, {LOAD_CORE})  # noqa: E731
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, preexec_fn=pinned
        ) as clients:
            assert clients.stdin is not None
            assert clients.stdout is not None
            if clients.stdout.readline() != "made\n":
                raise RuntimeError(f"{kind}, {name}: its clients did not start")
            self.log.read()
            assert self.gateway.process is not None
            cpu_s = -self.gateway.process.cpu_s()
            begin = clients.stdin

            def each_s(elapsed_s: float) -> None:
                if elapsed_s >= SPREAD_S + SETTLE_S and not begin.closed:
                    begin.write("\n")
                    begin.close()

            chunks = int((SPREAD_S + SETTLE_S + self.seconds + 1.0) * 1000 / GAP_MS)
            received = play(StreamPlan(self.streams, chunks, GAP_MS, SPREAD_S), self.gateway.port, each_s)
            seen = orjson.loads(clients.stdout.read())
        cpu_s += self.gateway.process.cpu_s()
        return self._round(kind, name, received, seen, cpu_s)

    def _round(
        self, kind: str, name: str, received: ReceivedChunks, seen: dict[str, Any], cpu_s: float
    ) -> HostileRound:
        held = [(float(seconds) * 1000, step) for seconds, step in _HELD.findall(self.log.read())]
        longest_ms, step = max(held, default=(0.0, ""))
        ready_ms = sorted(us / 1000 for us in seen["ready_us"])
        return HostileRound(
            kind=kind,
            name=name,
            mb=[size / 1e6 for size in seen["sizes"]],
            statuses=dict(seen["statuses"]),
            ready_p999_ms=ready_ms[min(len(ready_ms) - 1, int(len(ready_ms) * 0.999))],
            ready_max_ms=ready_ms[-1],
            chunk_p99_ms=received.late_ms(0.99),
            lost=len(received.errors) + received.missing + len(seen["faults"]),
            cpu_s=cpu_s,
            longest_step_ms=longest_ms,
            step=step,
        )


def rounds(bench: Bench, shapes: Sequence[tuple[str, str]]) -> tuple[list[HostileRound], list[HostileRound]]:
    """Return the rounds without hostile requests, and those with them."""
    calm, hostile = [], []
    for number, (kind, name) in enumerate(shapes):
        if number % CALM_EVERY == 0:
            calm.append(bench.round(CALM, CALM))
            say(calm[-1], 0.0)
        hostile.append(bench.round(kind, name))
        say(hostile[-1], median(one.chunk_p99_ms for one in calm))
    return calm, hostile


def say(one: HostileRound, calm_ms: float) -> None:
    print(row(one, calm_ms), file=sys.stderr, flush=True)


def ours(folder: Path, engine_port: int, body_bytes: int) -> Peer:
    chosen = {
        "logging.level": "warning",
        "policy.slots_per_replica": "4096",
        "limits.body_bytes": str(body_bytes),
        "batches.directory": str(folder / "batches"),
    }
    settings = [part for key, value in chosen.items() for part in ("--set", f"{key}={value}")]

    def command(at: PeerAddress) -> tuple[str, ...]:
        engines = ("--engine", at.url.replace("http", "vllm"), "--engine", f"vllm://127.0.0.1:{engine_port}")
        return sys.executable, "-m", "gateway", "serve", *engines, "--port", str(at.port), *settings

    return Peer("turngate", command)


def main() -> int:
    parser = command_parser(__doc__, __file__)
    parser.add_argument("--quick", action="store_true", help="2 s and 4 MiB a shape, print only")
    parser.add_argument("--only", default="", help="shapes whose name has a match of this, print only")
    parser.add_argument("--kinds", nargs="*", choices=KINDS, default=list(KINDS), help="(default: all)")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of hostile requests (%(default)s)")
    parser.add_argument("--streams", type=int, default=STREAMS_BESIDE, help="beside them (%(default)s)")
    parser.add_argument("--body-mib", type=float, default=32.0, help="`limits.body_bytes` (%(default)s)")
    options = parser.parse_args()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 16_384)), hard))
    shapes = [(kind, name) for kind in options.kinds for name in KINDS[kind] if re.search(options.only, name)]
    seconds = QUICK_SECONDS if options.quick else options.seconds
    body_bytes = int((4.0 if options.quick else options.body_mib) * 2**20)
    with tempfile.TemporaryDirectory(prefix="turngate-hostile-") as made, ExitStack() as stack:
        folder, port = Path(made), free_port()
        upstream, _ = compiled(folder)
        stack.enter_context(running([upstream, str(port)], folder / "upstream.log", LOAD_CORE))
        engine_port = engine_started(stack, folder)
        body = conversation(SIZES["s"])[0]
        gateway = stack.enter_context(
            started(ours(folder, engine_port, body_bytes), port, folder, PEER_CORE, body)
        )
        log = stack.enter_context((folder / "turngate" / "log").open())
        stack.callback(os.sched_setaffinity, 0, os.sched_getaffinity(0))
        os.sched_setaffinity(0, {LOAD_CORE})
        calm, hostile = rounds(Bench(gateway, engine_port, log, seconds, body_bytes, options.streams), shapes)
    text = table(calm, hostile, seconds)
    print(text)
    name = "hostile" if list(options.kinds) == list(KINDS) else f"hostile-{'-'.join(options.kinds)}"
    is_part = options.quick or options.only
    write(None if is_part else options.results, name, text, {"calm": calm, "hostile": hostile})
    calm_ms = median(one.chunk_p99_ms for one in calm)
    return int(not all(one.holds(calm_ms) for one in hostile))


def engine_started(stack: ExitStack, folder: Path) -> int:
    """Start the hostile engine. Return its port."""
    log = folder / "engine.log"
    stack.enter_context(running([sys.executable, "-m", "benchmarks.overhead.hostile_engine"], log, LOAD_CORE))
    return asyncio.run(_port_in(log))


async def _port_in(log: Path) -> int:
    async with asyncio.timeout(START_S):
        while not (text := log.read_text()).endswith("\n"):
            await asyncio.sleep(0.05)
    return int(text)


def table(calm: Sequence[HostileRound], hostile: Sequence[HostileRound], seconds: float) -> str:
    calm_ms = median(one.chunk_p99_ms for one in calm)
    held = [one for one in hostile if one.holds(calm_ms)]
    worst = sorted(hostile, key=lambda one: -one.ready_max_ms)
    calm_p999_ms, calm_max_ms = median(one.ready_p999_ms for one in calm), max(one.ready_max_ms for one in calm)
    return "\n".join(
        [
            f"{len(hostile)} shapes, {seconds:g} s each. Added: p99 of a chunk through the gateway, less the",
            f"median of {len(calm)} rounds without hostile requests, {calm_ms:.1f} ms. `/ready` in those: p99.9",
            f"{calm_p999_ms:.1f} ms, max {calm_max_ms:.1f} ms. Step: the longest of its loop that its log",
            "names. It logs those above 50 ms.",
            "",
            "| shape | MB | answers | /ready p99.9 ms | max ms | chunk p99 added ms | lost | CPU s | step |",
            "|---|---|---|---|---|---|---|---|---|",
            *(row(one, calm_ms) for one in worst),
            "",
            f"Bounds: `/ready` p99.9 {MOST_READY_P999_MS:.0f} ms, max {MOST_READY_MS:.0f} ms; a chunk"
            f" {MOST_ADDED_MS:.0f} ms. {len(held)} of {len(hostile)} shapes are within them.",
        ]
    )


def row(one: HostileRound, calm_ms: float) -> str:
    step = f"{one.longest_step_ms:.0f} ms {one.step}" if one.longest_step_ms else ""
    cells = [
        f"{one.kind}: {one.name}",
        ", ".join(f"{mb:.1f}" for mb in one.mb),
        ", ".join(f"{num} x {status}" for status, num in sorted(one.statuses.items())),
        f"{one.ready_p999_ms:.1f}",
        f"{one.ready_max_ms:.1f}",
        f"{one.added_ms(calm_ms):.1f}",
        str(one.lost),
        f"{one.cpu_s:.1f}",
        step,
    ]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(main())
