"""Experiment on warm-ups: agents with slow tools beside bursts of others that push them out of the cache."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial

from benchmarks.simulation.arms import (
    Cell,
    Figures,
    mean,
    p99_ttft_later_s,
    ratio,
    session_s,
    sweep,
    uncached,
)
from benchmarks.simulation.experiments_load import BASE
from benchmarks.simulation.report import Bar, Outcome
from benchmarks.simulation.workloads import AgentRun, Kind, of_kind

NUM_SLOW, NUM_BURSTS, OF_BURST = 6, 12, 16
SLOW_S = 40.0
QUICK = Kind("quick", (3, 0.2), 5, 2_000, (1_000, 3_000), (600, 0.5), (120, 0.3), (0.5, 0.5))
FLEETS = {
    "quiet in between, tools of one length": (90.0, 0.02),
    "quiet in between, tools of any length": (90.0, 1.0),
    "never quiet, tools of one length": (45.0, 0.02),
    "never quiet, tools of any length": (45.0, 1.0),
}
"""Seconds between bursts, and sigma of the slow tools."""
ARMS = ("straight", "turns", "warming up")


def bursts(every_s: float, spread: float, seed: int) -> list[AgentRun]:
    """A few agents whose tools take about SLOW_S, and now and then a burst of quick ones."""
    rng = random.Random(seed)
    slow = Kind("slow", (12, 0.1), 14, 2_000, (2_500, 3_500), (300, 0.5), (120, 0.3), (SLOW_S, spread))
    runs = [of_kind(slow, f"slow-{number}", rng.uniform(0.0, SLOW_S), rng) for number in range(NUM_SLOW)]
    for number in range(NUM_BURSTS):
        at = every_s * (number + 1)
        runs += [of_kind(QUICK, f"quick-{number}-{member}", at, rng) for member in range(OF_BURST)]
    return sorted(runs, key=lambda run: run.arrives_at)


def slow_ttft_s(figures: Figures) -> float:
    return figures.ttft_later_of_class_s["slow"]


def warm_up(seeds: Sequence[int]) -> Outcome:
    """What a session lost while its tool ran is computed again before the tool returns, or after."""
    found = sweep(ARMS, [Cell(partial(bursts, *fleet), BASE) for fleet in FLEETS.values()], seeds)
    measures = (slow_ttft_s, p99_ttft_later_s, session_s, uncached, lambda figures: figures.warm_ups)
    rows = [
        [name, arm, *(mean(found[arm][i], measure) for measure in measures)]
        for i, name in enumerate(FLEETS)
        for arm in ARMS
    ]
    against = [ratio(found["warming up"][i], found["turns"][i], slow_ttft_s) for i in range(len(FLEETS))]
    most = [0.9 if name.startswith("quiet") else 1.05 for name in FLEETS]
    return Outcome(
        f"{NUM_SLOW} agents whose tools take {SLOW_S:.0f} s and, every 90 or 45 s, a burst of {OF_BURST} quick "
        "ones that need more than the cache. `warming up`: as `turns`, with warm-ups. Bars: mean TTFT of the "
        "later turns of the slow ones, over that without warm-ups.",
        ["fleet", "arm", "TTFT later, slow s", "p99 TTFT later s", "mean completion s", "uncached", "warm-ups"],
        rows,
        {f"{name}, {arm}": found[arm][i] for arm in ARMS for i, name in enumerate(FLEETS)},
        [Bar(name, value, most=bar) for name, value, bar in zip(FLEETS, against, most, strict=True)],
    )
