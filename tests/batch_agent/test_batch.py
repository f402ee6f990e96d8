from __future__ import annotations

import asyncio
import logging
import re
from typing import Any

import pytest

from batch_agent import AgentResult, BatchAgent, BatchSpec, Tool
from tests.batch_agent.conftest import Run
from tests.batch_agent.scripted import Asked, Scripted, calls, completion, refusal, says
from tests.clock import Clock
from tests.deadline import DEADLINE_S


def inputs(count: int) -> list[dict[str, int]]:
    return [{"n": number} for number in range(count)]


async def test_results_keep_the_order_of_the_inputs(gateway: Scripted, run: Run) -> None:
    async def script(asked: Asked) -> Any:
        await asyncio.sleep(0.05 if asked.task == "0" else 0)
        return says(asked.task)

    gateway.script = script
    results = await run(task="{n}", inputs=inputs(5))
    assert [result.output for result in results] == list("01234")
    assert [(result.job_id, result.index) for result in results] == [(f"job-{n}", n) for n in range(5)]


async def test_a_stream_gives_results_as_they_come(gateway: Scripted) -> None:
    gate = asyncio.Event()

    async def script(asked: Asked) -> Any:
        if asked.task == "0":
            await gate.wait()
        return says(asked.task)

    gateway.script = script
    seen = []
    async for result in BatchAgent.stream(task="{n}", inputs=inputs(3), model="m", gateway=gateway.url):
        seen.append(result.index)
        if len(seen) == 2:
            gate.set()
    assert set(seen[:2]) == {1, 2}
    assert seen[2] == 0


async def test_leaving_a_stream_ends_everything(gateway: Scripted) -> None:
    tool_ended = asyncio.Event()

    @Tool.define
    async def wait(path: str) -> str:
        try:
            await asyncio.Event().wait()
        finally:
            tool_ended.set()
        return ""

    async def script(asked: Asked) -> Any:
        match asked.task:
            case "0":
                await gateway.until(lambda: len(gateway.asked) == 5)
                return says("done")
            case "1":
                return calls("wait", '{"path": "a"}')
            case _:
                return await asyncio.Event().wait()

    gateway.script = script
    async for result in BatchAgent.stream(
        task="{n}", inputs=inputs(5), model="m", gateway=gateway.url, tools=[wait], max_turns=2
    ):
        assert result.index == 0
        break
    await gateway.until(lambda: gateway.num_running == 0)
    async with asyncio.timeout(DEADLINE_S):
        await tool_ended.wait()
        while any("batch_agent/" in repr(task) for task in asyncio.all_tasks() - {asyncio.current_task()}):
            await asyncio.sleep(0)


async def test_a_cancelled_run_leaves_nothing_running(gateway: Scripted, run: Run) -> None:
    async def script(asked: Asked) -> Any:
        await asyncio.Event().wait()

    gateway.script = script
    task = asyncio.ensure_future(run(task="{n}", inputs=inputs(8)))
    await gateway.until(lambda: gateway.num_running == 8)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await gateway.until(lambda: gateway.num_running == 0)


async def test_one_agent_s_failure_is_its_own(gateway: Scripted, run: Run) -> None:
    gateway.script = lambda asked: refusal(400, "bad") if asked.task == "1" else says(asked.task)
    results = await run(task="{n}", inputs=inputs(3))
    assert [result.ok for result in results] == [True, False, True]


async def test_model_calls_at_once_are_bounded(gateway: Scripted, run: Run) -> None:
    async def script(asked: Asked) -> Any:
        await gateway.until(lambda: gateway.most_running >= 3)
        return says("x")

    gateway.script = script
    await run(inputs=[{}] * 12, max_inflight=3)
    assert gateway.most_running == 3
    gateway.most_running = 0
    gateway.script = lambda asked: says("x")
    await run(inputs=[{}] * 12, max_agents=2)
    assert gateway.most_running <= 2


async def test_a_slot_is_free_while_tools_run(gateway: Scripted, run: Run) -> None:
    others_done = asyncio.Event()

    @Tool.define
    async def wait(path: str) -> str:
        await others_done.wait()
        return "seen"

    def script(asked: Asked) -> Any:
        if asked.task == "0" and not asked.num_turns:
            return calls("wait", '{"path": "a"}')
        if asked.task == "3":
            others_done.set()
        return says(asked.task)

    gateway.script = script
    async with asyncio.timeout(DEADLINE_S):
        results = await run(task="{n}", inputs=inputs(4), max_inflight=1, tools=[wait], max_turns=2)
    assert all(result.ok for result in results)


async def test_agents_begin_only_as_there_is_room(gateway: Scripted, run: Run) -> None:
    results = await run(task="{n}", inputs=inputs(50), max_inflight=4, max_dispatched=2)
    assert len(results) == 50
    assert gateway.most_running <= 2


async def test_an_agent_has_a_deadline(gateway: Scripted, run: Run, clock: Clock) -> None:
    async def script(asked: Asked) -> Any:
        if asked.task == "0":
            await asyncio.Event().wait()
        await gateway.until(lambda: len(gateway.asked) == 2)
        return says("x")

    def reported(result: AgentResult) -> None:
        clock.advance(600)

    gateway.script = script
    late, good = await run(task="{n}", inputs=inputs(2), timeout_per_agent=600, on_result=reported)
    assert good.ok
    assert late.error is not None
    assert (late.error.type, late.error.retryable) == ("TimeoutError", True)
    assert "600 s" in late.error.message


async def test_a_batch_has_a_budget_of_tokens(gateway: Scripted, run: Run) -> None:
    gateway.script = lambda asked: completion(says("x"), prompt_tokens=90, completion_tokens=10)
    results = await run(inputs=[{}] * 10, max_inflight=1, budget_tokens=300)
    assert sum(result.ok for result in results) == len(gateway.asked) == 3
    assert {result.error.type for result in results if result.error} == {"BudgetError"}


async def test_a_batch_has_a_budget_of_time(gateway: Scripted, run: Run) -> None:
    async def script(asked: Asked) -> Any:
        await asyncio.sleep(0.06)
        return says("x")

    gateway.script = script
    results = await run(inputs=[{}] * 10, max_inflight=1, budget_s=0.1)
    assert len(results) == 10
    assert {result.error.type for result in results if result.error} == {"BudgetError"}
    assert len(gateway.asked) < 5


async def test_a_task_that_cannot_fit_is_not_sent(gateway: Scripted, run: Run) -> None:
    long, short = await run(task="{t}", inputs=[{"t": "x" * 900_000}, {"t": "x"}])
    assert long.error is not None
    assert (long.error.type, long.attempts) == ("OVERSIZED", 0)
    assert short.ok


@pytest.mark.parametrize("is_async", [True, False])
async def test_on_result_gets_results_as_they_come(gateway: Scripted, run: Run, is_async: bool) -> None:
    reported: list[AgentResult] = []

    async def later(result: AgentResult) -> None:
        reported.append(result)

    results = await run(inputs=[{}] * 3, on_result=later if is_async else reported.append)
    assert sorted(reported, key=lambda result: result.index) == results


async def test_a_callback_that_fails_loses_no_result(
    gateway: Scripted, run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(result: AgentResult) -> None:
        raise RuntimeError("mine")

    with caplog.at_level(logging.ERROR):
        results = await run(inputs=[{}] * 3, on_result=fail)
    assert len(results) == 3
    assert "on_result failed for job-0" in caplog.text


@pytest.mark.parametrize(
    ("keywords", "fault"),
    [
        ({"task": ""}, "task"),
        ({"max_turns": 0}, "max_turns"),
        ({"max_concurrent": 0}, "max_concurrent"),
        ({"max_retries": -1}, "max_retries"),
        ({"sampling": {"messages": []}}, "sampling"),
        ({"task": "{none}"}, "input 0: missing template variable 'none'"),
        ({"tools": ["no_such_tool"]}, "no_such_tool"),
    ],
)
async def test_what_cannot_be_run_is_said_before_anything_is_sent(
    gateway: Scripted, run: Run, keywords: dict[str, Any], fault: str
) -> None:
    with pytest.raises(ValueError, match=fault):
        await run(**keywords)
    assert gateway.asked == []


@pytest.mark.parametrize(
    ("keyword", "meant"),
    [
        ("max_tokens", "sampling={'max_tokens': ...}"),
        ("temperature", "sampling={'temperature': ...}"),
        ("base_url", "gateway"),
        ("max_turn", "max_turns"),
    ],
)
async def test_a_keyword_that_does_not_exist_is_answered_with_the_one_that_was_meant(
    run: Run, keyword: str, meant: str
) -> None:
    with pytest.raises(TypeError, match=re.escape(f"there is no keyword {keyword} (did you mean {meant}?)")):
        await run(**{keyword: 5})


async def test_no_inputs_are_no_results(run: Run) -> None:
    assert await run(inputs=[]) == []


async def test_a_batch_without_a_model_takes_the_only_one(gateway: Scripted, run: Run) -> None:
    await run(model="")
    assert gateway.asked[0].body["model"] == "m"


async def test_a_key_is_sent_as_a_bearer_token(
    gateway: Scripted, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    await run(api_key="mine")
    monkeypatch.setenv("OPENAI_API_KEY", "theirs")
    await run()
    assert [asked.headers["Authorization"] for asked in gateway.asked] == ["Bearer mine", "Bearer theirs"]


def test_every_keyword_of_0_2_0_is_known() -> None:
    known = set(BatchSpec.__dataclass_fields__)
    assert known >= {
        *("task", "inputs", "system_prompt", "tools", "output_schema", "model", "backend", "max_concurrent"),
        *(
            "max_inflight",
            "max_dispatched",
            "calibrate_backend",
            "backpressure_ceiling",
            "max_turns",
            "max_retries",
        ),
        *("timeout_per_agent", "timeout_per_turn", "timeout_per_tool", "min_response_tokens", "model_max_context"),
        *("on_result", "diff_kv", "kvflow", "strip_preamble", "streaming_tool_dispatch", "nvext_agent_hints"),
        *("predictive_prewarm", "checkpoint_dir", "no_hoist", "reduce", "reduce_schema"),
        *("compaction_backend_url", "distributed", "node_id"),
    }


def test_a_result_is_made_as_in_0_2_0() -> None:
    result = AgentResult("job-0", 0, "text")
    assert (result.ok, result.error, result.attempts) == (True, None, 1)
