"""The experiments in virtual time: load, kinds of fleets, and what engines and clients say."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from benchmarks.simulation import generator
from benchmarks.simulation.arms import (
    ARMS,
    INFINITE_CACHE,
    Measure,
    SimulatedFigures,
    Sweep,
    SweepCell,
    makespan_s,
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
from benchmarks.simulation.simulator import CachedTokens, World
from benchmarks.simulation.workloads import (
    BOUNDED,
    HEAVY,
    AgentRun,
    mixed,
    plain,
    siblings,
    with_children,
)
from gateway.cli.demo_fleet import FleetShape
from gateway.embedded.model import EngineSpec

BASE = World(EngineSpec(2_500))
"""40,000 tokens of KV cache: about 20 of the 40 sessions of the base fleet."""
R_PER_S = 40 / 44.9
"""Rates are multiples of R, 40 sessions per makespan of the straight closed loop of 40."""


def cliff(seeds: Sequence[int]) -> Outcome:
    """Throughput against sessions at once."""
    arms, counts = ("straight", "fifo", "turns", "oracle cap"), (8, 12, 16, 20, 24, 28, 32, 40, 50, 60, 80)
    cells = [SweepCell(partial(plain, FleetShape(max(160, 3 * count))), BASE, count) for count in counts]
    runs_of = sweep(arms, cells, seeds)
    rate = {arm: [mean(runs, throughput) for runs in runs_of[arm]] for arm in arms}
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
        runs_of,
        bars,
        [
            Picture("Throughput", "sessions at once", "output tokens/s", lines(counts, runs_of, throughput)),
            Picture("Recomputation", "sessions at once", "uncached tokens", lines(counts, runs_of, uncached)),
        ],
    )


def overload(seeds: Sequence[int]) -> Outcome:
    """The tails below, at and past the cliff."""
    arms, rates = (
        ("straight", "turns", "oracle cap", "oracle", INFINITE_CACHE),
        (0.8, 1.0, 1.15, 1.3, 1.5, 1.8, 2.4),
    )
    cells = [SweepCell(partial(plain, FleetShape(200, arrival_rate_per_s=rate * R_PER_S)), BASE) for rate in rates]
    runs_of = sweep(arms, cells, seeds)
    measures = {"mean": session_s, "p99": p99_session_s, "p99 TTFT later": p99_ttft_later_s}

    def against(rate: float, of: Measure) -> float:
        at = rates.index(rate)
        return ratio(runs_of["turns"][at], runs_of["straight"][at], of)

    rows: list[list[object]] = []
    for i, rate in enumerate(rates):
        for arm in arms:
            ratios = [ratio(runs_of[arm][i], runs_of["straight"][i], of) for of in measures.values()]
            means = [mean(runs_of[arm][i], of) for of in measures.values()]
            rows.append([rate, arm, *means, *ratios, max(figures.max_wait_s for figures in runs_of[arm][i])])
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
        runs_of,
        [
            Bar("mean completion over straight's at 1.0 R", against(1.0, session_s), most=1.02),
            Bar("mean completion over straight's at 1.3 R", against(1.3, session_s), most=0.75),
            Bar("p99 completion over straight's at 2.4 R", against(2.4, p99_session_s), most=0.7),
            Bar("p99 TTFT of later turns over straight's at 2.4 R", against(2.4, p99_ttft_later_s), most=0.25),
        ],
        [Picture(name, "rate / R", "s", lines(rates, runs_of, of)) for name, of in measures.items()],
    )


def lines(across: Sequence[float], runs_of: Sweep, of: Measure) -> dict[str, list[tuple[float, float]]]:
    """One line per arm."""
    return {
        arm: [(x, mean(runs, of)) for x, runs in zip(across, cells, strict=True)] for arm, cells in runs_of.items()
    }


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
        SweepCell(partial(siblings, count, share, peak_tokens), BASE)
        for count, share in zip(counts, shares, strict=True)
    ]
    runs_of = sweep(arms, cells, seeds)
    pairs = zip(runs_of["sum ledger"], runs_of["turns"], strict=True)
    gains = [ratio(sums, unions, makespan_s) for sums, unions in pairs]
    rows = [
        [f"{share:.0%}", counts[i], *(mean(runs_of[arm][i], makespan_s) for arm in arms), gains[i]]
        for i, share in enumerate(shares)
    ]
    return Outcome(
        "Sessions of one family, all at once, whose contexts at their largest take twice the cache, the shared "
        "prefix counted once. Makespans in seconds; last, the throughput of the union ledger over that of the sum "
        "ledger, which counts each session whole.",
        ["shared", "sessions", *arms, "union / sum"],
        rows,
        runs_of,
        [Bar("throughput of the union ledger over the sum ledger's, 60 % shared", gains[1], least=1.2)],
        [Picture("Throughput", "shared part of a context", "output tokens/s", lines(shares, runs_of, throughput))],
    )


def classes(seeds: Sequence[int]) -> Outcome:
    """A bounded class and one with a heavy tail, mixed."""
    arms, rates = ("straight", "turns", "declared", "oracle in bounds", "oracle"), (0.8, 1.0, 1.2)
    cells = [SweepCell(partial(_two_classes, rate), EIGHTY) for rate in rates]
    runs_of = dict(sweep([arm for arm in arms if arm in ARMS], cells, seeds))
    declaring = replace(EIGHTY, declares_turns=True)
    runs_of["declared"] = sweep(("turns",), [replace(cell, world=declaring) for cell in cells], seeds)["turns"]
    over = {
        (i, arm, label): ratio(runs_of[arm][i], runs_of["oracle"][i], partial(_of_class, label))
        for i in range(len(rates))
        for arm in arms
        for label in LABELS
    }
    waits = {(i, arm): max(f.most_of_bound for f in runs_of[arm][i]) for i in range(len(rates)) for arm in arms}
    rows: list[list[object]] = []
    for i, arm in itertools.product(range(len(rates)), arms):
        means = [mean(runs_of[arm][i], partial(_of_class, label)) for label in LABELS]
        overs = [over[i, arm, label] for label in LABELS]
        rows.append([rates[i], arm, *means, *overs, waits[i, arm], mean(runs_of[arm][i], p99_ttft_later_s)])
    return Outcome(
        "300 sessions, half bounded (about 10 turns, 70k tokens), half heavy-tailed (median 5 turns, up to 100), "
        "token counts scaled by 0.1, 80,000 tokens of cache, Poisson arrivals. `declared`: clients announce their "
        "remaining turns. The oracle admits by real peaks, least real work first, and lets long sessions wait; "
        "`oracle in bounds` knows the same and puts a session first that has waited past the bound.",
        [
            "rate /s",
            "arm",
            *(f"{label} s" for label in LABELS),
            *(f"{label} / oracle" for label in LABELS),
            "longest wait / bound",
            "p99 TTFT later s",
        ],
        rows,
        runs_of,
        _class_bars(rates, over, waits),
        [
            Picture(f"Mean completion, {c}", "sessions/s", "s", lines(rates, runs_of, partial(_of_class, c)))
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


def _of_class(label: str, figures: SimulatedFigures) -> float:
    return figures.of_class[label]


def shapes(seeds: Sequence[int]) -> Outcome:
    """One default setting on many shapes of fleet."""
    fleets = _shapes()
    runs_of = sweep(("straight", "turns"), list(fleets.values()), seeds)
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
        straight = runs_of["straight"][i]
        oracle = [ratio(best[i], straight, of) if i < len(best) else "" for of in (makespan_s, session_s)]
        ours = [ratio(runs_of["turns"][i], straight, of) for of in measures.values()]
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
        {**runs_of, "oracle": best},
    )


def _shapes() -> dict[str, SweepCell]:
    few = replace(BASE, spec=EngineSpec(900), num_replicas=4)
    return {
        "ctl: 40x4, no pressure": SweepCell(partial(plain, FleetShape(40)), World(EngineSpec(8_192))),
        "base: 40x4": SweepCell(partial(plain, FleetShape(40)), BASE),
        "37x4": SweepCell(partial(plain, FleetShape(37)), BASE),
        "80x4": SweepCell(partial(plain, FleetShape(80)), BASE),
        "mixed: 40 of 2, 4 or 8 turns": SweepCell(partial(plain, FleetShape(40, (2, 4, 8))), BASE),
        "30x8": SweepCell(partial(plain, FleetShape(30, (8,))), BASE),
        "long answers": SweepCell(partial(plain, FleetShape(40, output_tokens=(300, 600))), BASE),
        "slow tools": SweepCell(partial(plain, FleetShape(40, gap_s=(2.0, 8.0))), BASE),
        "little shared": SweepCell(partial(plain, FleetShape(40, shared_tokens=300, first_tokens=1_200)), BASE),
        "w4: four workers": SweepCell(partial(plain, FleetShape(40)), few),
        "pod, two classes, 120 at once": SweepCell(partial(mixed, (BOUNDED, HEAVY), 120), POD),
        "pod, bounded, 60 at once": SweepCell(partial(mixed, (BOUNDED,), 60), POD),
        "sub-agents": SweepCell(_with_children, BASE),
        "day-to-day, open loop": SweepCell(_day_to_day, BASE),
    }


def _with_children(seed: int) -> list[AgentRun]:
    return with_children(plain(FleetShape(30), seed), 0.44, seed)


def _day_to_day(seed: int) -> list[AgentRun]:
    """Sessions of the calibrated generator at a fiftieth of their size."""
    return generator.sessions(60, seed, rate_per_s=0.1, scale=0.02)


LEFT_OUT_S = 120.0
ROBUSTNESS_RATE = 1.3
SILENT, REHITS = "no client cooperates", "outputs are found again"


def _worlds() -> dict[str, tuple[World, str]]:
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
    worlds = _worlds()
    draw = partial(plain, FleetShape(300, arrival_rate_per_s=ROBUSTNESS_RATE * R_PER_S))
    cells = [SweepCell(draw, world, after_s=LEFT_OUT_S) for world, _ in worlds.values()]
    runs_of = sweep(("turns",), cells, seeds)
    runs = dict(zip(worlds, runs_of["turns"], strict=True))
    straight = sweep(("straight",), cells[:1], seeds)["straight"][0]
    against = {name: ratio(runs[name], runs[other], session_s) for name, (_, other) in worlds.items()}
    rows = [
        [
            name,
            mean(runs[name], session_s),
            against[name],
            ratio(runs[name], runs[other], makespan_s),
            mean(runs[name], uncached),
            mean(runs[name], p99_ttft_later_s),
        ]
        for name, (_, other) in worlds.items()
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
        f"300 sessions of 4 turns, Poisson arrivals at {ROBUSTNESS_RATE} R, the default policy. Completions are "
        f"those of sessions that arrived after the first {LEFT_OUT_S:.0f} s. Ratios are to the row where no "
        "client cooperates or, where the engine finds its own answers again in the next prompt, to that row.",
        ["", "mean completion s", "ratio", "makespan, ratio", "uncached tokens", "p99 TTFT later s"],
        rows,
        runs,
        _robustness_bars(against),
    )


def _robustness_bars(against: Mapping[str, float]) -> list[Bar]:
    names = [name for name, (_, other) in _worlds().items() if name != other]
    return [
        *(Bar(f"silence against: {name}", 1 / against[name], most=1.03) for name in names[:2]),
        *(Bar(name, against[name], most=1.03) for name in names[2:]),
    ]
