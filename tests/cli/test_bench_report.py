"""Laws of the page: ratios carry the noise of the repeats, and the sentence says no more than they show."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.cli.bench_report import ARMS, TURNS, BenchReport, BenchRun, GateLedger, mean_of, ratio_of, run_of
from gateway.cli.demo_fleet import SessionRecord, TurnRecord


def report(*turns: tuple[float, float], pool: int | None = 100, computed: int = 50) -> BenchReport:
    """Of one repeat per (mean, makespan) of `turns`, as parts of those of the other arms."""
    runs = []
    for repeat, (mean, makespan) in enumerate(turns):
        one = BenchRun("straight", repeat, 20.0, 10.0, 15.0, 1.0, 2.0, 200, 100)
        gated = replace(one, arm=TURNS, mean_s=10 * mean, makespan_s=20 * makespan, cached_tokens=200 - computed)
        runs += [one, replace(one, arm="observe"), replace(gated, ledger=GateLedger(3.0, 8.0))]
    return BenchReport("vllm gpu1", "40 agents", pool, 200, runs, 600.0)


@pytest.mark.parametrize(
    ("found", "verdict", "said"),
    [
        (report((0.74, 0.83), (0.75, 0.82), (0.73, 0.84)), "gains", "takes 0.74 (0.72 to 0.76) of its time"),
        (report((0.74, 1.10), (0.75, 1.11), (0.73, 1.12)), "gains", "the fleet as a whole takes longer for it"),
        (report((1.00, 0.83), (1.01, 0.82), (0.99, 0.84)), "gains", "all of them together 0.83"),
        (report((0.74, 1.0), (1.3, 1.0), (0.9, 1.0)), "nothing", "its waits cost as much as they save"),
        (report((0.985, 1.0), (0.985, 1.0), (0.985, 1.0)), "nothing", "which is noise"),
        (report((0.995, 1.0), pool=300), "nothing", "as all contexts fit into the cache at once"),
        (report((0.995, 1.0), computed=100), "nothing", "as it saves no tokens of prompts"),
        (report((0.93, 0.95)), "nothing", "one repeat"),
        (report((0.74, 0.83)), "gains", "0.74 (0.67 to 0.81)"),
        (report((1.2, 1.0), (1.21, 1.0)), "costs", "policy.name=observe"),
    ],
)
def test_the_sentence_says_what_is_clear_beside_the_noise(found: BenchReport, verdict: str, said: str) -> None:
    assert found.verdict == verdict
    assert said in found.sentence()


def test_a_ratio_is_that_of_each_repeat_with_its_own_straight_run() -> None:
    assert str(ratio_of([(8.0, 10.0), (16.0, 20.0)])) == "0.80 (0.80 to 0.80)"
    assert report((0.5, 1.0), (2.0, 1.0)).ratio(TURNS, mean_of).value == pytest.approx(1.0)


def test_a_wider_spread_and_fewer_repeats_widen_the_interval() -> None:
    narrow, wide = ratio_of([(8.0, 10.0), (8.2, 10.0)]), ratio_of([(7.0, 10.0), (9.4, 10.0)])
    more = ratio_of([(8.0, 10.0), (8.2, 10.0), (8.0, 10.0), (8.2, 10.0)])
    assert more.high - more.low < narrow.high - narrow.low < wide.high - wide.low


def test_the_page_has_each_arm_the_ledger_and_the_sentence_last() -> None:
    found = report((0.74, 0.83), (0.75, 0.82))
    said = found.as_text().splitlines()
    assert [line.split()[0] for line in said[2:7]] == ["straight", "observe", "observe", "turns", "turns"]
    assert "it saved 8 s of sessions and cost 3 s" in found.as_text()
    assert said[-1] == f"=> {found.sentence()}"


def test_tokens_that_an_engine_does_not_state_are_no_zeros() -> None:
    found = report((0.74, 0.83))
    unstated = replace(found, runs=[replace(run, cached_tokens=0) for run in found.runs])
    assert unstated.as_text().count("not stated") == 2 * len(ARMS)
    assert "prefix hit" in unstated.as_markdown()


def test_a_report_is_markdown_or_json_by_its_name(tmp_path: Path) -> None:
    found = report((0.74, 0.83), (0.75, 0.82))
    for name in ("bench.md", "bench.json"):
        found.write(tmp_path / name)
    assert f"**{found.sentence()}**" in (tmp_path / "bench.md").read_text()
    data = json.loads((tmp_path / "bench.json").read_text())
    assert (data["verdict"], len(data["runs"])) == ("gains", 6)
    assert data["ratios_to_straight"]["turns"]["mean"]["value"] == pytest.approx(0.745, abs=0.001)


def test_a_run_whose_sessions_failed_is_none() -> None:
    done = SessionRecord("s1", 0.0, [TurnRecord(0, 0.0, 0.1, 0.2, 1.0, 100, 40)])
    assert run_of(TURNS, 0, [done], GateLedger()).computed_tokens == 60
    with pytest.raises(RuntimeError, match=r"1 of 2 sessions failed \(turns\), one with: refused"):
        run_of(TURNS, 0, [done, SessionRecord("s2", 0.0, failure="refused")], GateLedger())
