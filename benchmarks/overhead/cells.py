"""The measured situations, one reading of one of them, and the programs that make it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import orjson

from benchmarks.overhead.bodies import conversation, first_turn, write
from benchmarks.overhead.peers import RunningPeer

HERE = Path(__file__).parent
SIZES = {"s": 874, "b": 57_771, "h": 600_000, "m": 1_000_000}
FIRST_TURN_BYTES = SIZES["b"]
LOAD_CORE, PEER_CORE = min(os.sched_getaffinity(0)), max(os.sched_getaffinity(0))
TIMEOUT_S = 180.0


@dataclass(frozen=True, slots=True)
class LoadCell:
    """`name`: the size of the body, or the kind of stream, and the number of connections."""

    name: str
    connections: int
    seconds: float
    """0: one answer per connection."""
    bodies: tuple[Path, ...]
    takes_slow: bool
    is_stream: bool = False


@dataclass(frozen=True, slots=True)
class Reading:
    """What one peer did in one cell of one round."""

    cpu_us: float | None
    """Per request, or per event of a stream. None: no gateway stands between."""
    per_s: float
    """Requests, or events."""
    p50_ms: float
    """Of the whole answer, or, in streams, of one chunk."""
    p99_ms: float
    first_p50_ms: float
    """Request to first event."""
    first_p99_ms: float
    errors: int


def cells(folder: Path, is_quick: bool) -> list[LoadCell]:
    seconds = 0.7 if is_quick else 1.0
    measured = []
    bodies = {size: conversation(size_bytes) for size, size_bytes in SIZES.items()}
    for size, asked in (bodies | {"f": first_turn(FIRST_TURN_BYTES)}).items():
        paths = tuple(write(folder, size, asked))
        for connections in (32,) if is_quick else (1, 32, 500):
            if size in "hm" and (is_quick or connections == 500):
                continue  # 600 KB on 500 connections measures the kernel's buffers
            measured.append(LoadCell(f"{size}{connections}", connections, seconds, paths, connections == 32))
    streams = [("st", 50, 50 if is_quick else 200, 20)]
    if not is_quick:
        streams += [("st", 500, 20, 200), ("burst", 20, 2000, 0)]
    for name, connections, chunks, gap_ms in streams:
        options = {"stream": True, "max_tokens": chunks, "seed": gap_ms}
        paths = tuple(write(folder, f"{name}{connections}", conversation(SIZES["s"], **options)))
        measured.append(
            LoadCell(f"{name}{connections}", connections, 0.0, paths, connections == 50, is_stream=True)
        )
    return measured


def compiled(folder: Path) -> tuple[Path, Path]:
    """The upstream and the load generator. Raises FileNotFoundError without a C compiler."""
    programs = folder / "upstream", folder / "load"
    for program in programs:
        subprocess.run(["cc", "-O2", "-o", program, HERE / f"{program.name}.c"], check=True)
    return programs


def reading(load: Path, cell: LoadCell, started: RunningPeer) -> Reading:
    before_s = started.process.cpu_s() if started.process else 0.0
    counts = _run(load, started.port, cell)
    cpu_s = started.process.cpu_s() - before_s if started.process else 0.0
    count = counts["events" if cell.is_stream else "requests"]
    kind = "chunk" if cell.is_stream else "whole"
    return Reading(
        cpu_us=cpu_s * 1e6 / max(1, count) if started.process else None,
        per_s=count / max(1e-3, counts["seconds"]),
        p50_ms=counts[f"{kind}_p50_us"] / 1000,
        p99_ms=counts[f"{kind}_p99_us"] / 1000,
        first_p50_ms=counts["first_p50_us"] / 1000,
        first_p99_ms=counts["first_p99_us"] / 1000,
        errors=int(counts["errors"]),
    )


def _run(load: Path, port: int, cell: LoadCell) -> dict[str, float]:
    command: Sequence[str | Path] = [load, str(port), str(cell.connections), str(cell.seconds), *cell.bodies]
    done = subprocess.run(
        command,
        check=True,
        capture_output=True,
        timeout=TIMEOUT_S,
        preexec_fn=lambda: os.sched_setaffinity(0, {LOAD_CORE}),
    )
    counts: dict[str, float] = orjson.loads(done.stdout)
    return counts
