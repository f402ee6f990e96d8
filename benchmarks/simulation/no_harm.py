"""Never worse than no gateway: all named fleets, and random shapes, with the gate and without."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import geometric_mean

from benchmarks.simulation.arms import (
    INFINITE_CACHE,
    makespan_s,
    mean,
    p99_session_s,
    p99_ttft_later_s,
    play,
    ratio,
    session_s,
    uncached,
)
from benchmarks.simulation.fleets import CODING, FLEETS, AgentFleet, random_fleet
from benchmarks.simulation.report import Bar, Outcome

NUM_SHAPES = 300
NUM_WORST = 8
GATES = ("turns", "holds nothing")
HEAD = (
    "fleet",
    "straight: makespan s",
    "mean s",
    "makespan",
    "mean",
    "p99 session",
    "later p99 TTFT s",
    "computed",
)
HARM = 1.05
"""Ratio to no gate above which a random shape counts as harmed; below it, noise of one seed does the same."""
THRASHES = 1.2
"""A shape thrashes if without a gate so many times the tokens are computed as with an infinite cache."""


@dataclass(frozen=True, slots=True)
class Shape:
    """One random shape, as ratios to no gate."""

    number: int
    note: str
    makespan: float
    mean: float
    thrashes: bool


def no_harm(seeds: Sequence[int]) -> Outcome:
    """Ratios to no gate; later TTFT as a difference. The noise of random shapes is what a gate does that holds
    nothing: it only orders the turns that wait for a slot."""
    rows = [_row(name, fleet, seeds) for name, fleet in FLEETS.items()]
    played = [_shapes(number) for number in range(NUM_SHAPES)]
    shapes = {arm: [shape[arm] for shape in played] for arm in GATES}
    bars = [*_bars(shapes["turns"], "the gate"), *_bars(shapes["holds nothing"], "noise")]
    thrashing = [shape.mean for shape in shapes["turns"] if shape.thrashes]
    claim = f"{len(thrashing)} random shapes that thrash, geometric mean of the mean"
    bars.append(Bar(claim, geometric_mean(thrashing), most=0.66))
    worst = sorted(shapes["turns"], key=lambda shape: -max(shape.makespan, shape.mean))[:NUM_WORST]
    rows += [[f"random {s.number}, {s.note}", "", "", s.makespan, s.mean, "", "", ""] for s in worst]
    return Outcome(" ".join((no_harm.__doc__ or "").split()), HEAD, rows, shapes, bars)


def coding(seeds: Sequence[int]) -> Outcome:
    """500 sessions of a median of 43 turns and 142,000 tokens on 8 pools of a million tokens, the first seed
    alone. Ratios to no gate; later TTFT as a difference."""
    row = _row("coding", CODING, seeds[:1])
    return Outcome(" ".join((coding.__doc__ or "").split()), HEAD, [row], row)


def _row(name: str, fleet: AgentFleet, seeds: Sequence[int]) -> list[object]:
    drawn = [fleet.draw(seed) for seed in seeds]
    straight, turns = ([play(arm, runs, fleet.world) for runs in drawn] for arm in ("straight", "turns"))
    of = [ratio(turns, straight, measure) for measure in (makespan_s, session_s, p99_session_s)]
    later_s = mean(turns, p99_ttft_later_s) - mean(straight, p99_ttft_later_s)
    before = mean(straight, makespan_s), mean(straight, session_s)
    return [name, *before, *of, f"{later_s:+.1f}", ratio(turns, straight, uncached)]


def _shapes(number: int) -> dict[str, Shape]:
    """Return the shape of that number under each of GATES."""
    fleet = random_fleet(number)
    runs = fleet.draw(number)
    straight, infinite = (play(arm, runs, fleet.world) for arm in ("straight", INFINITE_CACHE))
    thrashes = straight.uncached_tokens > THRASHES * infinite.uncached_tokens
    found = {}
    for arm in GATES:
        ours = play(arm, runs, fleet.world)
        makespan = ours.makespan_s / straight.makespan_s
        found[arm] = Shape(number, fleet.note, makespan, ours.mean_session_s / straight.mean_session_s, thrashes)
    return found


def _bars(shapes: Sequence[Shape], name: str) -> Iterator[Bar]:
    for measure, most in (("makespan", 0.05), ("mean", 0.03)):
        ratios = [getattr(shape, measure) for shape in shapes]
        harmed = sum(ratio > HARM for ratio in ratios) / len(ratios)
        yield Bar(f"{name}: share of {len(ratios)} random shapes above {HARM} in {measure}", harmed, most=most)
        yield Bar(f"{name}: the worst of them in {measure}", max(ratios), most=1.2)
