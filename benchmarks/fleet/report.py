"""The table of a fleet's cells, and their data, from which a run is resumed and pictures are drawn."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeAlias

import orjson

from benchmarks.fleet.arms import ARMS
from benchmarks.fleet.cells import SHORTEST_FIFO_WAIT_S, Cell, FleetFigures
from benchmarks.simulation.arms import SimulatedFigures

Cells = dict[tuple[str, int], Cell]
"""By arm and seed."""

Figures: TypeAlias = FleetFigures | SimulatedFigures

BASELINE = "straight"
TIMES: Sequence[tuple[str, Callable[[Figures], float]]] = (
    ("makespan s", lambda f: f.makespan_s),
    ("mean session s", lambda f: f.mean_session_s),
    ("p99 session s", lambda f: f.p99_session_s),
    ("p99 TTFT turn 1 s", lambda f: f.p99_ttft_first_s),
    ("p99 TTFT later s", lambda f: f.p99_ttft_later_s),
)
UNCACHED: tuple[str, Callable[[Figures], float]] = ("uncached tokens", lambda f: f.uncached_tokens)
COLUMNS: Sequence[tuple[str, Callable[[FleetFigures], float]]] = (
    *TIMES,
    ("waited s", lambda f: f.waited_s),
    UNCACHED,
)
"""`waited`: for first tokens, all turns together."""


def data_of(cells: Cells) -> dict[str, dict[int, Cell]]:
    """Arm -> seed -> cell, in the order of ARMS."""
    of_arms = {arm: {seed: cells[name, seed] for name, seed in sorted(cells) if name == arm} for arm in ARMS}
    return {arm: runs for arm, runs in of_arms.items() if runs}


def load(file: Path) -> Cells:
    """The cells of a result file."""
    cells = {}
    for runs in orjson.loads(file.read_bytes())["data"].values() if file.exists() else ():
        for fields in runs.values():
            cell = Cell(**fields | {"figures": FleetFigures(**fields["figures"])})
            cells[cell.arm, cell.seed] = cell
    return cells


def by_arm(cells: Cells) -> dict[str, dict[int, FleetFigures]]:
    """Arm -> seed -> figures, in the order of ARMS."""
    return {arm: {seed: cell.figures for seed, cell in runs.items()} for arm, runs in data_of(cells).items()}


def table(cells: Cells, note: str) -> str:
    arms = by_arm(cells)
    loads = [cell.load for cell in cells.values()]
    latest = max(cell.late_share for cell in cells.values())
    lines = [
        "Medians over the seeds; in brackets the ratio to `straight`: **of the sums over the seeds**, and median",
        "and range of the ratios seed by seed. Seconds are the clients' own, waiting before the engine included.",
        f"{note} Load of the machine at the start of a cell: {min(loads):.1f} to {max(loads):.1f};",
        f"the clients woke up late by {latest:.1%} of their sleep in the worst cell.",
        "",
        "| arm | seeds | " + " | ".join(name for name, _ in COLUMNS) + " | x floor | preemptions | errors |",
        "|---" * (len(COLUMNS) + 5) + "|",
    ]
    lines += [_row(arm, runs, arms.get(BASELINE, {})) for arm, runs in arms.items()]
    lines += ["", *(f"- `{arm}`: {ARMS[arm].what}." for arm in arms)]
    classes = sorted({label for runs in arms.values() for run in runs.values() for label in run.mean_of_class_s})
    if len(classes) > 1:
        lines += ["", *_classes(arms, classes)]
    if any(arrived for cell in cells.values() for arrived, *_ in cell.sessions if arrived > 1):
        lines += ["", *_waits(arms)]
    failures = sorted({f"- `{cell.arm}`: {failure}" for cell in cells.values() for failure in cell.failures})
    if failures:
        lines += ["", "Sessions that did not run to their end, because:", "", *failures]
    return "\n".join(lines)


def _row(arm: str, runs: Mapping[int, FleetFigures], baseline: Mapping[int, FleetFigures]) -> str:
    values = [_cell(runs, {} if arm == BASELINE else baseline, of) for _, of in COLUMNS]
    floor = sum(run.uncached_tokens for run in runs.values()) / sum(run.floor_tokens for run in runs.values())
    preemptions = statistics.mean(run.preemptions for run in runs.values())
    errors = sum(run.errors for run in runs.values())
    seeds = " ".join(map(str, runs))
    return f"| {arm} | {seeds} | " + " | ".join(values) + f" | {floor:.3f} | {preemptions:.0f} | {errors} |"


def _cell(
    runs: Mapping[int, FleetFigures], baseline: Mapping[int, FleetFigures], of: Callable[[FleetFigures], float]
) -> str:
    median = statistics.median(of(run) for run in runs.values())
    shown = f"{median:,.0f}" if median > 1_000 else f"{median:.2f}"
    pairs = [(of(run), of(baseline[seed])) for seed, run in runs.items() if seed in baseline]
    if not pairs or not all(base for _, base in pairs):
        return shown
    ratios = [new / base for new, base in pairs]
    of_sums = sum(new for new, _ in pairs) / sum(base for _, base in pairs)
    if len(pairs) == 1:
        return f"{shown} (**{of_sums:.3f}x**)"
    return f"{shown} (**{of_sums:.3f}x**; {statistics.median(ratios):.3f} [{min(ratios):.3f}-{max(ratios):.3f}])"


def _classes(arms: Mapping[str, Mapping[int, FleetFigures]], classes: Sequence[str]) -> Iterable[str]:
    yield "Mean session by class:"
    yield ""
    yield "| arm | " + " | ".join(f"{label} s" for label in classes) + " |"
    yield "|---" * (len(classes) + 1) + "|"
    baseline = arms.get(BASELINE, {})
    measures = [partial(_mean_of_class_s, label=label) for label in classes]
    for arm, runs in arms.items():
        means = [_cell(runs, {} if arm == BASELINE else baseline, of) for of in measures]
        yield f"| {arm} | " + " | ".join(means) + " |"


def _mean_of_class_s(run: FleetFigures, label: str) -> float:
    return run.mean_of_class_s.get(label, 0.0)


def _waits(arms: Mapping[str, Mapping[int, FleetFigures]]) -> Iterable[str]:
    yield "Longest wait for a session's first token, and the most that it was of the wait that the session's"
    yield "place in the arrivals would have got from the same starts in order"
    yield f"(counted as {SHORTEST_FIFO_WAIT_S:.0f} s at least):"
    yield ""
    yield "| arm | longest s | of the FIFO wait |"
    yield "|---|---|---|"
    for arm, runs in arms.items():
        longest = max(run.longest_first_wait_s for run in runs.values())
        worst = max(run.worst_wait_over_fifo for run in runs.values())
        yield f"| {arm} | {longest:.1f} | {worst:.2f}x |"
