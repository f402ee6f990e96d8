from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from batch_agent import AgentResult, BatchAgent
from batch_agent.runtimes import OpenCodeRuntime
from batch_agent.runtimes.base import Link
from batch_agent.runtimes.opencode import Events


class Review(BaseModel):
    bugs: int


SESSION = "ses_1"


def event(type_: str, **part: Any) -> bytes:
    return json.dumps({"type": type_, "sessionID": SESSION, "part": part}).encode() + b"\n"


def tokens(input_: int, cached: int, output: int) -> dict[str, Any]:
    return {"input": input_, "output": output, "reasoning": 1, "cache": {"read": cached, "write": 0}}


def lines_of_a_run(text: str) -> Iterator[bytes]:
    yield b"a line of a plugin\n"
    yield event("step_start")
    yield event("text", text="let me see")
    yield event("tool_use", tool="read", state={"status": "completed", "output": "x" * 100_000})
    yield event("step_finish", reason="tool-calls", tokens=tokens(100, 0, 5))
    yield event("step_start")
    yield event("text", text=text)
    yield event("step_finish", reason="stop", tokens=tokens(10, 100, 5))


def test_the_answer_is_the_text_of_the_last_step_and_all_steps_are_counted() -> None:
    events = Events()
    for line in lines_of_a_run("the answer"):
        events.line(line)
    assert (events.text, events.turns, events.conversation) == ("the answer", 2, SESSION)
    assert (events.usage.prompt_tokens, events.usage.cached_tokens, events.usage.completion_tokens) == (
        210,
        100,
        12,
    )


OPENCODE = f"""#!{sys.executable}
import json, os, sys
prompt, environ = sys.stdin.read(), os.environ
config = json.loads(environ["OPENCODE_CONFIG_CONTENT"])
got = {{"arguments": sys.argv[1:], "prompt": prompt, "cwd": os.getcwd(), "config": config}}
with open(os.path.join(os.path.dirname(sys.argv[0]), "got"), "a") as file:
    file.write(json.dumps(got | {{"data": environ["XDG_DATA_HOME"]}}) + chr(10))
if "fail" in prompt:
    print(json.dumps({{"type": "error", "error": {{"name": "APIError", "data": {{"message": "no engine"}}}}}}))
    sys.exit(1)
text = json.dumps({{"bugs": 3}}) if "--session" in sys.argv else "three bugs"
parts = {{"step_start": {{}}, "text": {{"text": text}}, "step_finish": {{"tokens": {{"input": 5}}}}}}
for type_, part in parts.items():
    print(json.dumps({{"type": type_, "sessionID": {SESSION!r}, "part": part}}))
"""


@pytest.fixture
def opencode(tmp_path: Path) -> Path:
    """Stands for the program: keeps what it got, and writes events; told that it was wrong, it is right."""
    program = tmp_path / "opencode"
    program.write_text(OPENCODE)
    program.chmod(0o755)
    return program


async def review(opencode: Path, repository: Path, task: str) -> list[AgentResult]:
    runtime = OpenCodeRuntime(
        backend="http://127.0.0.1:9",
        model="Qwen/Qwen3-32B",
        opencode_bin=str(opencode),
        working_dir=str(repository),
    )
    return await BatchAgent.run(
        runtime=runtime, task=task, inputs=[{"file": "a.py"}, {"file": "b.py"}], max_agents=2, output_schema=Review
    )


async def test_opencode_workers_are_siblings_at_the_gateway(opencode: Path, repository: Path) -> None:
    results = await review(opencode, repository, "Review {file}")
    got = [json.loads(line) for line in (opencode.parent / "got").read_text().splitlines()]
    providers = [one["config"]["provider"]["batch"] for one in got]
    headers = [provider["options"]["headers"] for provider in providers]
    assert {header["X-Turngate-Session"] for header in headers} == {result.session for result in results}
    assert len({header["X-Turngate-Parent"] for header in headers}) == 1
    assert providers[0]["options"]["baseURL"] == "http://127.0.0.1:9/v1"
    assert providers[0]["models"]["Qwen/Qwen3-32B"]["limit"] == {"context": 32768, "output": 4096}
    assert got[0]["arguments"][:5] == ["run", "--format", "json", "--model", "batch/Qwen/Qwen3-32B"]
    assert len({one["cwd"] for one in got}) == len({one["data"] for one in got}) == 2


async def test_opencode_is_told_in_the_same_conversation_that_its_output_was_wrong(
    opencode: Path, repository: Path
) -> None:
    results = await review(opencode, repository, "Review {file}")
    assert [result.output for result in results] == [Review(bugs=3)] * 2
    assert [(result.turns, result.usage.prompt_tokens) for result in results] == [(2, 10)] * 2
    got = [json.loads(line) for line in (opencode.parent / "got").read_text().splitlines()]
    again = [one for one in got if "--session" in one["arguments"]]
    assert len(again) == 2
    assert "not the required output" in again[0]["prompt"]


async def test_an_error_of_opencode_is_that_of_its_agent(opencode: Path, repository: Path) -> None:
    results = await review(opencode, repository, "fail {file}")
    assert [result.error.message for result in results if result.error] == ["opencode: no engine"] * 2


def test_a_model_can_have_another_name_in_opencode() -> None:
    link = Link("http://g/v1", "org/model", "s", "p", Path("/w"), Path("/s"))
    launch = OpenCodeRuntime(model="org/model", model_alias="short").launch(link, "x")
    assert "batch/short" in launch.command
    assert os.environ.get("OPENCODE_CONFIG_CONTENT") is None
    assert (
        json.loads(launch.env["OPENCODE_CONFIG_CONTENT"])["provider"]["batch"]["models"]["short"]["id"]
        == "org/model"
    )
