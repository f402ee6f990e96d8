"""Laws of the report of a batch."""

from __future__ import annotations

import json
from pathlib import Path

from batch_agent import AgentError, AgentResult, Timings, Usage
from batch_agent.report import Report

RESULTS = [
    AgentResult(
        "job-0",
        0,
        "a | b\nc",
        turns=2,
        usage=Usage(100, 75, 20),
        timings=Timings(0, 10, 6, 4, 3),
        session="batch-1-0",
        receipt="r0",
        tool_calls=3,
        tool_calls_saved=2,
    ),
    AgentResult("job-1", 1, None, AgentError("TimeoutError", "no result within 5 s", retryable=True)),
    AgentResult("job-2", 2, {"n": 1}, attempts=0, turns=1, usage=Usage(100, 25, 10), timings=Timings(0, 2, 2)),
]
REPORT = Report(RESULTS, 12.5)


def test_the_figures_are_sums_over_the_results_and_the_split_of_their_time_is_whole() -> None:
    found = REPORT.figures()
    assert (found["agents"], found["ok"], found["failed"]) == (3, 2, {"TimeoutError": 1})
    assert (found["by_an_earlier_run"], found["model_calls"], found["wall_s"]) == (1, 3, 12.5)
    assert found["usage"] == {"prompt_tokens": 200, "cached_tokens": 100, "completion_tokens": 30}
    assert (found["cached_share"], found["tool_calls"], found["tool_calls_saved"]) == (0.5, 3, 2)
    assert found["time"] == {"queued_s": 4, "model_s": 4, "tools_s": 3, "other_s": 1}
    assert sum(found["time"].values()) == sum(result.timings.total_s for result in RESULTS)


def test_json_holds_the_figures_and_each_result(tmp_path: Path) -> None:
    REPORT.write(tmp_path / "r.json")
    whole = json.loads((tmp_path / "r.json").read_text())
    results = whole.pop("results")
    assert whole == REPORT.figures()
    assert [row["session"] for row in results] == ["batch-1-0", "", ""]
    assert results[2]["output"] == {"n": 1}


def test_markdown_says_the_same_in_tables_that_outputs_cannot_break(tmp_path: Path) -> None:
    REPORT.write(tmp_path / "r.md")
    text = (tmp_path / "r.md").read_text()
    assert "2 of 3 agents have an output, 1 of them by an earlier run." in text
    assert "Tokens: 200 of prompts (50% cached), 30 of answers." in text
    assert "Calls of tools: 3, of which sharing saved 2." in text
    assert "| queue of the gateway | 4.0 | 33% |" in text
    assert "| TimeoutError | 1 | yes | no result within 5 s |" in text
    assert "| 0 | ok | 10.0 | 2 | 120 | batch-1-0 | r0 | a \\| b c |" in text


def test_a_batch_without_results_has_a_report_too() -> None:
    assert "0 of 0 agents have an output." in Report([], 0.0).as_markdown()
