"""Laws of result files: a table and its data, with date, machine, command and duration; or nothing."""

from __future__ import annotations

import sys
from pathlib import Path

import orjson
import pytest

from benchmarks.results import command_parser, write


@pytest.mark.parametrize("data", [{"a": {1: 2.5}, "b": []}, {}, [{"a": 1}, {"a": 2}], []])
def test_a_table_and_its_data_are_written_with_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: dict[str, object] | list[object]
) -> None:
    monkeypatch.setattr(sys, "argv", ["suite", "--seeds", "1"])
    write(tmp_path, "x", "| a |", data, took_s=61.4)
    record = orjson.loads((tmp_path / "x.json").read_bytes())
    assert record.pop("data") == orjson.loads(orjson.dumps(data, option=orjson.OPT_NON_STR_KEYS))
    assert (record["name"], record["took_s"]) == ("x", 61)
    text = (tmp_path / "x.md").read_text()
    assert text == f"# x\n\n{record['date']}, {record['machine']}, 61 s.\n\n    {record['command']}\n\n| a |\n"
    assert record["command"].endswith("--seeds 1")


def test_each_entry_of_the_data_has_a_line(tmp_path: Path) -> None:
    write(tmp_path, "x", "", {"first": [1, 2], "second": [3]})
    assert b'\n"first":[1,2],\n"second":[3]\n' in (tmp_path / "x.json").read_bytes()


def test_results_lie_beside_their_suite_or_where_a_flag_says_or_nowhere() -> None:
    parser = command_parser("What it does.", "benchmarks/fleet/demo.py")
    assert parser.parse_args([]).results == Path("benchmarks/fleet/results")
    assert parser.parse_args(["--results", "/tmp/x"]).results == Path("/tmp/x")
    assert parser.parse_args(["--no-results"]).results is None
    write(None, "x", "", {})
