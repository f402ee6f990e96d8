"""Experiments over kinds of fleets: shared prefixes, mixed classes, and one setting on many shapes."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from benchmarks.simulation import generator
from benchmarks.simulation.arms import (
    ARMS,
    Cell,
    Figures,
    makespan_s,
    mean,
    p99_ttft_later_s,
    ratio,
    session_s,
    sweep,
    throughput,
    uncached,
)
from benchmarks.simulation.experiments_load import BASE, lines
from benchmarks.simulation.report import Bar, Outcome, Picture
from benchmarks.simulation.simulated import World
from benchmarks.simulation.workloads import BOUNDED, HEAVY, AgentRun, mixed, plain, siblings, with_children
from gateway.demo.workload import Shape
from gateway.embedded.model import EngineSpec

EIGHTY = World(EngineSpec(5_000))
"""80,000 tokens of cache."""
LABELS = (BOUNDED.name, HEAVY.name)
POD = World(EngineSpec(139_815))
"""2.2 million tokens of cache: a 30B model on two 80 GB GPUs (facts, scheduling 3)."""


def sharing(seeds: Sequence[int]) -> Outcome:
    """A ledger of unions against a ledger of sums."""
    arms, shares, peak_tokens = ("straight", "sum ledger", "turns", "oracle cap"), (0.3, 0.6, 0.9), 4_000
    capacity = BASE.spec.num_blocks * BASE.spec.block_tokens / peak_tokens
    counts = [round((2 * capacity - share) / (1 - share)) for share in shares]
    cells = [
        Cell(partial(siblings, count, share, peak_tokens), BASE)
        for count, share in zip(counts, shares, strict=True)
    ]
    found = sweep(arms, cells, seeds)
    pairs = zip(found["sum ledger"], found["turns"], strict=True)
    gains = [ratio(sums, unions, makespan_s) for sums, unions in pairs]
    rows = [
        [f"{share:.0%}", counts[i], *(mean(found[arm][i], makespan_s) for arm in arms), gains[i]]
        for i, share in enumerate(shares)
    ]
    return Outcome(
        "Sessions of one family, all at once, whose contexts at their largest take twice the cache, the shared "
        "prefix counted once. Makespans in seconds; last, the throughput of the union ledger over that of the sum "
        "ledger, which counts each session whole.",
        ["shared", "sessions", *arms, "union / sum"],
        rows,
        found,
        [Bar("throughput of the union ledger over the sum ledger's, 60 % shared", gains[1], least=1.2)],
        [Picture("Throughput", "shared part of a context", "output tokens/s", lines(shares, found, throughput))],
    )


def classes(seeds: Sequence[int]) -> Outcome:
    """A bounded class and one with a heavy tail, mixed."""
    arms, rates = ("straight", "turns", "declared", "oracle in bounds", "oracle"), (0.8, 1.0, 1.2)
    cells = [Cell(partial(_two_classes, rate), EIGHTY) for rate in rates]
    found = dict(sweep([arm for arm in arms if arm in ARMS], cells, seeds))
    told = replace(EIGHTY, declares_turns=True)
    found["declared"] = sweep(("turns",), [replace(cell, world=told) for cell in cells], seeds)["turns"]
    over = {
        (i, arm, label): ratio(found[arm][i], found["oracle"][i], partial(_of_class, label))
        for i in range(len(rates))
        for arm in arms
        for label in LABELS
    }
    waits = {(i, arm): max(f.most_of_bound for f in found[arm][i]) for i in range(len(rates)) for arm in arms}
    rows: list[list[object]] = []
    for i, arm in itertools.product(range(len(rates)), arms):
        means = [mean(found[arm][i], partial(_of_class, label)) for label in LABELS]
        overs = [over[i, arm, label] for label in LABELS]
        rows.append([rates[i], arm, *means, *overs, waits[i, arm], mean(found[arm][i], p99_ttft_later_s)])
    return Outcome(
        "300 sessions, half bounded (about 10 turns, 70k tokens), half heavy-tailed (median 5 turns, up to 100), "
        "token counts scaled by 0.1, 80,000 tokens of cache, Poisson arrivals. `declared`: clients announce their "
        "remaining turns. The oracle admits by real peaks, least real work first, and lets who is long wait; "
        "`oracle in bounds` knows the same and puts first who has waited past the bound.",
        [
            "rate /s",
            "arm",
            *(f"{label} s" for label in LABELS),
            *(f"{label} / oracle" for label in LABELS),
            "longest wait / bound",
            "p99 TTFT later s",
        ],
        rows,
        found,
        _class_bars(rates, over, waits),
        [
            Picture(f"Mean completion, {c}", "sessions/s", "s", lines(rates, found, partial(_of_class, c)))
            for c in LABELS
        ],
    )


def _class_bars(
    rates: Sequence[float], over: Mapping[tuple[int, str, str], float], waits: Mapping[tuple[int, str], float]
) -> list[Bar]:
    return [
        *(
            Bar(f"mean completion over the oracle's, {label}, {rate}/s", over[i, "turns", label], most=1.15)
            for i, rate in enumerate(rates)
            for label in LABELS
        ),
        *(
            Bar(f"longest wait for a first turn over its bound, {rate}/s", waits[i, "turns"], most=1.1)
            for i, rate in enumerate(rates)
        ),
    ]


def _two_classes(rate_per_s: float, seed: int) -> list[AgentRun]:
    return mixed((BOUNDED, HEAVY), 300, seed, rate_per_s, 0.1)


def _of_class(label: str, figures: Figures) -> float:
    return figures.of_class[label]


def shapes(seeds: Sequence[int]) -> Outcome:
    """One default setting on many shapes of fleet."""
    fleets = _shapes()
    found = sweep(("straight", "turns"), list(fleets.values()), seeds)
    without_children = list(fleets.values())[:-2]
    best = sweep(("oracle",), without_children, seeds)["oracle"]
    measures = {
        "makespan": makespan_s,
        "mean": session_s,
        "uncached": uncached,
        "p99 TTFT later": p99_ttft_later_s,
    }
    rows: list[list[object]] = []
    for i, name in enumerate(fleets):
        straight = found["straight"][i]
        oracle = [ratio(best[i], straight, of) if i < len(best) else "" for of in (makespan_s, session_s)]
        ours = [ratio(found["turns"][i], straight, of) for of in measures.values()]
        rows.append([name, *(mean(straight, of) for of in measures.values()), *ours, *oracle])
    return Outcome(
        "Straight in seconds and tokens, then the ratios of `turns` and of the oracle (real peaks, least real "
        "work first; not for sub-agents) to it.",
        [
            "fleet",
            *(f"straight {name}" for name in measures),
            *(f"turns {name}" for name in measures),
            "oracle makespan",
            "oracle mean",
        ],
        rows,
        {**found, "oracle": best},
    )


def _shapes() -> dict[str, Cell]:
    few = replace(BASE, spec=EngineSpec(900), num_replicas=4)
    return {
        "ctl: 40x4, no pressure": Cell(partial(plain, Shape(40)), World(EngineSpec(8_192))),
        "base: 40x4": Cell(partial(plain, Shape(40)), BASE),
        "37x4": Cell(partial(plain, Shape(37)), BASE),
        "80x4": Cell(partial(plain, Shape(80)), BASE),
        "mixed: 40 of 2, 4 or 8 turns": Cell(partial(plain, Shape(40, (2, 4, 8))), BASE),
        "30x8": Cell(partial(plain, Shape(30, (8,))), BASE),
        "long answers": Cell(partial(plain, Shape(40, output_tokens=(300, 600))), BASE),
        "slow tools": Cell(partial(plain, Shape(40, gap_s=(2.0, 8.0))), BASE),
        "little shared": Cell(partial(plain, Shape(40, shared_tokens=300, first_tokens=1_200)), BASE),
        "w4: four workers": Cell(partial(plain, Shape(40)), few),
        "pod, two classes, 120 at once": Cell(partial(mixed, (BOUNDED, HEAVY), 120), POD),
        "pod, bounded, 60 at once": Cell(partial(mixed, (BOUNDED,), 60), POD),
        "sub-agents": Cell(_with_children, BASE),
        "day-to-day, open loop": Cell(_day_to_day, BASE),
    }


def _with_children(seed: int) -> list[AgentRun]:
    return with_children(plain(Shape(30), seed), 0.44, seed)


def _day_to_day(seed: int) -> list[AgentRun]:
    """Sessions of the calibrated generator at a fiftieth of their size."""
    return generator.sessions(60, seed, rate_per_s=0.1, scale=0.02)
