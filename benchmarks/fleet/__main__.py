"""Runs fleets and writes their tables.

    python -m benchmarks.fleet --engine dynamo --fleet base --arms straight turns --seeds 1 2 3
    python -m benchmarks.fleet --suite part-b
    python -m benchmarks.fleet --suite part-b --resume                        # go on where it stopped
    python -m benchmarks.fleet --suite part-b --resume --again straight turns # after a change of the gateway

Results: benchmarks/results/fleet-ENGINE-FLEET.{md,json,png}, and .jsonl with one line per cell.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks import plots
from benchmarks.fleet import report
from benchmarks.fleet.arms import ARMS
from benchmarks.fleet.cells import run_cell
from benchmarks.fleet.engines import ENGINES, PARALLEL, measured_chars_per_token
from benchmarks.fleet.fleets import FLEETS
from benchmarks.fleet.suites import SUITES, Job
from benchmarks.results import write
from gateway.transport import UpstreamCut, UpstreamRefused
from gateway.transports.aiohttp_upstream import AiohttpUpstream
from tests.real.parts import NotInstalledError
from tests.real.process import ServerFailedError

CELL_FAILURES = (
    *(RuntimeError, OSError, TimeoutError, UpstreamRefused, UpstreamCut),
    *(ServerFailedError, NotInstalledError),
)


def interleaved(arms: Sequence[str], seeds: Sequence[int]) -> list[tuple[str, int]]:
    """Seed by seed, each starting with another arm."""
    return [(arms[(seed + place) % len(arms)], seed) for seed in seeds for place in range(len(arms))]


async def run(job: Job, parallel: int, kept: report.Cells, folder: Path) -> None:
    """Run the cells of one fleet on one engine that are not in `kept`; each of them writes the result files anew.

    A cell that cannot be run (an engine or a proxy that does not start) is named and left out.
    """
    fleet = FLEETS[job.fleet]
    file = folder / f"{job.name}.jsonl"
    cells = dict(kept)
    arms = [arm for arm in job.arms if job.engine in ARMS[arm].engines]
    todo = [key for key in interleaved(arms, job.seeds) if key not in cells]
    if not todo:
        print(f"{job.name}: complete", file=sys.stderr)
        return
    note = f"Up to {parallel} cells at a time, seeds interleaved." if parallel > 1 else "One cell at a time."
    slots = asyncio.Semaphore(parallel)
    async with ENGINES[job.engine](fleet) as fresh:
        async with fresh() as engine:
            upstream = AiohttpUpstream()
            chars_per_token = await measured_chars_per_token(upstream, engine)
            await upstream.close()

        async def one(arm: str, seed: int) -> None:
            async with slots:
                started = time.monotonic()
                try:
                    cell = await run_cell(fleet, fresh, arm, seed, chars_per_token)
                except CELL_FAILURES as error:
                    why = (str(error).splitlines() or [type(error).__name__])[-1]
                    print(f"{job.name} seed {seed} {arm} FAILED: {why}", file=sys.stderr)
                    return
            cells[arm, seed] = cell
            found = cell.figures
            report.save(file, cells)
            write(job.name, report.table(cells, note), _data(cells), folder)
            print(
                f"{job.name} seed {seed} {arm}: makespan {found.makespan_s:.2f} s, mean"
                f" {found.mean_session_s:.2f} s, {found.uncached_tokens:,} uncached, {found.errors} errors"
                f" ({time.monotonic() - started:.0f} s, load {cell.load:.0f},"
                f" {cell.late_share:.0%} late)",
                file=sys.stderr,
                flush=True,
            )

        async with asyncio.TaskGroup() as group:
            for arm, seed in todo:
                group.create_task(one(arm, seed))
    if not cells:
        return
    print(report.table(cells, note))
    plots.draw(cells, job.name, folder / f"{job.name}.png")


def _data(cells: report.Cells) -> dict[str, dict[str, dict[str, float]]]:
    return {
        arm: {str(seed): asdict(figures) for seed, figures in runs.items()}
        for arm, runs in report.by_arm(cells).items()
    }


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.fleet",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--engine", choices=ENGINES, default="embedded")
    parser.add_argument("--fleet", choices=FLEETS, nargs="+", default=["base"])
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=["straight", "turns"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--suite", choices=SUITES, help="a list of such runs, instead of the options above")
    parser.add_argument("--resume", action="store_true", help="keep the cells that the result file has")
    parser.add_argument("--again", nargs="+", choices=ARMS, default=[], help="arms that --resume does not keep")
    parser.add_argument("--parallel", type=int, help="cells at a time (default: what the engine bears)")
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results"), metavar="FOLDER")
    return parser.parse_args()


async def main(options: argparse.Namespace) -> None:
    own = [Job(options.engine, fleet, tuple(options.arms), tuple(options.seeds)) for fleet in options.fleet]
    for job in SUITES[options.suite] if options.suite else own:
        found = report.load(options.results / f"{job.name}.jsonl") if options.resume else {}
        kept = {key: cell for key, cell in found.items() if cell.arm not in options.again}
        await run(job, options.parallel or PARALLEL[job.engine], kept, options.results)


if __name__ == "__main__":
    asyncio.run(main(parse()))
