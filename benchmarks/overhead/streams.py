"""How many streams one worker holds: `python -m benchmarks.streams [--quick] [--transport NAME]`.

500 streams of 20 chunks a second for a minute; then faster until chunks come more than 20 ms late; then 2,000
streams that are open and nearly silent. Clients and upstream run on one core, the gateway on another.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean

from benchmarks import results
from benchmarks.overhead.bodies import conversation
from benchmarks.overhead.cells import LOAD_CORE, PEER_CORE, SIZES, compiled
from benchmarks.overhead.peers import Peer, Place, Started, started
from benchmarks.overhead.processes import running
from benchmarks.overhead.streams_client import Heard, Plan, run
from tests.real.process import free_port

STREAMS, GAP_MS, MINUTE_S = 500, 50, 60.0
IDLE_STREAMS, IDLE_GAP_MS = 2000, 5000
SEARCH_S = 15.0
SEARCH_GAPS_MS = (40, 32, 25, 20, 16, 13, 10, 8)
MOST_ADDED_MS = 20.0
SETTLED_S = 10.0
"""Connections, pools and caches are made; from here on memory is to stay."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One run through the gateway, beside the same run straight to the upstream."""

    streams: int
    rate: float
    """Chunks a second, over all streams."""
    seconds: float
    errors: int
    reordered: int
    missing: int
    added_p50_ms: float
    added_p99_ms: float
    direct_p99_ms: float
    first_p99_ms: float
    cpu_us: float
    """Of the gateway, per chunk."""
    busy: float
    """Share of the gateway's core."""
    rss_settled_mb: float
    rss_end_mb: float

    @property
    def holds(self) -> bool:
        return not (self.errors or self.reordered or self.missing) and self.added_p99_ms <= MOST_ADDED_MS


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="under two minutes")
    parser.add_argument("--transport", choices=("aiohttp", "fast"), default="fast")
    parser.add_argument("--realtime", action="store_true", help="before all other programs; needs root")
    parser.add_argument("--no-results", action="store_true", help="print only")
    asked = parser.parse_args()
    if asked.realtime:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))  # what is started here inherits it
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 16_384)), hard))
    with tempfile.TemporaryDirectory(prefix="turngate-streams-") as folder:
        minute, searched, idle = measured(asked.transport, asked.quick, Path(folder))
    told = table(asked.transport, minute, searched, idle)
    print(told)
    if not asked.no_results:
        data = {"minute": asdict(minute), "search": [asdict(one) for one in searched], "idle": asdict(idle)}
        results.write("streams-quick" if asked.quick else "streams", told, {"transport": asked.transport} | data)
    return 0 if minute.holds and not (idle.errors or idle.missing) else 1


def measured(transport: str, is_quick: bool, folder: Path) -> tuple[Figure, list[Figure], Figure]:
    upstream, _ = compiled(folder)
    with ExitStack() as stack:
        port = free_port()
        stack.enter_context(running([upstream, str(port)], folder / "upstream.log", LOAD_CORE))
        body = conversation(SIZES["s"])[0]
        gateway = stack.enter_context(started(ours(transport), port, folder, PEER_CORE, body))
        stack.callback(os.sched_setaffinity, 0, os.sched_getaffinity(0))
        os.sched_setaffinity(0, {LOAD_CORE})
        minute = figure(plan(10.0 if is_quick else MINUTE_S, GAP_MS), port, gateway)
        searched = []
        for gap_ms in SEARCH_GAPS_MS[2:3] if is_quick else SEARCH_GAPS_MS:
            searched.append(figure(plan(SEARCH_S, gap_ms), port, gateway))
            if len(searched) > 1 and not (searched[-1].holds or searched[-2].holds):
                break  # twice in a row: once may be another program's fault
        idle = figure(Plan(IDLE_STREAMS, 3 if is_quick else 8, IDLE_GAP_MS), port, gateway)
    return minute, searched, idle


def plan(seconds: float, gap_ms: int) -> Plan:
    return Plan(STREAMS, int(seconds * 1000 / gap_ms), gap_ms)


def ours(transport: str) -> Peer:
    chosen = {
        "transport": transport,
        "logging.level": "warning",
        "policy.slots_per_replica": str(2 * IDLE_STREAMS),
    }
    settings = [part for key, value in chosen.items() for part in ("--set", f"{key}={value}")]

    def command(at: Place) -> tuple[str, ...]:
        engine = at.url.replace("http", "vllm")
        return sys.executable, "-m", "gateway", "serve", "--engine", engine, "--port", str(at.port), *settings

    return Peer(f"turngate-{transport}", command)


def figure(what: Plan, upstream_port: int, gateway: Started) -> Figure:
    straight = run(Plan(what.streams, min(what.chunks, 10_000 // what.gap_ms), what.gap_ms), upstream_port)
    process = gateway.process
    assert process is not None
    rss: list[tuple[float, float]] = []
    cpu_s = -process.cpu_s()
    heard = run(what, gateway.port, lambda elapsed_s: rss.append((elapsed_s, process.rss_mb())))
    cpu_s += process.cpu_s()
    settled = [mb for at_s, mb in rss if at_s >= min(SETTLED_S, rss[-1][0] / 2)]
    third = max(1, len(settled) // 3)
    seconds = rss[-1][0]
    said = Figure(
        streams=what.streams,
        rate=what.streams * 1000 / what.gap_ms,
        seconds=seconds,
        errors=len(heard.errors),
        reordered=heard.reordered,
        missing=heard.missing,
        added_p50_ms=heard.late_ms(0.5) - straight.late_ms(0.5),
        added_p99_ms=heard.late_ms(0.99) - straight.late_ms(0.99),
        direct_p99_ms=straight.late_ms(0.99),
        first_p99_ms=heard.first_ms(0.99),
        cpu_us=cpu_s * 1e6 / max(1, heard.chunks),
        busy=cpu_s / seconds,
        rss_settled_mb=mean(settled[:third]),
        rss_end_mb=mean(settled[-third:]),
    )
    _say(said, heard)
    return said


def _say(said: Figure, heard: Heard) -> None:
    print(_row("", said), *heard.errors[:3], sep="\n", file=sys.stderr, flush=True)


def table(transport: str, minute: Figure, searched: list[Figure], idle: Figure) -> str:
    held = [one for one in searched if one.holds]
    most = f"{held[-1].rate:,.0f} chunks/s" if held else "none of these"
    return "\n".join(
        [
            f"One worker, transport `{transport}`. Late: from the upstream's sending of a chunk to its client,",
            "less the same without a gateway, once all streams have begun, which takes 5 s. Lost: answers",
            "that broke off, chunks out of order, chunks missing.",
            "",
            "| what | streams | chunks/s | s | lost | late p50 ms | late p99 ms | p99 without |"
            " first chunk p99 ms | CPU us/chunk | core busy | RSS MB settled, end |",
            "|---|---|---|---|---|---|---|---|---|---|---|---|",
            _row("a minute", minute),
            *(_row("search", one) for one in searched),
            _row("idle", idle),
            "",
            f"Highest rate with nothing lost and at most {MOST_ADDED_MS:.0f} ms added at p99: {most}.",
        ]
    )


def _row(name: str, one: Figure) -> str:
    cells = [
        name,
        f"{one.streams:,}",
        f"{one.rate:,.0f}",
        f"{one.seconds:.0f}",
        f"{one.errors}, {one.reordered}, {one.missing}",
        f"{one.added_p50_ms:.2f}",
        f"{one.added_p99_ms:.2f}",
        f"{one.direct_p99_ms:.2f}",
        f"{one.first_p99_ms:.1f}",
        f"{one.cpu_us:.1f}",
        f"{one.busy:.0%}",
        f"{one.rss_settled_mb:.0f}, {one.rss_end_mb:.0f}",
    ]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(main())
