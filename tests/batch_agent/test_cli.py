from __future__ import annotations

import asyncio
import io
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from batch_agent import AgentError, AgentResult, Usage, cli
from batch_agent.cli import Progress
from tests.batch_agent.scripted import Asked, Scripted, calls, refusal, says

TOOLS = """
from pydantic import BaseModel
from batch_agent import Tool

class Out(BaseModel):
    text: str

@Tool.define
async def look(path: str) -> str:
    return f"seen {path}"
"""


async def run(*arguments: str) -> int:
    """The command, away from this event loop, which serves the gateway."""
    return await asyncio.to_thread(cli.main, ["run", *arguments])


@pytest.fixture
def spec(tmp_path: Path, gateway: Scripted, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Writes a specification, and gives the flag that names it."""
    monkeypatch.chdir(tmp_path)

    def write(name: str = "spec.json", **keys: Any) -> list[str]:
        tree = {"task": "{n}", "inputs": [{"n": n} for n in range(3)], "model": "m", "gateway": gateway.url} | keys
        (tmp_path / name).write_text(json.dumps(tree))  # JSON is YAML, too
        return ["--spec", name]

    return write


def rows(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


async def later_first(asked: Asked) -> Any:
    await asyncio.sleep(0.05 * (2 - int(asked.task)))
    return says(asked.task)


@pytest.mark.parametrize("name", ["spec.json", "spec.yaml"])
async def test_results_are_lines_in_input_order(
    gateway: Scripted, spec: Any, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    gateway.script = later_first
    assert await run(*spec(name)) == 0
    printed = rows(capsys.readouterr().out)
    assert [row["output"] for row in printed] == ["0", "1", "2"]
    assert {"job_id", "index", "ok", "output", "error", "attempts"} <= printed[0].keys()


async def test_results_can_come_as_they_end_and_into_a_file(
    gateway: Scripted, spec: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "out.jsonl"

    async def one_by_one(asked: Asked) -> Any:
        while not file.exists() or file.read_bytes().count(b"\n") < 2 - int(asked.task):
            await asyncio.sleep(0.01)
        return says(asked.task)

    gateway.script = one_by_one
    assert await run(*spec(), "--as-they-come", "--output", "out.jsonl", "--quiet") == 0
    assert [row["index"] for row in rows(file.read_text())] == [2, 1, 0]
    assert capsys.readouterr() == ("", "")


async def test_a_report_is_written_beside_the_results(
    gateway: Scripted, spec: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gateway.script = later_first
    assert await run(*spec(), "--report", "r.json", "--as-they-come") == 0
    report = json.loads((tmp_path / "r.json").read_text())
    assert [row["output"] for row in report["results"]] == ["0", "1", "2"]
    assert (report["agents"], report["ok"], report["wall_s"] > 0) == (3, 3, True)
    capsys.readouterr()
    assert await run(*spec(), "--report", "r.txt") == 2
    assert "ends in .md or .json" in capsys.readouterr().err


async def test_the_exit_status_tells_of_failures(
    gateway: Scripted, spec: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    gateway.script = lambda asked: refusal(400, "no") if asked.task == "1" else says("x")
    assert await run(*spec()) == 1
    captured = capsys.readouterr()
    assert [row["ok"] for row in rows(captured.out)] == [True, False, True]
    assert "3/3 done, 1 failed" in captured.err


async def test_the_same_command_goes_on_where_it_ended(gateway: Scripted, spec: Any) -> None:
    gateway.script = lambda asked: refusal(400, "no") if asked.number == 1 else says("x")
    assert await run(*spec(), "--checkpoint-dir", "kept") == 1
    assert await run(*spec(), "--checkpoint-dir", "kept") == 0
    assert len(gateway.asked) == 4


async def test_tools_and_schemas_are_found_in_the_working_directory(
    gateway: Scripted, spec: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine_of_test_cli.py").write_text(TOOLS)

    def script(asked: Asked) -> Any:
        if not asked.num_turns:
            return calls("look", '{"path": "a"}')
        return says(json.dumps({"text": asked.last["content"]}))

    gateway.script = script
    named = {"tools": ["mine_of_test_cli:look"], "output_schema": "mine_of_test_cli:Out", "max_turns": 2}
    assert await run(*spec(**named)) == 0
    assert rows(capsys.readouterr().out)[0]["output"] == {"text": "seen a"}


@pytest.mark.parametrize(
    ("keys", "fault"),
    [
        ({"inputs": None}, "`inputs`: a list, a file or a pattern"),
        ({"inputs": "none.csv"}, "inputs: none.csv: No such file"),
        ({"tsk": "x"}, r"no such key: tsk \(did you mean task\?\)"),
        ({"max_tokens": 5}, r"no such key: max_tokens \(did you mean sampling=\{'max_tokens': \.\.\.\}\?\)"),
        ({"runtime": {"opencode": {"opencode_bin": "gone"}}}, "there is no program 'gone' on PATH: npm install"),
        ({"max_turns": "many"}, "max_turns must be a whole number, not 'many'"),
        ({"max_turns": True}, "max_turns must be a whole number"),
        ({"max_turns": None}, "max_turns must be a whole number"),
        ({"timeout_per_agent": "soon"}, "timeout_per_agent must be a number, not 'soon'"),
        ({"budget_s": -1}, "budget_s must be >= 0"),
        ({"outage_s": -1}, "outage_s must be >= 0"),
        ({"outage_s": None}, "outage_s must be a number, not None"),
        ({"sampling": "hot"}, "sampling must be a mapping, not 'hot'"),
        ({"inputs": ["a"]}, "input 0 must be a mapping, not 'a'"),
        ({"output_schema": {"type": "objct"}}, "output_schema is no JSON schema"),
        ({"task": "{none}"}, "missing template variable"),
        ({"tools": ["nowhere:look"]}, "nowhere"),
        ({"tools": "look"}, "`tools`"),
        ({"tools": [{"name": "look"}]}, "`tools`"),
        ({"checkpoint_dir": "spec.json"}, "spec.json"),
        ({"runtime": "unknown"}, "runtime is one of"),
        ({"runtime": {"command": {}}}, "command"),
        (
            {"gateway": "http://127.0.0.1:9", "model": ""},
            r"nothing answers at http://127\.0\.0\.1:9/v1: Connection refused$",
        ),
    ],
)
async def test_a_batch_that_cannot_be_run_says_why(
    spec: Any, capsys: pytest.CaptureFixture[str], keys: dict[str, Any], fault: str
) -> None:
    assert await run(*spec(**keys)) == 2
    error = capsys.readouterr().err
    assert re.search(fault, error)
    assert error.count("\n") == 1, "one line says it"


async def test_tools_beside_the_specification_are_found_from_any_directory(
    gateway: Scripted, spec: Any, tmp_path: Path
) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "beside_of_test_cli.py").write_text(TOOLS)
    gateway.script = lambda asked: says("x")
    before = list(sys.path)
    assert await run(*spec("elsewhere/spec.yaml", tools=["beside_of_test_cli:look"]), "--quiet") == 0
    assert sys.path == before


async def test_a_specification_may_begin_with_a_byte_order_mark(
    gateway: Scripted, spec: Any, tmp_path: Path
) -> None:
    gateway.script = lambda asked: says("x")
    flags = spec()
    (tmp_path / "spec.json").write_bytes(b"\xef\xbb\xbf" + (tmp_path / "spec.json").read_bytes())
    assert await run(*flags, "--quiet") == 0


async def test_a_file_that_is_not_there_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert await run("--spec", "/nowhere.json") == 2
    assert "/nowhere.json" in capsys.readouterr().err


async def test_agents_can_be_processes(gateway: Scripted, spec: Any, capsys: pytest.CaptureFixture[str]) -> None:
    program = {"command": [sys.executable, "-c", "print(input().upper())"], "isolated": False}
    assert await run(*spec(task="hello {n}", runtime={"command": program})) == 0
    assert [row["output"] for row in rows(capsys.readouterr().out)] == ["HELLO 0", "HELLO 1", "HELLO 2"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_counts_and_estimates_what_is_left() -> None:
    now = [0.0]
    progress = Progress(4, Terminal(), lambda: now[0])
    usage = Usage(prompt_tokens=100, cached_tokens=80, completion_tokens=50)
    for index in range(2):
        now[0] += 5
        error = AgentError("x", "y") if index else None
        progress(AgentResult(f"job-{index}", index, None, error, usage=usage))
    assert progress.line() == "2/4 done, 1 failed, 10 s, 10 tokens/s, 80% cached, about 10 s left"


def test_results_of_an_earlier_run_count_and_say_nothing_of_the_speed() -> None:
    now = [0.0]
    progress = Progress(10, Terminal(), lambda: now[0])
    usage = Usage(prompt_tokens=100, cached_tokens=80, completion_tokens=50)
    for index in range(6):
        progress(AgentResult(f"job-{index}", index, "x", attempts=0, usage=usage))
    now[0] += 5
    progress(AgentResult("job-6", 6, "x", usage=usage))
    assert progress.line() == (
        "7/10 done (6 by an earlier run), 0 failed, 5 s, 10 tokens/s, 80% cached, about 15 s left"
    )


@pytest.mark.parametrize("stream", [Terminal(), io.StringIO()], ids=["terminal", "log"])
async def test_the_first_line_of_the_progress_comes_at_once(stream: io.StringIO) -> None:
    showing = asyncio.create_task(Progress(4, stream, first_log_s=0).keep_showing())
    while not stream.getvalue():
        await asyncio.sleep(0)
    showing.cancel()
    assert "0/4 done" in stream.getvalue()


def test_what_a_person_is_told_meanwhile_takes_the_place_of_the_line_that_is_redrawn() -> None:
    now = [0.0]
    terminal, log = Terminal(), io.StringIO()
    for stream in (terminal, log):
        progress = Progress(4, stream, lambda: now[0])
        now[0] += 60
        progress(AgentResult("job-0", 0, "x"))
        progress.tell("gone")
    assert terminal.getvalue().endswith(" left\r\x1b[Kbatch-agent: gone\n")
    assert log.getvalue().endswith(" left\nbatch-agent: gone\n")


def test_a_batch_that_never_began_has_no_last_line() -> None:
    log = io.StringIO()
    Progress(4, log).end()
    assert log.getvalue() == ""


def test_a_terminal_is_redrawn_in_place_and_a_log_is_not_flooded() -> None:
    now = [0.0]
    terminal, log = Terminal(), io.StringIO()
    shown = Progress(100, terminal, lambda: now[0]), Progress(100, log, lambda: now[0])
    for index in range(100):
        now[0] += 1
        for progress in shown:
            progress(AgentResult(f"job-{index}", index, "x"))
    for progress in shown:
        progress.end()
    assert terminal.getvalue().count("\r") == 101
    assert terminal.getvalue().count("\n") == 1
    assert len(log.getvalue().splitlines()) == 4
