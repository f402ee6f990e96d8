"""Runs fleets and writes their tables.

    python -m benchmarks.fleet --engine dynamo --fleet base --arms straight turns --seeds 1 2 3
    python -m benchmarks.fleet --suite part-b
    python -m benchmarks.fleet --suite part-b --resume                        # go on where it stopped
    python -m benchmarks.fleet --suite part-b --resume --again straight turns # after a change of the gateway

Results: benchmarks/fleet/results/ENGINE-FLEET.{md,json}; `python -m benchmarks.fleet.plots` draws them.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.fleet import report
from benchmarks.fleet.arms import ARMS
from benchmarks.fleet.cells import Cell, run_cell, workload_of
from benchmarks.fleet.engines import ENGINES, PARALLEL, measured_chars_per_token
from benchmarks.fleet.fleets import FLEETS, SUITES, Job
from benchmarks.results import command_parser, write
from gateway.core.transport import UpstreamCut, UpstreamRefused
from tests.real.parts import NotInstalledError
from tests.real.process import ServerFailedError

CELL_FAILURES = (
    *(RuntimeError, OSError, TimeoutError, UpstreamRefused, UpstreamCut),
    *(ServerFailedError, NotInstalledError),
)


@dataclass(frozen=True, slots=True)
class CellStore:
    """The cells of one fleet on one engine, and their files, which are rewritten after each cell."""

    name: str
    folder: Path | None
    note: str
    cells: report.Cells
    began_at: float = field(default_factory=time.monotonic)

    def record(self, cell: Cell, took_s: float) -> None:
        self.cells[cell.arm, cell.seed] = cell
        table, data = report.table(self.cells, self.note), report.data_of(self.cells)
        write(self.folder, self.name, table, data, time.monotonic() - self.began_at)
        figures = cell.figures
        say(
            f"{self.name} seed {cell.seed} {cell.arm}: makespan {figures.makespan_s:.2f} s, mean"
            f" {figures.mean_session_s:.2f} s, {figures.uncached_tokens:,} uncached, {figures.errors} errors"
            f" ({took_s:.0f} s, load {cell.load:.0f}, {cell.late_share:.0%} late)"
        )


async def run(job: Job, parallel: int, store: CellStore) -> None:
    """Run the cells that the store does not have. One that cannot be run (an engine or a proxy that does not
    start) is named and left out."""
    fleet = FLEETS[job.fleet]
    slots = asyncio.Semaphore(parallel)
    todo = [key for key in job.cells() if key not in store.cells and job.engine in ARMS[key[0]].engines]
    if not todo:
        say(f"{job.name}: complete")
        return
    async with ENGINES[job.engine](fleet) as fresh:
        async with fresh() as engine:
            chars_per_token = await measured_chars_per_token(engine)

        async def one(arm: str, seed: int) -> None:
            async with slots:
                started = time.monotonic()
                try:
                    cell = await run_cell(job.fleet, fresh, arm, seed, chars_per_token)
                except CELL_FAILURES as error:
                    why = (str(error).splitlines() or [type(error).__name__])[-1]
                    say(f"{job.name} seed {seed} {arm} FAILED: {why}")
                else:
                    store.record(cell, time.monotonic() - started)

        async with asyncio.TaskGroup() as group:
            for arm, seed in todo:
                group.create_task(one(arm, seed))
    if store.cells:
        print(report.table(store.cells, store.note))


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def parse() -> argparse.Namespace:
    parser = command_parser(__doc__, __file__)
    parser.add_argument("--engine", choices=ENGINES, default="embedded")
    parser.add_argument(
        "--fleet", choices=FLEETS, nargs="+", metavar="FLEET", default=["base"], help=", ".join(FLEETS)
    )
    parser.add_argument(
        "--arms", nargs="+", choices=ARMS, metavar="ARM", default=["straight", "turns"], help=", ".join(ARMS)
    )
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--suite", choices=SUITES, help="a list of such runs, instead of the options above")
    parser.add_argument(
        "--resume",
        action="store_true",
        help="keep the cells that the result file has of this fleet as it is drawn now",
    )
    parser.add_argument(
        "--again", nargs="+", choices=ARMS, metavar="ARM", default=[], help="arms that --resume does not keep"
    )
    parser.add_argument("--parallel", type=int, help="cells at a time (default: what engine and machine bear)")
    return parser.parse_args()


async def main(options: argparse.Namespace) -> None:
    own = [Job(options.engine, fleet, tuple(options.arms), tuple(options.seeds)) for fleet in options.fleet]
    for job in SUITES[options.suite] if options.suite else own:
        stored = report.load(options.results / f"{job.name}.json") if options.resume and options.results else {}
        fleet = FLEETS[job.fleet]
        kept = {
            key: cell
            for key, cell in stored.items()
            if cell.arm not in options.again and cell.workload == workload_of(fleet, cell.seed)
        }
        # Several workers serve their fleet in about half of the time, with twice the requests per second.
        usual = max(1, PARALLEL[job.engine] // (1 if fleet.world.num_replicas == 1 else 2))
        parallel = options.parallel or usual
        note = f"Up to {parallel} cells at a time, seeds interleaved." if parallel > 1 else "One cell at a time."
        await run(job, parallel, CellStore(job.name, options.results, note, kept))


if __name__ == "__main__":
    asyncio.run(main(parse()))
