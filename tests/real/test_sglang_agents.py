"""Unmodified agents in front of a real SGLang, each in its own dialect: three turns with tools, and a sub-agent.

agents -> gateway -> shim that scripts -> SGLang, whose grammar makes its random weights write the script
"""

from pathlib import Path

import pytest

from tests.real.agents import opencode_config, run_opencode
from tests.real.clients import CLIENTS, MODEL, TASK, VERDICT, Client
from tests.real.gateway import engine_url, gateway
from tests.real.rewrites import scripted
from tests.real.scripts import Call, for_agents, steps
from tests.real.sglang import Sglang
from tests.real.shim import shim

pytestmark = pytest.mark.asyncio(loop_scope="session")

DIALECTS = {"claude-code": "messages", "codex": "responses", "opencode": "chat"}
ALIASES = {MODEL: "tiny"}


@pytest.mark.parametrize("client", [one for one in CLIENTS if one.name in DIALECTS], ids=lambda one: one.name)
async def test_an_agent_does_a_task_of_three_turns_with_tools(
    client: Client, sglang_process: Sglang, tmp_path: Path
) -> None:
    await sglang_process.reset_prefix_cache()
    async with (
        shim(sglang_process.base_url, scripted(client.script, "sglang")) as link,
        gateway(engine_url("sglang", link.base_url), models__aliases=ALIASES, probing__hints=False) as running,
    ):
        run = await client.start(running.base_url, tmp_path / "agent")
        await running.until_idle()
        receipts = running.receipts()
        sessions = [row for row in await running.sessions() if row["kind"] == "agent"]
    assert run.exit_code == 0, run.stderr
    assert VERDICT in run.stdout
    assert {receipt["outcome"] for receipt in receipts} == {"answered"}
    assert [row["turns"] for row in sessions] == [client.num_turns]
    turns = [receipt for receipt in receipts if receipt["kind"] == "agent"]
    assert {turn["path"] for turn in turns} == {DIALECTS[client.name]}
    assert all(turn["output_tokens"] > 0 for turn in turns)
    assert all(turn["cached_tokens"] > 0.8 * turns[0]["prompt_tokens"] for turn in turns[1:])


async def test_a_sub_agent_is_linked_with_its_parent(sglang_process: Sglang) -> None:
    await sglang_process.reset_prefix_cache()
    task = Call("task", {"description": "Look", "prompt": "Read main.py", "subagent_type": "explore"})
    reading = steps(Call("read", {"filePath": "main.py"}), "It has one function.")
    script = for_agents(steps(task, VERDICT), reading, spawning_tool="task")
    async with (
        shim(sglang_process.base_url, scripted(script, "sglang")) as link,
        gateway(engine_url("sglang", link.base_url), probing__hints=False) as running,
    ):
        run = await run_opencode(TASK, opencode_config(running.base_url, sglang_process.model))
        await running.until_idle()
        receipts = running.receipts()
        sessions = {row["session"]: row for row in await running.sessions() if row["kind"] == "agent"}
    assert run.exit_code == 0, run.stderr
    assert VERDICT in run.stdout
    assert sorted(row["turns"] for row in sessions.values()) == [2, 2]
    (child,) = (receipt for receipt in receipts if receipt.get("parent") and receipt["turn"] == 1)
    assert child["parent"] in sessions
    assert child["session"] in sessions
