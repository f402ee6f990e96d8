"""Tools of two gateways over a real Valkey: which one runs a call, which one waits, and what a death leaves."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gateway.cluster import tool_results
from gateway.cluster.membership import connected
from gateway.cluster.tool_results import RedisResults
from tests.deadline import DEADLINE_S
from tests.valkey import valkey as valkey
from tests.valkey import valkey_server as valkey_server
from tool_runtime.runtime import ToolRuntime
from tool_runtime.types import Call, Context, Effect, Limits, Origin, Tool


class Counted:
    """A tool that takes as long as the test says."""

    def __init__(self) -> None:
        self.num_runs = 0
        self.may_end = asyncio.Event()

    async def run(self, arguments: Any, context: Context) -> str:
        self.num_runs += 1
        await self.may_end.wait()
        return f"run {self.num_runs}"

    def tool(self, effect: Effect = Effect.IDEMPOTENT, **limits: Any) -> Tool:
        return Tool(
            name="look",
            description="",
            parameters={"type": "object"},
            run=self.run,
            effect=effect,
            limits=Limits(**limits),
        )


@pytest.fixture
async def shared(valkey: str) -> AsyncIterator[list[RedisResults]]:
    both = [RedisResults(connected(valkey), "turngate:test") for _ in range(2)]
    yield both
    for one in both:
        await one.close()


def runtimes(counted: Counted, shared: list[RedisResults], **of_tool: Any) -> list[ToolRuntime]:
    return [ToolRuntime([counted.tool(**of_tool)], clock=time.monotonic, shared=one) for one in shared]


def call(runtime: ToolRuntime, tenant: str = "a") -> asyncio.Task[Any]:
    return asyncio.create_task(runtime.run(Call("c1", "look", "{}"), Context(tenant, "s")))


async def until_runs(counted: Counted, num: int) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while counted.num_runs < num:
            await asyncio.sleep(0.01)


async def until_waits(results: RedisResults) -> None:
    """Its process has found the claim of another one, and looks for what becomes of it."""
    async with results._redis.monitor() as heard, asyncio.timeout(DEADLINE_S):
        while "MGET" not in (await heard.next_command())["command"]:
            pass


async def test_identical_calls_at_two_gateways_run_once(shared: list[RedisResults]) -> None:
    counted = Counted()
    first, second = runtimes(counted, shared)
    one = call(first)
    await until_runs(counted, 1)
    other = call(second)
    await until_waits(shared[1])
    counted.may_end.set()
    results = [await one, await other]
    assert [result.text for result in results] == ["run 1", "run 1"]
    assert [result.origin for result in results] == [Origin.EXECUTED, Origin.COALESCED]
    assert (await call(second)).text == "run 2", "nothing is kept that may not be cached"
    for runtime in (first, second):
        await runtime.close()


async def test_what_may_be_cached_is_found_at_the_other_gateway_by_the_same_tenant(
    shared: list[RedisResults],
) -> None:
    counted = Counted()
    counted.may_end.set()
    first, second = runtimes(counted, shared, effect=Effect.READ_ONLY, ttl_s=60.0)
    assert (await call(first)).text == (await call(second)).text == "run 1"
    assert (await call(second, tenant="b")).text == "run 2"
    for runtime in (first, second):
        await runtime.close()


async def test_a_call_whose_gateway_dies_runs_once_more_and_no_oftener(
    shared: list[RedisResults], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tool_results, "CLAIM_MS", 300)  # gone before it is renewed, as that of a killed process
    counted = Counted()
    first, second = runtimes(counted, shared)
    one = call(first)
    await until_runs(counted, 1)
    others = [call(second), call(second)]
    await until_runs(counted, 2)
    counted.may_end.set()
    assert [(await other).text for other in others] == ["run 2", "run 2"]
    await one
    for runtime in (first, second):
        await runtime.close()
    assert counted.num_runs == 2


async def test_a_destructive_call_asks_no_other_gateway(shared: list[RedisResults]) -> None:
    counted = Counted()
    counted.may_end.set()
    first, second = runtimes(counted, shared, effect=Effect.DESTRUCTIVE)
    results = await asyncio.gather(call(first), call(second))
    assert counted.num_runs == 2
    assert {result.origin for result in results} == {Origin.EXECUTED}
    for runtime in (first, second):
        await runtime.close()


async def test_without_valkey_calls_run_as_at_a_lone_gateway() -> None:
    counted = Counted()
    counted.may_end.set()
    lonely = RedisResults(connected("redis://127.0.0.1:9/0"), "turngate:test")
    runtime = ToolRuntime([counted.tool()], clock=time.monotonic, shared=lonely)
    assert (await call(runtime)).text == "run 1"
    await runtime.close()
    await lonely.close()
