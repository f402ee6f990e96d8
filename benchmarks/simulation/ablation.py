"""What each mechanism of the policy gains: the named fleets with it replaced, all others at work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from statistics import geometric_mean
from typing import Any, TypeAlias
from unittest.mock import patch

from benchmarks.simulation.arms import SimulatedFigures, makespan_s, mean, p99_ttft_later_s, play, ratio, session_s
from benchmarks.simulation.fleets import FLEETS
from benchmarks.simulation.placement import least_loaded
from benchmarks.simulation.report import Outcome
from policies import admission, idle, learning
from policies.admission_queue import Overtaking
from policies.forecast import output_tokens
from policies.throughput import Switch
from policies.turns import Turns

Runs: TypeAlias = Sequence[Sequence[SimulatedFigures]]
"""By fleet, then by seed."""


def always(answer: Any) -> Any:
    return lambda *_: answer


REPLACED: Mapping[str, Sequence[tuple[Any, str, Any]]] = {
    "learned lengths": [(learning, "saw_end", always(None)), (learning, "saw_continuation", always(None))],
    "trim": [(admission.Admission, "trim", always(False))],
    "learned leases: 10 s": [(Turns, "lease_s", always(10.0))],
    "giving way": [(admission, "should_give_way", always(False))],
    "forecast: the next answer": [(Turns, "forecast", staticmethod(lambda family, *_: [output_tokens(family)]))],
    "learned prefill speed": [(learning.Pace, "saw_prefill", always(None))],
    "price of admission": [(Turns, "fits", always(True))],
    "switch": [(Switch, "judge", always(None))],
    "cheap sessions": [(admission, "is_cheap", always(False))],
    "mid-run before new": [(admission.Admission, "_could_fit", always(False))],
    "order: as they came": [(Turns, "rank", always(0.0))],
    "first-come bound": [(Overtaking, "due_at", lambda _self, _turn_id, since: since)],
    "prefix placement": [(Turns, "place", lambda _self, *asked: least_loaded(*asked))],
    "third lease": [(idle, "LEASES", 1.0)],
}


def ablation(seeds: Sequence[int]) -> Outcome:
    """Ratios to the whole policy; first the whole policy against no gate."""
    straight, whole = _runs("straight", seeds), _runs("turns", seeds)
    rows = [["(all, against straight)", *_against(straight, whole)]]
    for name, parts in REPLACED.items():
        with ExitStack() as replaced:
            for part in parts:
                replaced.enter_context(patch.object(*part))
            rows.append([name, *_against(whole, _runs("turns", seeds))])
    head = ["without", "makespan", "mean", "later TTFT p99, s", "worst makespan", "", "worst mean", ""]
    return Outcome(" ".join((ablation.__doc__ or "").split()), head, rows, whole)


def _runs(arm: str, seeds: Sequence[int]) -> Runs:
    return [[play(arm, fleet.draw(seed), fleet.world) for seed in seeds] for fleet in FLEETS.values()]


def _against(base: Runs, runs: Runs) -> list[object]:
    pairs = list(zip(base, runs, strict=True))
    of = [[ratio(after, before, measure) for before, after in pairs] for measure in (makespan_s, session_s)]
    later_s = [mean(after, p99_ttft_later_s) - mean(before, p99_ttft_later_s) for before, after in pairs]
    worst = [cell for ratios in of for cell in reversed(max(zip(ratios, FLEETS, strict=True)))]
    return [*map(geometric_mean, of), f"{sum(later_s) / len(later_s):+.1f}", *worst]
