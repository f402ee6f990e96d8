"""The figures of the README are those of the fleet benchmark's results, as they are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "fleet" / "results"
README = (ROOT / "README.md").read_text()
SCHEDULING = (ROOT / "docs" / "scheduling.md").read_text()
FLEETS = ("base", "mixed", "w4", "ctl")
"""Columns of the table, in order."""
ARMS = {
    "Turngate": "turns",
    "Turngate, agents say how many turns are left": "turns-declared",
    "vllm-router, program scheduling": "vllm-router-programs",
    "session affinity, in Dynamo": "dynamo-affinity",
    "smg": "smg",
    "16 slots, as in batch-agent": "batch-agent-16",
}
MORE_FLEETS = ("n80", "open1.5", "giant", "w4x80", "sub", "heavy")
"""Columns of the second table: Turngate alone."""
PAIR = re.compile(r"(\d\.\d\d) / (\d\.\d\d)")


def ratios(path: Path, arm: str) -> tuple[float, float]:
    """Of the mean session and of the makespan: sums over the seeds."""
    row = next(line for line in path.read_text().splitlines() if line.startswith(f"| {arm} |"))
    makespan, mean = (float(re.findall(r"\*\*([\d.]+)x\*\*", cell)[0]) for cell in row.split("|")[3:5])
    return mean, makespan


def is_rounded(shown: str, value: float) -> bool:
    return abs(float(shown) - value) <= 0.0056  # of what was rounded before, to three places


def rows() -> list[list[str]]:
    table = README.partition("<!-- figures:")[2].partition("\n\n")[0].splitlines()[3:]
    return [[cell.strip().replace("**", "") for cell in line.strip("|").split("|")] for line in table]


def test_the_table_names_every_arm_once() -> None:
    assert [row[0] for row in rows()] == list(ARMS)


@pytest.mark.parametrize(("column", "fleet"), list(enumerate(FLEETS, 1)))
def test_the_table_is_what_was_measured(column: int, fleet: str) -> None:
    for row in rows():
        if row[column]:
            measured = ratios(RESULTS / f"dynamo-{fleet}.md", ARMS[row[0]])
            assert all(map(is_rounded, PAIR.findall(row[column])[0], measured)), (row[0], measured)


def test_the_second_table_is_what_was_measured() -> None:
    shown = PAIR.findall(README.partition("More fleets, Turngate alone:")[2].partition("\n\nPeople who chat")[0])
    assert len(shown) == len(MORE_FLEETS)
    for pair, fleet in zip(shown, MORE_FLEETS, strict=True):
        assert all(map(is_rounded, pair, ratios(RESULTS / f"dynamo-{fleet}.md", "turns"))), fleet


def test_the_table_of_all_fleets_is_what_was_measured() -> None:
    rows = re.findall(r"^\| .* \(`([\w.]+)`\) \| \d \| (\d\.\d\d) \| (\d\.\d\d) \|", SCHEDULING, re.MULTILINE)
    assert {fleet for fleet, _, _ in rows} >= {*FLEETS, *MORE_FLEETS}
    for fleet, makespan, mean in rows:
        assert all(map(is_rounded, (mean, makespan), ratios(RESULTS / f"dynamo-{fleet}.md", "turns"))), fleet


def test_the_figures_that_link_to_their_file_are_in_it() -> None:
    linked = re.findall(r"\[(\d\.\d\d) / (\d\.\d\d)\]\(benchmarks/fleet/results/([\w.-]+)\)", README)
    assert linked
    for mean, makespan, name in linked:
        assert all(map(is_rounded, (mean, makespan), ratios(RESULTS / name, "turns"))), name


def test_what_the_demo_gained_is_in_its_file() -> None:
    sentence = README.partition("32 agents on")[2].partition("(benchmarks")[0]
    measured = (RESULTS / "demo.md").read_text()
    figures = re.findall(r"\d[\d,.]*\d", sentence)
    assert len(figures) == 4
    assert all(figure in measured for figure in figures)
