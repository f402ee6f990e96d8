"""Laws of a report: bars are judged, and an outcome becomes a text and a picture."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.simulation.report import Bar, Outcome, Picture, draw, text_of


@pytest.mark.parametrize(("bar", "verdict"), [
    (Bar("a", 0.7, most=0.7), "- met: a: 0.700 (<= 0.7)"),
    (Bar("a", 0.71, most=0.7), "- **NOT met**: a: 0.710 (<= 0.7)"),
    (Bar("a", 1.2, least=1.2), "- met: a: 1.200 (>= 1.2)"),
    (Bar("a", 1.1, least=1.2), "- **NOT met**: a: 1.100 (>= 1.2)"),
])  # fmt: skip
def test_a_bar_says_whether_it_is_met(bar: Bar, verdict: str) -> None:
    assert str(bar) == verdict


def test_an_outcome_becomes_a_text_and_a_picture(tmp_path: Path) -> None:
    pictures = [Picture("p", "x", "y", {"turns": [(1, 2.0), (2, 3.0)]})]
    rows = [["turns", 12_345.6], ["straight", 0.5]]
    outcome = Outcome("About it.", ["arm", "s"], rows, {"a": 1}, [Bar("b", 1, most=2)], pictures)
    text = text_of(outcome)
    assert "| turns | 12,346 |" in text
    assert "- met: b: 1.000 (<= 2)" in text
    draw(outcome.pictures, tmp_path / "x.png")
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
