"""The simulator against real engines: the same fleets, arms and seeds in both, and what the simulator errs by.

    python -m benchmarks.fleet --engine dynamo --fleet base n80 --seeds 1 2 --results FOLDER
    python -m benchmarks.fleet.calibration FOLDER

Both commands belong to one commit: the gateway of the first is the Scheduler of the second.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from benchmarks.fleet import report
from benchmarks.fleet.cells import FleetFigures, workload_of
from benchmarks.fleet.fleets import FLEETS, OURS
from benchmarks.fleet.report import Figures
from benchmarks.results import command_parser, write
from benchmarks.simulation.arms import SimulatedFigures, play

MEASURES = (*report.TIMES, report.UNCACHED)
GAINS = MEASURES[:2]


NOTE = """\
The simulator leaves out timers that are late (1 % of an iteration), the tokens of the chat template (0.5 % of the
prompts, which adds 1 to 2 % of the uncached tokens in overload), recognition (it knows sessions, families and
forks), and the words that a returning answer shares with its first form. A decision of the gate on a knife's edge
falls otherwise now and then, by which p99 TTFT and small pools differ most: judge those by several seeds."""


@dataclass(frozen=True, slots=True)
class Pair:
    """One arm of one fleet at one seed, really and simulated."""

    fleet: str
    arm: str
    seed: int
    load: float
    late_share: float
    real: FleetFigures
    simulated: SimulatedFigures


def pairs(folder: Path) -> Iterable[Pair]:
    """Of each cell in the result files of `benchmarks.fleet`, if its fleet has not changed since."""
    for file in sorted(folder.glob("dynamo-*.json")):
        name = orjson.loads(file.read_bytes())["name"].removeprefix("dynamo-")
        for cell in report.load(file).values() if name in FLEETS else ():
            fleet = FLEETS[name]
            if cell.arm in OURS and cell.workload == workload_of(fleet, cell.seed):
                simulated = play(cell.arm, fleet.draw(cell.seed), fleet.world)
                yield Pair(name, cell.arm, cell.seed, cell.load, cell.late_share, cell.figures, simulated)


def table(found: Sequence[Pair]) -> str:
    """Means over the seeds, real -> simulated, and the ratio of the sums; then the gains of the gateway."""
    loads, latest = [pair.load for pair in found], max(pair.late_share for pair in found)
    lines = [
        "Means over the seeds: real -> simulated (simulated / real). Straight: no gateway. Turns: Turngate with",
        f"its default settings. Load of the machine: {min(loads):.1f} to {max(loads):.1f}; the clients woke up",
        f"late by {latest:.0%} of their sleep in the worst cell.",
        "",
        "| fleet | arm | seeds | " + " | ".join(name for name, _ in MEASURES) + " |",
        "|---" * (len(MEASURES) + 3) + "|",
    ]
    for fleet, arm, group in _groups(found):
        seeds = " ".join(str(pair.seed) for pair in group)
        lines.append(f"| {fleet} | {arm} | {seeds} | " + " | ".join(_cell(group, of) for _, of in MEASURES) + " |")
    lines += ["", "Turns over straight, of the sums over the seeds:", ""]
    lines += [
        "| fleet | " + " | ".join(f"{name.removesuffix(' s')}, real -> simulated" for name, _ in GAINS) + " |"
    ]
    lines += ["|---" * (len(GAINS) + 1) + "|"]
    groups = {(fleet, arm): group for fleet, arm, group in _groups(found)}
    for fleet in dict.fromkeys(fleet for fleet, _ in groups):
        straight, turns = (groups.get((fleet, arm), []) for arm in OURS)
        both = {pair.seed for pair in straight} & {pair.seed for pair in turns}
        if both:
            gains = [_gain(straight, turns, both, of) for _, of in GAINS]
            lines.append(f"| {fleet} | " + " | ".join(gains) + " |")
    return "\n".join((*lines, "", NOTE))


def _groups(found: Sequence[Pair]) -> Iterable[tuple[str, str, list[Pair]]]:
    for fleet in dict.fromkeys(pair.fleet for pair in found):
        for arm in OURS:
            group = [pair for pair in found if (pair.fleet, pair.arm) == (fleet, arm)]
            if group:
                yield fleet, arm, sorted(group, key=lambda pair: pair.seed)


def _cell(group: Sequence[Pair], of: Callable[[Figures], float]) -> str:
    real, simulated = (statistics.mean(values) for values in _both(group, of))
    form = ",.0f" if real > 1_000 else ".1f" if real >= 10 else ".2f"
    return f"{real:{form}} -> {simulated:{form}} ({simulated / real:.2f})"


def _gain(straight: Sequence[Pair], turns: Sequence[Pair], seeds: set[int], of: Callable[[Figures], float]) -> str:
    base, ours = (_both([pair for pair in group if pair.seed in seeds], of) for group in (straight, turns))
    real, simulated = (sum(new) / sum(old) for new, old in zip(ours, base, strict=True))
    return f"{real:.2f} -> {simulated:.2f}"


def _both(group: Sequence[Pair], of: Callable[[Figures], float]) -> tuple[list[float], list[float]]:
    return [of(pair.real) for pair in group], [of(pair.simulated) for pair in group]


def main() -> None:
    parser = command_parser(__doc__, __file__)
    parser.add_argument("cells", type=Path, metavar="FOLDER", help="result files of benchmarks.fleet")
    options: Any = parser.parse_args()
    found = list(pairs(options.cells))
    text = table(found)
    print(text)
    write(options.results, "calibration", text, found)


if __name__ == "__main__":
    main()
