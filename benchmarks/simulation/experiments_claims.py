"""Experiment on what others say: clients that do not cooperate, engines that mis-state or do not report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from benchmarks.simulation.arms import (
    Cell,
    makespan_s,
    mean,
    p99_ttft_later_s,
    ratio,
    session_s,
    sweep,
    uncached,
)
from benchmarks.simulation.experiments_load import BASE, R_PER_S
from benchmarks.simulation.report import Bar, Outcome
from benchmarks.simulation.simulated import CachedTokens, World
from benchmarks.simulation.workloads import plain
from gateway.demo.workload import Shape

WARM_UP_S = 120.0
RATE = 1.3
SILENT, REHITS = "nobody cooperates", "outputs are found again"


def worlds() -> dict[str, tuple[World, str]]:
    """Each with the one that it must not differ from."""
    rehits = replace(BASE, rehits_outputs=True)
    return {
        SILENT: (BASE, SILENT),
        "ends are declared": (replace(BASE, declares_end=True), SILENT),
        "ends and remaining turns are declared": (replace(BASE, declares_end=True, declares_turns=True), SILENT),
        "capacity stated 20 % too small": (replace(BASE, stated_capacity=0.8), SILENT),
        "capacity stated 20 % too large": (replace(BASE, stated_capacity=1.2), SILENT),
        "cached tokens absent": (replace(BASE, cached_tokens=CachedTokens.ABSENT), SILENT),
        "cached tokens always 0": (replace(BASE, cached_tokens=CachedTokens.ZERO), SILENT),
        "3 characters per token, no sample": (
            replace(BASE, chars_per_token=3.0, sample_chars_per_token=None),
            SILENT,
        ),
        "sample 20 % off": (replace(BASE, sample_chars_per_token=4.8), SILENT),
        REHITS: (rehits, REHITS),
        "the same, cached tokens absent": (replace(rehits, cached_tokens=CachedTokens.ABSENT), REHITS),
    }


def robustness(seeds: Sequence[int]) -> Outcome:
    """What others say, or leave out, must not matter."""
    said = worlds()
    draw = partial(plain, Shape(300, arrival_rate_per_s=RATE * R_PER_S))
    cells = [Cell(draw, world, after_s=WARM_UP_S) for world, _ in said.values()]
    found = sweep(("turns",), cells, seeds)
    runs = dict(zip(said, found["turns"], strict=True))
    straight = sweep(("straight",), cells[:1], seeds)["straight"][0]
    against = {name: ratio(runs[name], runs[other], session_s) for name, (_, other) in said.items()}
    rows = [
        [
            name,
            mean(runs[name], session_s),
            against[name],
            ratio(runs[name], runs[other], makespan_s),
            mean(runs[name], uncached),
            mean(runs[name], p99_ttft_later_s),
        ]
        for name, (_, other) in said.items()
    ]
    rows.append(
        [
            "(straight)",
            mean(straight, session_s),
            "",
            "",
            *(mean(straight, m) for m in (uncached, p99_ttft_later_s)),
        ]
    )
    return Outcome(
        f"300 sessions of 4 turns, Poisson arrivals at {RATE} R, the default policy. Completions are those of "
        f"sessions that arrived after the first {WARM_UP_S:.0f} s. Ratios are to the row where nobody cooperates "
        "or, where the engine finds its own answers again in the next prompt, to that row.",
        ["", "mean completion s", "ratio", "makespan, ratio", "uncached tokens", "p99 TTFT later s"],
        rows,
        runs,
        _bars(against),
    )


def _bars(against: Mapping[str, float]) -> list[Bar]:
    names = [name for name, (_, other) in worlds().items() if name != other]
    return [
        *(Bar(f"silence against: {name}", 1 / against[name], most=1.03) for name in names[:2]),
        *(Bar(name, against[name], most=1.03) for name in names[2:]),
    ]
