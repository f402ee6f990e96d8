"""Experiments in virtual time, each one command that writes a table, its data and a picture.

    python -m benchmarks.experiments NAME|all [--seeds 1 2 3] [--results DIRECTORY]

Rates are multiples of R = 40 sessions per makespan of the straight closed loop of 40, as in the fleet benchmark.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

from benchmarks.experiments_arms import Figures, mean_ratio, play
from benchmarks.experiments_report import Bar, Outcome, Picture, publish
from benchmarks.simulated import CachedTokens, World
from benchmarks.workloads import BOUNDED, HEAVY, AgentRun, mixed, plain, siblings, with_children
from gateway.demo.workload import Shape
from gateway.embedded.model import EngineSpec

Seeds: TypeAlias = Sequence[int]
BASE = World(EngineSpec(2_500))
"""40,000 tokens of KV cache: about 20 of the 40 sessions of the base fleet."""
R_PER_S = 40 / 44.9
WARM_UP_S = 120.0


def cliff(seeds: Seeds) -> Outcome:
    """Throughput and prefix hits against sessions at once, in a closed loop."""
    arms = ("straight", "fifo", "turns", "oracle cap")
    counts = (8, 12, 16, 20, 24, 28, 32, 40, 50, 60, 80)
    found = {
        arm: [
            [play(arm, plain(Shape(max(160, 3 * count)), seed), BASE, count) for seed in seeds] for count in counts
        ]
        for arm in arms
    }
    rate = {arm: [_mean(runs, lambda f: f.output_tokens_per_s) for runs in found[arm]] for arm in arms}
    rows = [[count, *(rate[arm][i] for arm in arms)] for i, count in enumerate(counts)]
    below = [i for i, count in enumerate(counts) if count <= 16]
    return Outcome(
        "Output tokens per second against the number of sessions that run at once, closed loop, the base fleet of the "
        "fleet benchmark. `fifo` is a cap of 16 requests; `oracle cap` is the best fixed cap on sessions, by a "
        "scheduler that knows when a session has ended.",
        ["sessions", *arms],
        rows,
        {arm: [list(runs) for runs in found[arm]] for arm in arms},
        [
            Bar(
                "turns / straight below the cliff",
                min(rate["turns"][i] / rate["straight"][i] for i in below),
                least=0.98,
            ),
            Bar("turns / straight at 80 sessions", rate["turns"][-1] / rate["straight"][-1], least=1.1),
            Bar("turns / best fixed cap at 80 sessions", rate["turns"][-1] / rate["oracle cap"][-1], least=0.97),
        ],
        [
            Picture("Throughput", "sessions at once", "output tokens/s", _lines(counts, rate)),
            Picture(
                "Uncached tokens per session",
                "sessions at once",
                "tokens",
                _lines(
                    counts,
                    {
                        arm: [
                            _mean(runs, lambda f: f.uncached_tokens) / max(160, 3 * count)
                            for count, runs in zip(counts, found[arm], strict=True)
                        ]
                        for arm in arms
                    },
                ),
            ),
        ],
    )


def sharing(seeds: Seeds) -> Outcome:
    """A ledger of unions against a ledger of sums, by the share of context that siblings have in common."""
    arms = ("straight", "sum ledger", "turns", "oracle cap")
    shares, peak_tokens, capacity_tokens = (0.3, 0.6, 0.9), 4_000, 40_000
    counts = [round((2 * capacity_tokens / peak_tokens - share) / (1 - share)) for share in shares]
    found = {
        arm: [
            [play(arm, siblings(count, share, peak_tokens, seed), BASE) for seed in seeds]
            for share, count in zip(shares, counts, strict=True)
        ]
        for arm in arms
    }
    gain = [
        mean_ratio(sums, unions, lambda f: f.makespan_s)
        for sums, unions in zip(found["sum ledger"], found["turns"], strict=True)
    ]
    rows = [
        [f"{share:.0%}", count, *(_mean(found[arm][i], lambda f: f.makespan_s) for arm in arms), gain[i]]
        for i, (share, count) in enumerate(zip(shares, counts, strict=True))
    ]
    throughput = {arm: [_mean(runs, lambda f: f.output_tokens_per_s) for runs in found[arm]] for arm in arms}
    return Outcome(
        "Sessions of one family, all at once, whose contexts at their largest would take twice the cache (shared "
        "prefix counted once). Makespans in seconds; the last column is the throughput of the union ledger over that "
        "of the sum ledger, which counts each session whole.",
        ["shared", "sessions", *arms, "union / sum"],
        rows,
        found,
        [Bar("throughput of the union ledger over the sum ledger at 60 %", gain[1], least=1.2)],
        [
            Picture(
                "Throughput", "shared prefix, % of a context", "output tokens/s", _lines([30, 60, 90], throughput)
            )
        ],
    )


def classes(seeds: Seeds) -> Outcome:
    """Two classes mixed, one bounded and one with a heavy tail, in open loop around saturation."""
    arms, rates, world = (
        ("straight", "turns", "turns, declared", "oracle"),
        (0.8, 1.0, 1.2),
        World(EngineSpec(5_000)),
    )
    fleets = {rate: [mixed((BOUNDED, HEAVY), 300, seed, rate, 0.1) for seed in seeds] for rate in rates}
    declared = replace(world, declares_turns=True)
    found = {
        arm: [
            [play(arm.partition(",")[0], runs, declared if "," in arm else world) for runs in fleets[rate]]
            for rate in rates
        ]
        for arm in arms
    }
    labels = ("bounded", "heavy")
    rows = [
        [
            rate,
            arm,
            *(_mean(found[arm][i], lambda f, c=label: f.of_class[c]) for label in labels),  # type: ignore[misc]
            *(_over(found[arm][i], found["oracle"][i], label) for label in labels),
            max(f.max_wait_s for f in found[arm][i]),
            _mean(found[arm][i], lambda f: f.p99_ttft_later_s),
        ]
        for i, rate in enumerate(rates)
        for arm in arms
    ]
    return Outcome(
        "300 sessions, half of them bounded (about 10 turns, 70k tokens), half heavy-tailed (median 5 turns, up to 100),"
        " token counts scaled by 0.1, 80,000 tokens of cache, Poisson arrivals per second as given. The oracle admits "
        "by real peaks, least real work first.",
        [
            "rate /s",
            "arm",
            *(f"mean {label} s" for label in labels),
            *(f"{label} / oracle" for label in labels),
            "longest wait s",
            "p99 TTFT later s",
        ],
        rows,
        found,
        [
            *(
                Bar(
                    f"mean completion over the oracle's, {label}, rate {rate}",
                    _over(found["turns"][i], found["oracle"][i], label),
                    most=1.15,
                )
                for i, rate in enumerate(rates)
                for label in labels
            ),
            *(
                Bar(f"longest wait, s, rate {rate}", max(f.max_wait_s for f in found["turns"][i]), most=120.0)
                for i, rate in enumerate(rates)
            ),
        ],
        [
            Picture(
                f"Mean completion, {label}",
                "sessions per second",
                "s",
                _lines(
                    rates,
                    {arm: [_mean(runs, lambda f, c=label: f.of_class[c]) for runs in found[arm]] for arm in arms},
                ),
            )  # type: ignore[misc]
            for label in labels
        ],
    )


def overload(seeds: Seeds) -> Outcome:
    """Open loop below, at and past the cliff: the tails."""
    arms, rates = ("straight", "turns", "oracle cap", "oracle"), (0.8, 1.0, 1.15, 1.3, 1.5, 1.8, 2.4)
    found = {
        arm: [
            [play(arm, plain(Shape(200, arrival_rate_per_s=rate * R_PER_S), seed), BASE) for seed in seeds]
            for rate in rates
        ]
        for arm in arms
    }
    measures: dict[str, Callable[[Figures], float]] = {
        "mean": lambda f: f.mean_session_s,
        "p99": lambda f: f.p99_session_s,
        "p99 TTFT later": lambda f: f.p99_ttft_later_s,
    }
    rows = [
        [
            rate,
            arm,
            *(_mean(found[arm][i], of) for of in measures.values()),
            *(mean_ratio(found[arm][i], found["straight"][i], of) for of in measures.values()),
            max(f.max_wait_s for f in found[arm][i]),
        ]
        for i, rate in enumerate(rates)
        for arm in arms
    ]
    at = {
        rate: [mean_ratio(found["turns"][i], found["straight"][i], of) for of in measures.values()]
        for i, rate in enumerate(rates)
    }
    return Outcome(
        "200 sessions of 4 turns, Poisson arrivals at multiples of R. The cliff of the straight arm lies near 1.2 R: "
        "2.4 R is twice the cliff.",
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
            Bar("mean completion over straight's at 1.0 R", at[1.0][0], most=1.02),
            Bar("mean completion over straight's at 1.3 R", at[1.3][0], most=0.75),
            Bar("p99 completion over straight's at 2.4 R", at[2.4][1], most=0.7),
            Bar("p99 TTFT of later turns over straight's at 2.4 R", at[2.4][2], most=0.25),
        ],
        [
            Picture(
                name,
                "rate / R",
                "s",
                _lines(rates, {arm: [_mean(runs, of) for runs in found[arm]] for arm in arms}),
            )
            for name, of in measures.items()
        ],
    )


def robustness(seeds: Seeds) -> Outcome:
    """What others say, or do not say, must not matter."""
    fleets = [plain(Shape(300, arrival_rate_per_s=1.3 * R_PER_S), seed) for seed in seeds]
    rehits = replace(BASE, rehits_outputs=True)
    worlds = {
        "nobody cooperates": BASE,
        "ends are declared": replace(BASE, declares_end=True),
        "ends and turns are declared": replace(BASE, declares_end=True, declares_turns=True),
        "capacity stated 20 % too small": replace(BASE, stated_capacity=0.8),
        "capacity stated 20 % too large": replace(BASE, stated_capacity=1.2),
        "cached tokens absent": replace(BASE, cached_tokens=CachedTokens.ABSENT),
        "cached tokens always 0": replace(BASE, cached_tokens=CachedTokens.ZERO),
        "3 characters per token, no sample": replace(BASE, chars_per_token=3.0, sample_chars_per_token=None),
        "sample 20 % off": replace(BASE, sample_chars_per_token=4.8),
        "outputs hit again": rehits,
        "outputs hit again, cached tokens absent": replace(rehits, cached_tokens=CachedTokens.ABSENT),
    }
    found = {
        name: [play("turns", runs, world, after_s=WARM_UP_S) for runs in fleets] for name, world in worlds.items()
    }
    straight = [play("straight", runs, BASE, after_s=WARM_UP_S) for runs in fleets]
    against = {name: "outputs hit again" if name.startswith("outputs") else "nobody cooperates" for name in worlds}
    mean = {
        name: mean_ratio(runs, found[against[name]], lambda f: f.mean_session_s) for name, runs in found.items()
    }
    makespan = {
        name: mean_ratio(runs, found[against[name]], lambda f: f.makespan_s) for name, runs in found.items()
    }
    rows = [
        [
            name,
            _mean(runs, lambda f: f.mean_session_s),
            mean[name],
            makespan[name],
            _mean(runs, lambda f: f.uncached_tokens),
            _mean(runs, lambda f: f.p99_ttft_later_s),
        ]
        for name, runs in {**found, "straight": straight}.items()
        if name in mean
    ]
    rows.append(
        [
            "straight",
            _mean(straight, lambda f: f.mean_session_s),
            "",
            "",
            _mean(straight, lambda f: f.uncached_tokens),
            _mean(straight, lambda f: f.p99_ttft_later_s),
        ]
    )
    return Outcome(
        f"300 sessions, Poisson arrivals at 1.3 R, the default policy. Completions are those of sessions that arrived "
        f"after the first {WARM_UP_S:.0f} s; ratios are to the row where nobody cooperates, or, where the engine finds "
        "its own outputs again, to that row.",
        ["", "mean completion s", "ratio", "makespan, ratio", "uncached tokens", "p99 TTFT later s"],
        rows,
        found,
        [
            *(
                Bar(f"{name}: mean completion against nobody cooperates", 1 / mean[name], most=1.03)
                for name in list(worlds)[1:3]
            ),
            *(Bar(f"{name}: mean completion", mean[name], most=1.03) for name in list(worlds)[3:]),
        ],
    )


def shapes(seeds: Seeds) -> Outcome:
    """One default setting on many shapes of fleet: ratios to straight, and what an oracle gets."""
    small = replace(BASE, spec=EngineSpec(900), num_replicas=4)
    pod = World(EngineSpec(139_815))
    fleets: dict[str, tuple[World, Callable[[int], Sequence[AgentRun]]]] = {
        "ctl": (World(EngineSpec(8_192)), lambda seed: plain(Shape(40), seed)),
        "base": (BASE, lambda seed: plain(Shape(40), seed)),
        "base 37": (BASE, lambda seed: plain(Shape(37), seed)),
        "base 50": (BASE, lambda seed: plain(Shape(50), seed)),
        "base 80": (BASE, lambda seed: plain(Shape(80), seed)),
        "mixed 2/4/8": (BASE, lambda seed: plain(Shape(40, (2, 4, 8)), seed)),
        "8 turns": (BASE, lambda seed: plain(Shape(30, (8,)), seed)),
        "long outputs": (BASE, lambda seed: plain(Shape(40, output_tokens=(300, 600)), seed)),
        "slow tools": (BASE, lambda seed: plain(Shape(40, gap_s=(2.0, 8.0)), seed)),
        "little shared": (BASE, lambda seed: plain(Shape(40, shared_tokens=300, first_tokens=1_200), seed)),
        "sub-agents": (BASE, lambda seed: with_children(plain(Shape(30), seed), 0.44, seed)),
        "4 workers x 900": (small, lambda seed: plain(Shape(40), seed)),
        "pod, bounded and heavy, 120 at once": (pod, lambda seed: mixed((BOUNDED, HEAVY), 120, seed)),
        "pod, bounded, 60 at once": (pod, lambda seed: mixed((BOUNDED,), 60, seed)),
    }
    rows, data = [], {}
    for name, (world, draw) in fleets.items():
        arms = ("straight", "turns") if name == "sub-agents" else ("straight", "turns", "oracle")
        found = {arm: [play(arm, draw(seed), world) for seed in seeds] for arm in arms}
        data[name] = found
        of: tuple[Callable[[Figures], float], ...] = (
            lambda f: f.makespan_s,
            lambda f: f.mean_session_s,
            lambda f: f.uncached_tokens,
            lambda f: f.p99_ttft_later_s,
        )
        straight = found["straight"]
        rows.append(
            [
                name,
                *(_mean(straight, one) for one in of),
                *(mean_ratio(found["turns"], straight, one) for one in of),
                *(mean_ratio(found["oracle"], straight, one) for one in of[:2] if "oracle" in found),
            ]
        )
    names = ("makespan", "mean", "uncached", "p99 TTFT later")
    return Outcome(
        "Straight in seconds and tokens, then the ratios of `turns` to it, then those of the oracle (real peaks, least "
        "real work first).",
        [
            "fleet",
            *(f"straight {name}" for name in names),
            *(f"turns {name}" for name in names),
            "oracle makespan",
            "oracle mean",
        ],
        rows,
        data,
    )


EXPERIMENTS: dict[str, Callable[[Seeds], Outcome]] = {
    "cliff": cliff,
    "sharing": sharing,
    "classes": classes,
    "overload": overload,
    "robustness": robustness,
    "shapes": shapes,
}


def _mean(runs: Sequence[Figures], of: Callable[[Figures], float]) -> float:
    return statistics.fmean(map(of, runs))


def _over(ours: Sequence[Figures], oracle: Sequence[Figures], label: str) -> float:
    return mean_ratio(ours, oracle, lambda f: f.of_class[label])


def _lines(across: Sequence[float], ups: dict[str, list[float]]) -> dict[str, list[tuple[float, float]]]:
    return {name: list(zip(across, values, strict=True)) for name, values in ups.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("name", choices=[*EXPERIMENTS, "all"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results"))
    arguments = parser.parse_args()
    for name in EXPERIMENTS if arguments.name == "all" else [arguments.name]:
        began = time.monotonic()
        outcome = EXPERIMENTS[name](arguments.seeds)
        publish(f"simulated-{name}", outcome, arguments.results)
        print((arguments.results / f"simulated-{name}.md").read_text())
        print(f"{name}: {time.monotonic() - began:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
