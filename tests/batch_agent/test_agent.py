from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest
from aiohttp import web
from pydantic import BaseModel

from batch_agent import Tool
from tests.batch_agent.conftest import Run
from tests.batch_agent.scripted import Asked, Scripted, calls, completion, refusal, says


class Found(BaseModel):
    path: str


runs: list[str] = []


@pytest.fixture(autouse=True)
def no_runs() -> None:
    runs.clear()


@Tool.define
async def look(path: str) -> str:
    """Look at a file."""
    runs.append(path)
    await asyncio.sleep(0)
    return f"seen {path}"


@Tool.define(cacheable=False)
async def send(path: str) -> str:
    """Send a file."""
    runs.append(path)
    return "sent"


@Tool.define
async def fail(path: str) -> str:
    raise KeyError(path)


def looking(asked: Asked) -> Any:
    """One call of the tool that is offered first, then an output."""
    if asked.last["role"] == "tool":
        return says('{"path": "a"}')
    return calls(asked.body["tools"][0]["function"]["name"], '{"path": "a"}')


async def test_an_agent_calls_tools_until_it_answers(gateway: Scripted, run: Run) -> None:
    gateway.script = looking
    (result,) = await run(tools=[look], output_schema=Found, max_turns=3, transcript=True)
    assert result.output == Found(path="a")
    assert (result.turns, result.attempts, result.usage.prompt_tokens) == (2, 1, 20)
    assert result.transcript is not None
    assert [message["role"] for message in result.transcript] == [
        "system",
        "user",
        "assistant",
        "tool",
        "assistant",
    ]
    assert result.transcript[3]["content"] == "seen a"


async def test_each_request_repeats_the_one_before_byte_for_byte(gateway: Scripted, run: Run) -> None:
    strange = '{ "path" :  "\\u00e9" }'

    def script(asked: Asked) -> Any:
        return calls("look", strange) | {"reasoning": "hm "} if asked.num_turns < 3 else says("done")

    gateway.script = script
    await run(tools=[look], max_turns=4)
    for before, after in zip(gateway.asked, gateway.asked[1:], strict=False):
        assert after.messages[: len(before.messages)] == before.messages
        assert after.body["tools"] == before.body["tools"]
    assert gateway.asked[-1].messages[1] == calls("look", strange) | {"reasoning": "hm "}


async def test_every_call_names_its_session_and_the_turns_to_come(gateway: Scripted, run: Run) -> None:
    gateway.script = looking
    results = await run(inputs=[{}, {}], tools=[look], max_turns=2)
    sessions = {asked.headers["X-Turngate-Session"] for asked in gateway.asked}
    assert sessions == {result.session for result in results}
    assert len({asked.headers["X-Turngate-Parent"] for asked in gateway.asked}) == 1
    by_turn = {(asked.num_turns, asked.headers["X-Turngate-Remaining-Turns"]) for asked in gateway.asked}
    assert by_turn == {(0, "1"), (1, "0")}
    assert {asked.num_turns for asked in gateway.asked if asked.headers.get("X-Turngate-Final")} == {1}


async def test_turns_to_come_are_learned_from_agents_that_have_ended(gateway: Scripted, run: Run) -> None:
    gateway.script = looking
    await run(inputs=[{}, {}], tools=[look], max_turns=30, max_inflight=1, max_dispatched=1)
    assert [asked.headers["X-Turngate-Remaining-Turns"] for asked in gateway.asked] == ["29", "28", "1", "0"]


async def test_only_the_tools_of_the_batch_can_be_called(gateway: Scripted, run: Run) -> None:
    def script(asked: Asked) -> Any:
        return says(asked.last["content"]) if asked.last["role"] == "tool" else calls("send", '{"path": "a"}')

    gateway.script = script
    (result,) = await run(tools=[look], max_turns=2)
    assert "send" in result.output
    assert runs == []


async def test_equal_calls_of_a_cacheable_tool_run_once_and_of_another_each_time(
    gateway: Scripted, run: Run
) -> None:
    gateway.script = looking
    await run(inputs=[{}] * 10, tools=[look], max_turns=2)
    assert runs == ["a"]
    await run(inputs=[{}] * 10, tools=[send], max_turns=2)
    assert runs == ["a"] + ["a"] * 10


async def test_the_model_reads_the_error_of_a_tool(gateway: Scripted, run: Run) -> None:
    def script(asked: Asked) -> Any:
        return says(asked.last["content"]) if asked.last["role"] == "tool" else calls("fail", '{"path": "a"}')

    gateway.script = script
    (result,) = await run(tools=[fail], max_turns=2)
    assert result.ok
    assert "KeyError" in result.output


async def test_the_last_turn_has_to_answer(gateway: Scripted, run: Run) -> None:
    gateway.script = lambda asked: calls("look", '{"path": "a"}')
    (result,) = await run(tools=[look], max_turns=2)
    assert result.error is not None
    assert (result.error.type, result.turns, runs) == ("MaxTurnsError", 2, ["a"])
    assert [asked.body.get("tool_choice") for asked in gateway.asked] == [None, "none"]
    assert len(gateway.asked) == 2


async def test_the_engine_keeps_to_the_schema_where_it_can(gateway: Scripted, run: Run) -> None:
    gateway.script = looking
    await run(tools=[look], output_schema=Found, max_turns=2)
    first, last = gateway.asked
    assert "response_format" not in first.body
    assert "path" in first.messages[0]["content"]
    assert last.body["response_format"]["json_schema"]["schema"] == Found.model_json_schema()
    gateway.script = lambda asked: says('{"path": "a"}')
    await run(output_schema=Found, max_turns=2)
    assert "response_format" in gateway.asked[-1].body
    assert [message["role"] for message in gateway.asked[-1].messages] == ["user"]


async def test_an_unknown_name_is_a_tool_of_the_gateway(gateway: Scripted, run: Run) -> None:
    about = {"description": "d", "parameters": {"type": "object", "properties": {}}}
    gateway.tools = [{"name": "lookup", "mode": "offer", **about}, {"name": "fetch", "mode": "intercept", **about}]
    gateway.script = lambda asked: says('{"path": "a"}' if asked.num_turns else "wrong")
    await run(tools=["lookup", "fetch"], output_schema=Found, max_turns=1)
    first, correction = gateway.asked
    assert [tool["function"]["name"] for tool in first.body["tools"]] == ["fetch"]
    assert "response_format" not in first.body
    assert "schema" in first.messages[0]["content"]
    assert "response_format" in correction.body
    with pytest.raises(ValueError, match="'unknown', neither here nor at the gateway, which has fetch, lookup"):
        await run(tools=["unknown"])


@pytest.mark.parametrize("schema_in_prompt", [True, False])
async def test_whether_prompts_state_the_schema_can_be_said(
    gateway: Scripted, run: Run, schema_in_prompt: bool
) -> None:
    gateway.script = lambda asked: says('{"path": "a"}')
    await run(output_schema=Found, system_prompt="Be brief.", schema_in_prompt=schema_in_prompt)
    assert ("schema" in gateway.asked[0].messages[0]["content"]) is schema_in_prompt


async def test_an_engine_that_takes_no_schema_gets_the_schema_in_words(gateway: Scripted, run: Run) -> None:
    def script(asked: Asked) -> Any:
        if "response_format" in asked.body:
            return refusal(400, "response_format is not supported")
        return says('{"path": "a"}')

    gateway.script = script
    results = await run(inputs=[{}, {}], output_schema=Found, max_inflight=1)
    assert all(result.ok for result in results)
    assert len(gateway.asked) == 3
    assert "schema" in gateway.asked[1].last["content"]
    assert "schema" in gateway.asked[2].messages[0]["content"]


async def test_an_output_that_does_not_fit_is_corrected_once(gateway: Scripted, run: Run) -> None:
    gateway.script = lambda asked: says('{"path": "a"}' if asked.num_turns else '{"file": "a"}')
    (result,) = await run(output_schema=Found)
    assert result.output == Found(path="a")
    correction = gateway.asked[1]
    assert "path: Field required" in correction.last["content"]
    assert correction.messages[-2]["content"] == '{"file": "a"}'
    assert len(gateway.asked) == 2


async def test_an_output_that_stays_wrong_is_an_error_after_two_calls(gateway: Scripted, run: Run) -> None:
    gateway.script = lambda asked: says("I would rather not.")
    (result,) = await run(output_schema=Found)
    assert result.error is not None
    assert (result.error.type, len(gateway.asked)) == ("OutputValidationError", 2)


async def test_a_result_counts_the_calls_of_its_tools_and_those_that_sharing_saved(
    gateway: Scripted, run: Run
) -> None:
    ran: list[str] = []

    @Tool.define
    async def look(path: str) -> str:
        ran.append(path)
        return "seen"

    gateway.script = lambda asked: says("done") if asked.num_turns else calls("look", '{"path": "a"}')
    results = await run(inputs=[{}] * 3, tools=[look], max_turns=2)
    assert [result.tool_calls for result in results] == [1, 1, 1]
    assert (ran, sum(result.tool_calls_saved for result in results)) == (["a"], 2)


async def test_an_answer_that_was_cut_is_not_asked_for_again(gateway: Scripted, run: Run) -> None:
    gateway.script = lambda asked: completion(says('{"path": "a'), "length")
    (result,) = await run(output_schema=Found)
    assert result.error is not None
    assert (result.error.type, result.finish_reason, len(gateway.asked)) == ("OutputTruncated", "length", 1)
    assert re.fullmatch(
        r"the answer was cut at its limit of \d+ tokens before its output was complete \(the answer .*\):"
        r" raise sampling\['max_tokens'\]",
        result.error.message,
    )


async def test_a_refusal_is_a_result_with_its_reason(gateway: Scripted, run: Run) -> None:
    gateway.script = lambda asked: refusal(400, "This model's maximum context length is 10 tokens.")
    (result,) = await run()
    assert result.error is not None
    assert result.error.type == "HTTPStatusError"
    assert "maximum context length" in result.error.message
    assert not result.error.retryable


async def test_sampling_goes_into_every_call(gateway: Scripted, run: Run) -> None:
    await run(sampling={"temperature": 0, "max_tokens": 7, "cache_salt": "s"})
    asked = gateway.asked[0].body
    assert (asked["temperature"], asked["max_tokens"], asked["cache_salt"]) == (0, 7, "s")


async def test_only_the_user_changes_a_history(gateway: Scripted, run: Run) -> None:
    gateway.script = lambda asked: calls("look", '{"path": "a"}') if asked.num_turns < 2 else says("done")
    sizes: list[int] = []

    async def compact(messages: list[dict[str, Any]], prompt_tokens: int) -> list[dict[str, Any]] | None:
        sizes.append(prompt_tokens)
        return (
            None
            if len(messages) < 5
            else [messages[0], {"role": "assistant", "content": "Short."}, *messages[-2:]]
        )

    gateway.script = lambda asked: says("done") if asked.number == 2 else calls("look", '{"path": "a"}')
    await run(tools=[look], max_turns=5, compact=compact)
    assert sizes == [10, 10]
    assert len(gateway.asked[1].messages) == 3
    assert gateway.asked[2].messages[1]["content"] == "Short."


async def test_a_tool_that_hangs_costs_its_time_and_not_the_agent(gateway: Scripted, run: Run) -> None:
    @Tool.define
    async def hang(path: str) -> str:
        await asyncio.Event().wait()
        return ""

    gateway.script = lambda asked: (
        says(asked.last["content"]) if asked.num_turns else calls("hang", '{"path": "a"}')
    )
    (result,) = await run(tools=[hang], max_turns=2, timeout_per_tool=0.05)
    assert "gave no result" in result.output


async def test_timings_say_where_an_agent_spent_its_time(gateway: Scripted, run: Run) -> None:
    def script(asked: Asked) -> Any:
        answer = looking(asked)
        return web.json_response(
            completion(answer), headers={"X-Turngate-Queue-Ms": "40", "X-Turngate-Receipt": "r1"}
        )

    gateway.script = script
    (result,) = await run(tools=[look], max_turns=2)
    timings = result.timings
    assert result.receipt == "r1"
    assert timings.queued_s == pytest.approx(0.08)
    assert 0 < timings.tools_s < timings.total_s
    assert timings.model_s + timings.tools_s <= timings.total_s
