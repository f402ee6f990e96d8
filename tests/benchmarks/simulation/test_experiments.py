"""Laws of the experiments: every arm plays the same fleets, bars are judged, and three files come out."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import orjson
import pytest

from benchmarks.simulation.arms import ARMS, INFINITE_CACHE, Cell, ratio, session_s, sweep, uncached
from benchmarks.simulation.report import Bar, Outcome, Picture, publish
from benchmarks.simulation.simulator import World
from benchmarks.simulation.workloads import BOUNDED, mixed, plain
from gateway.demo.workload import Shape
from gateway.embedded.model import EngineSpec

SMALL = World(EngineSpec(600))


def test_every_arm_plays_the_same_fleets_to_their_end() -> None:
    arms = [*ARMS, INFINITE_CACHE]
    found = sweep(arms, [Cell(partial(plain, Shape(12, (2, 3))), SMALL)], [1, 2])
    for arm in arms:
        (runs,) = found[arm]
        assert len(runs) == 2
        assert all(
            ours.uncached_tokens >= best.uncached_tokens
            for ours, best in zip(runs, found[INFINITE_CACHE][0], strict=True)
        )


def test_classes_are_told_apart_and_early_sessions_left_out() -> None:
    cells = [
        Cell(partial(mixed, (BOUNDED,), 6, rate_per_s=0.1, scale=0.01), SMALL, after_s=after_s)
        for after_s in (0.0, 20.0)
    ]
    everyone, late = sweep(["straight"], cells, [1])["straight"]
    assert set(everyone[0].of_class) == {"bounded"}
    assert everyone[0].uncached_tokens == late[0].uncached_tokens
    assert ratio(everyone, everyone, session_s) == 1.0
    assert ratio(everyone, late, uncached) == 1.0


@pytest.mark.parametrize(("bar", "verdict"), [
    (Bar("a", 0.7, most=0.7), "- met: a: 0.700 (<= 0.7)"),
    (Bar("a", 0.71, most=0.7), "- **NOT met**: a: 0.710 (<= 0.7)"),
    (Bar("a", 1.2, least=1.2), "- met: a: 1.200 (>= 1.2)"),
    (Bar("a", 1.1, least=1.2), "- **NOT met**: a: 1.100 (>= 1.2)"),
])  # fmt: skip
def test_a_bar_says_whether_it_is_met(bar: Bar, verdict: str) -> None:
    assert str(bar) == verdict


def test_an_outcome_becomes_a_table_its_data_and_a_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["experiments", "x"])
    pictures = [Picture("p", "x", "y", {"turns": [(1, 2.0), (2, 3.0)]})]
    outcome = Outcome(
        "About it.",
        ["arm", "s"],
        [["turns", 12_345.6], ["straight", 0.5]],
        {"a": 1},
        [Bar("b", 1, most=2)],
        pictures,
    )
    publish("x", outcome, tmp_path)
    text = (tmp_path / "x.md").read_text()
    assert "| turns | 12,346 |" in text
    assert "- met: b: 1.000 (<= 2)" in text
    assert "![x](x.png)" in text
    assert orjson.loads((tmp_path / "x.json").read_bytes())["data"] == {"a": 1}
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
