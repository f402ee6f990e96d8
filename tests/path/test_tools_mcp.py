"""A real MCP server behind the gateway: its tools in an ordinary answer, its death and its return."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import orjson

from tests.deadline import DEADLINE_S
from tests.path.conftest import Gateway, Start
from tests.path.fake_engine import FakeEngine
from tests.path.toolkit import Says, says

PROGRAM = Path(__file__).parents[1] / "tool_runtime" / "mcp" / "program.py"
ASK: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "how much is it"}]}
LAST = Says("That is all.", id="chatcmpl-2")


def server(**rules: Any) -> dict[str, Any]:
    return {"mcp": [{"name": "sums", "command": [sys.executable, str(PROGRAM)], **rules}]}


async def offered(gateway: Gateway) -> set[str]:
    async with gateway.get("/v1/turngate/tools") as response:
        return {row["name"] for row in (await response.json())["tools"]}


async def joined(gateway: Gateway) -> None:
    """Returns once the server has told its tools; the gateway does not wait for that to serve."""
    async with asyncio.timeout(DEADLINE_S):
        while not any(name.endswith("add") for name in await offered(gateway)):
            pass


def named(gateway_tools: set[str], name: str) -> str:
    [found] = [tool for tool in gateway_tools if tool.endswith(name)]
    return found


def results(engine: FakeEngine, index: int) -> list[str]:
    return [message["content"] for message in engine.calls[index].body["messages"] if message["role"] == "tool"]


async def test_a_model_calls_a_tool_of_an_mcp_server_in_one_answer(start: Start, engine: FakeEngine) -> None:
    gateway = await start(engine, tools=server(names=["*add"]))
    await joined(gateway)
    tools = await offered(gateway)
    assert len(tools) == 1
    call = ("call_add_1", named(tools, "add"), '{"a": 2, "b": 3}')
    engine.plays = [says(Says("I add.", (call,))), says(LAST)]
    answer = await gateway.ask(ASK)
    assert orjson.loads(answer.body)["choices"][0]["message"].get("tool_calls") is None
    assert results(engine, 1) == ["5"]
    await gateway.is_empty()


async def test_a_server_that_dies_in_a_call_is_told_to_the_model_and_comes_back(
    start: Start, engine: FakeEngine
) -> None:
    gateway = await start(engine, tools=server())
    await joined(gateway)
    tools = await offered(gateway)
    crash, add = named(tools, "crash"), named(tools, "add")
    engine.plays = [says(Says(calls=(("call_crash_1", crash, "{}"),))), says(LAST)]
    answer = await gateway.ask(ASK)
    assert answer.status == 200
    [told] = results(engine, 1)
    assert "unknown" in told.lower()
    await joined(gateway)
    engine.plays = [says(Says(calls=(("call_add_2", add, '{"a": 1, "b": 1}'),))), says(LAST)]
    again = {**ASK, "messages": [{"role": "user", "content": "and now"}]}
    async with asyncio.timeout(DEADLINE_S):
        await gateway.ask(again)
        while results(engine, -1) != ["2"]:  # until it is back, the model hears that it is not there
            engine.plays = [says(Says(calls=(("call_add_2", add, '{"a": 1, "b": 1}'),))), says(LAST)]
            await gateway.ask(again)
    await gateway.is_empty()
