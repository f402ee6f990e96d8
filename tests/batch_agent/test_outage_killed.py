"""A gateway process that is killed under a batch and started again on its port."""

from __future__ import annotations

import asyncio
import json
import signal
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import pytest
from aiohttp import web

from batch_agent import AgentResult, BatchAgent, Outage, Tool
from tests.deadline import DEADLINE_S
from tests.path.counted_tools import ToolServer
from tests.path.fake_engine import Call, FakeEngine
from tests.path.killed import GatewayProcess
from tests.path.toolkit import Says, says

NUM_AGENTS = 60


@dataclass
class Stage:
    """A gateway in front of an engine; whose agents call one tool each, and then tell what came of it."""

    engine: FakeEngine
    tools: ToolServer
    gateway: GatewayProcess
    reports: list[str] = field(default_factory=list)
    tool: str = "ship"

    async def play(self, call: Call) -> web.StreamResponse | None:
        messages = call.body["messages"]
        number = int(messages[0]["content"].split()[1])
        if messages[-1]["role"] == "tool":
            return await says(Says(messages[-1]["content"].splitlines()[0]))(call)
        arguments = orjson.dumps({"session": number}).decode()
        return await says(Says("", ((f"call_{number}", self.tool, arguments),)))(call)

    def run(self, outage: Outage, **keywords: Any) -> asyncio.Task[list[AgentResult]]:
        given = {
            "task": "Task {n}",
            "inputs": [{"n": n} for n in range(NUM_AGENTS)],
            "model": "m",
            "max_turns": 2,
            "max_retries": 0,
            "gateway": self.gateway.url("/v1"),
            "outage": outage,
        }
        return asyncio.create_task(BatchAgent.run(**given | keywords))

    def outage(self) -> Outage:
        """Whose pauses are shorter."""
        return Outage(tell=self.reports.append, sleep=lambda seconds: asyncio.sleep(seconds / 20))

    async def until_reports(self, num: int) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while len(self.reports) < num:
                await asyncio.sleep(0.01)


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    engine, tools = FakeEngine(), ToolServer()
    await engine.start()
    await tools.start()
    entry = tools.settings() | {"models": ["m"]}
    gateway = GatewayProcess(engine, tmp_path / "batches", "--set", f"tools.use={json.dumps([entry])}")
    await gateway.start()
    stage = Stage(engine, tools, gateway)
    engine.plays = [stage.play] * 10_000
    yield stage
    await gateway.kill()
    await tools.stop()
    await engine.stop()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
async def test_every_agent_has_its_output_and_no_tool_of_a_batch_ran_twice(
    stage: Stage, how: signal.Signals
) -> None:
    shipped: Counter[int] = Counter()

    @Tool.define(cacheable=False)
    async def ship(session: int) -> str:
        """Ship."""
        shipped[session] += 1
        return f"shipped {session}"

    run = stage.run(stage.outage(), tools=[ship])
    await stage.engine.has_seen(NUM_AGENTS // 2)
    stage.gateway.signal(how)
    await stage.gateway.ended()
    await stage.until_reports(1)
    await stage.gateway.start()
    results = await run
    assert [result.output for result in results] == [f"shipped {n}" for n in range(NUM_AGENTS)]
    assert shipped == Counter(range(NUM_AGENTS))
    assert len(stage.reports) == 2


async def test_a_call_that_the_killed_gateway_had_begun_is_not_begun_by_its_successor(stage: Stage) -> None:
    """The model is told that its outcome is unknown. What may be repeated is."""
    for tool, starts in (("order", 1), ("fetch", 2)):
        stage.tool = tool
        stage.tools.held = {(tool, n) for n in range(3)}
        run = stage.run(stage.outage(), inputs=[{"n": n} for n in range(5)], max_turns=1)
        async with asyncio.timeout(DEADLINE_S):
            while sum(stage.tools.starts[tool, n] for n in range(5)) < 5:
                await asyncio.sleep(0.01)
        await stage.gateway.kill()
        await stage.until_reports(1)
        stage.tools.held = set()
        await stage.gateway.start()
        results = await run
        stage.reports.clear()
        assert [result.ok for result in results] == [True] * 5
        begun = {n: stage.tools.starts[tool, n] for n in range(3)}
        assert begun == dict.fromkeys(range(3), starts)
        unknown = {n for n in range(5) if "was stopped before it gave a result" in str(results[n].output)}
        if tool == "order":
            assert unknown >= {0, 1, 2}  # and whose answer was still on its way
            assert all(stage.tools.starts[tool, n] == 1 for n in range(5))
        else:
            assert unknown == set()
