"""Real agents on the embedded engine, which a file of rules scripts: a task of three turns each, through the
gateway."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.real.agents import openai_environment, run_opencode
from tests.real.clients import TASK, VERDICT, Start, claude_code, codex, opencode, qwen_code
from tests.real.gateway import gateway


async def opencode_by_variables(base_url: str, place: Path) -> Any:
    """It speaks Responses."""
    return await run_opencode(TASK, openai_environment(base_url), arguments=["-m", "openai/gpt-5"], place=place)


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"content": f"I will use {name}.", "tool_calls": [{"name": name, "arguments": arguments}]}


READ_BY_SHELL = ("ls", "cat main.py")
CLIENTS: dict[str, tuple[Start, str, list[dict[str, Any]]]] = {
    "claude-code": (
        claude_code,
        "messages",
        [call("Bash", command=line, description="Looks") for line in READ_BY_SHELL],
    ),
    "codex": (codex, "responses", [call("exec_command", cmd=line) for line in READ_BY_SHELL]),
    "opencode": (
        opencode,
        "chat",
        [call("bash", command="ls", description="Looks"), call("read", filePath="main.py")],
    ),
    "opencode-by-variables": (
        opencode_by_variables,
        "responses",
        [call("bash", command="ls", description="Looks"), call("read", filePath="main.py")],
    ),
    "qwen-code": (
        qwen_code,
        "chat",
        [
            call("run_shell_command", command=line, description="Looks", is_background=False)
            for line in READ_BY_SHELL
        ],
    ),
}


@pytest.mark.parametrize("name", CLIENTS)
async def test_an_agent_does_a_task_of_three_turns_on_the_embedded_engine(name: str, tmp_path: Path) -> None:
    start, dialect, looks = CLIENTS[name]
    tool = looks[0]["tool_calls"][0]["name"]
    rules = tmp_path / "rules.json"
    rules.write_text(json.dumps([{"offers": tool, "answers": [*looks, {"content": VERDICT}]}]))
    workspace = tmp_path / "agent"
    workspace.mkdir()
    async with gateway("embedded", embedded__script=str(rules), embedded__speed=20) as running:
        run = await start(running.base_url, workspace)
        await running.until_idle()
        sessions = [row for row in await running.sessions() if row["kind"] == "agent"]
        receipts = running.receipts()
    assert run.exit_code == 0, run.stderr
    assert VERDICT in run.stdout
    assert [row["turns"] for row in sessions] == [3]
    assert {receipt["outcome"] for receipt in receipts} == {"answered"}
    turns = [receipt for receipt in receipts if receipt["kind"] == "agent"]
    assert {receipt["path"] for receipt in turns} == {dialect}
    # All of the prompt before the last answer is found in the cache but its last block.
    assert all(receipt["cached_tokens"] > 0.8 * turns[0]["prompt_tokens"] for receipt in turns[1:])
