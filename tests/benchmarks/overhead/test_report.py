"""A ratio of the overhead benchmark is one of the same round."""

from __future__ import annotations

from benchmarks.overhead.cells import Reading
from benchmarks.overhead.report import OverheadFigures, table


def test_a_ratio_is_taken_inside_one_round_and_shown_with_its_range() -> None:
    def one(cpu_us: float) -> Reading:
        return Reading(cpu_us, 1.0, 2.0, 3.0, 4.0, 5.0, 0)

    rounds = [{"vllm-router": one(100.0), "turngate-fast": one(ours)} for ours in (50.0, 100.0, 300.0)]
    figures = OverheadFigures(["nginx"], {"s32": rounds})
    figures.start_s = {"vllm-router": 0.7, "turngate-fast": 0.5}
    text = table(figures)
    assert "| vllm-router | 1.00 [0.50-3.00] |" in text
    assert "not installed: nginx" in text
    assert "Failed requests: none." in text
