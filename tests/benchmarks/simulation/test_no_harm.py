"""The table of no harm: a fleet that fits is left alone, and each random shape is counted once."""

from __future__ import annotations

import pytest

from benchmarks.simulation import no_harm
from benchmarks.simulation.fleets import FLEETS


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(no_harm, "FLEETS", {name: FLEETS[name] for name in ("ctl", "base")})
    monkeypatch.setattr(no_harm, "NUM_SHAPES", 5)


def test_a_fleet_that_fits_is_left_alone_and_one_that_does_not_gains() -> None:
    ctl, base = no_harm.no_harm([1]).rows[:2]
    assert [ctl[0], base[0]] == ["ctl", "base"]
    assert ctl[3:] == [pytest.approx(1.0), pytest.approx(1.0), pytest.approx(1.0), "+0.0", 1.0]
    assert float(str(base[4])) < 0.9


def test_each_random_shape_is_counted_once_for_the_gate_and_for_the_noise() -> None:
    outcome = no_harm.no_harm([1])
    assert {arm: len(shapes) for arm, shapes in outcome.data.items()} == {"turns": 5, "holds nothing": 5}
    gate, noise = ([bar for bar in outcome.bars if bar.claim.startswith(name)] for name in ("the gate", "noise"))
    assert len(gate) == len(noise) == 4
    assert max(shape.mean for shape in outcome.data["turns"]) == gate[3].value
