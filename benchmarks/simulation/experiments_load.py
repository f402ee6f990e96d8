"""Experiments over load: sessions at once in a closed loop, and arrival rates in an open one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from benchmarks.simulation.arms import (
    INFINITE_CACHE,
    Cell,
    Measure,
    Sweep,
    mean,
    p99_session_s,
    p99_ttft_later_s,
    ratio,
    session_s,
    sweep,
    throughput,
    uncached,
)
from benchmarks.simulation.report import Bar, Outcome, Picture
from benchmarks.simulation.simulated import World
from benchmarks.simulation.workloads import plain
from gateway.demo.workload import Shape
from gateway.embedded.model import EngineSpec

BASE = World(EngineSpec(2_500))
"""40,000 tokens of KV cache: about 20 of the 40 sessions of the base fleet."""
R_PER_S = 40 / 44.9
"""Rates are multiples of R, 40 sessions per makespan of the straight closed loop of 40."""


def cliff(seeds: Sequence[int]) -> Outcome:
    """Throughput against sessions at once."""
    arms, counts = ("straight", "fifo", "turns", "oracle cap"), (8, 12, 16, 20, 24, 28, 32, 40, 50, 60, 80)
    cells = [Cell(partial(plain, Shape(max(160, 3 * count))), BASE, count) for count in counts]
    found = sweep(arms, cells, seeds)
    rate = {arm: [mean(runs, throughput) for runs in found[arm]] for arm in arms}
    last = {arm: values[-1] for arm, values in rate.items()}
    below = [rate["turns"][i] / rate["straight"][i] for i, count in enumerate(counts) if count <= 16]
    bars = [
        Bar("throughput over straight's, worst of 8 to 16 sessions", min(below), least=0.98),
        Bar("throughput over straight's, 80 sessions", last["turns"] / last["straight"], least=1.1),
        Bar("throughput over the best fixed cap's, 80 sessions", last["turns"] / last["oracle cap"], least=0.97),
    ]
    return Outcome(
        "Output tokens per second against the number of sessions that run at once, closed loop: 4 turns, 2,008 "
        "tokens of prompt shared, 400 tokens appended per turn, 40,000 tokens of cache. `fifo` is a cap of 16 "
        "requests; `oracle cap` is the best fixed cap on sessions of a scheduler that knows when a session ends.",
        ["sessions", *arms],
        [[count, *(rate[arm][i] for arm in arms)] for i, count in enumerate(counts)],
        found,
        bars,
        [
            Picture("Throughput", "sessions at once", "output tokens/s", lines(counts, found, throughput)),
            Picture("Recomputation", "sessions at once", "uncached tokens", lines(counts, found, uncached)),
        ],
    )


def overload(seeds: Sequence[int]) -> Outcome:
    """The tails below, at and past the cliff."""
    arms, rates = (
        ("straight", "turns", "oracle cap", "oracle", INFINITE_CACHE),
        (0.8, 1.0, 1.15, 1.3, 1.5, 1.8, 2.4),
    )
    cells = [Cell(partial(plain, Shape(200, arrival_rate_per_s=rate * R_PER_S)), BASE) for rate in rates]
    found = sweep(arms, cells, seeds)
    measures = {"mean": session_s, "p99": p99_session_s, "p99 TTFT later": p99_ttft_later_s}

    def against(rate: float, of: Measure) -> float:
        at = rates.index(rate)
        return ratio(found["turns"][at], found["straight"][at], of)

    rows: list[list[object]] = []
    for i, rate in enumerate(rates):
        for arm in arms:
            ratios = [ratio(found[arm][i], found["straight"][i], of) for of in measures.values()]
            means = [mean(found[arm][i], of) for of in measures.values()]
            rows.append([rate, arm, *means, *ratios, max(figures.max_wait_s for figures in found[arm][i])])
    return Outcome(
        "200 sessions of 4 turns, Poisson arrivals at multiples of R (0.89 sessions per second). Straight "
        "collapses near 1.2 R, so 2.4 R is twice the cliff.",
        [
            "rate / R",
            "arm",
            *(f"{name} s" for name in measures),
            *(f"{name}, ratio" for name in measures),
            "longest wait s",
        ],
        rows,
        found,
        [
            Bar("mean completion over straight's at 1.0 R", against(1.0, session_s), most=1.02),
            Bar("mean completion over straight's at 1.3 R", against(1.3, session_s), most=0.75),
            Bar("p99 completion over straight's at 2.4 R", against(2.4, p99_session_s), most=0.7),
            Bar("p99 TTFT of later turns over straight's at 2.4 R", against(2.4, p99_ttft_later_s), most=0.25),
        ],
        [Picture(name, "rate / R", "s", lines(rates, found, of)) for name, of in measures.items()],
    )


def lines(across: Sequence[float], found: Sweep, of: Measure) -> dict[str, list[tuple[float, float]]]:
    """One line per arm."""
    return {
        arm: [(x, mean(runs, of)) for x, runs in zip(across, cells, strict=True)] for arm, cells in found.items()
    }
