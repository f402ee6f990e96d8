"""Tools of ours in chat completions: one public answer, whatever rounds it took."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import orjson
import pytest
from openai import AsyncOpenAI

from tests.path.conftest import Answer, Gateway, Start
from tests.path.fake_engine import FakeEngine
from tests.path.toolkit import Bench, Says, deltas, says

ASK: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "find it"}]}
STREAM = ASK | {"stream": True}
CLIENTS = {"type": "function", "function": {"name": "edit", "parameters": {"type": "object"}}}
SEARCH = ("call_search_1", "search", '{"q": "a"}')
EDIT = ("call_edit_0001", "edit", '{"path": "x"}')
FIRST = Says("I look.", (SEARCH,), id="chatcmpl-1")
SECOND = Says("Once more.", (("call_search_2", "search", '{"q":"b"}'),), id="chatcmpl-2")
LAST = Says("It is there.", id="chatcmpl-3")
WHOLE = "I look.\n\nOnce more.\n\nIt is there."


@pytest.fixture
def bench() -> Bench:
    return Bench()


def sent(engine: FakeEngine) -> list[list[dict[str, Any]]]:
    """The messages of each call at the engine."""
    return [call.body["messages"] for call in engine.calls]


async def receipt(gateway: Gateway, answer: Answer) -> dict[str, Any]:
    async with gateway.get("/v1/turngate/receipts/" + answer.headers["X-Turngate-Receipt"]) as response:
        told: dict[str, Any] = await response.json()
        return told


def sdk(gateway: Gateway) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=gateway.url("/v1"), api_key="x", max_retries=0)


@pytest.mark.parametrize("step", [0, 1, 7])
async def test_three_rounds_are_one_stream_with_one_id_one_role_and_one_end(
    start: Start, engine: FakeEngine, bench: Bench, step: int
) -> None:
    engine.plays = [says(turn, step=step) for turn in (FIRST, SECOND, LAST)]
    gateway = await start(engine, tools=bench.settings())
    answer = await gateway.ask(STREAM | {"stream_options": {"include_usage": True}})
    chunks = deltas(answer.body)
    assert {(chunk["id"], chunk["created"]) for chunk in chunks} == {("chatcmpl-1", 1)}
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    assert [c["delta"]["role"] for c in choices if "role" in c["delta"]] == ["assistant"]
    assert "".join(c["delta"].get("content") or "" for c in choices) == WHOLE
    assert not any("tool_calls" in choice["delta"] for choice in choices)
    assert [c["finish_reason"] for c in choices if c["finish_reason"]] == ["stop"]
    usages = [chunk["usage"] for chunk in chunks if chunk.get("usage")]
    assert usages == [{"prompt_tokens": 30, "completion_tokens": 15, "total_tokens": 45}]
    assert answer.body.endswith(b"data: [DONE]\n\n")
    assert bench.ran == [("search", {"q": "a"}), ("search", {"q": "b"})]
    await gateway.is_empty()


async def test_a_plain_answer_has_the_text_of_all_rounds_and_their_usage(
    start: Start, engine: FakeEngine, bench: Bench
) -> None:
    engine.plays = [says(turn) for turn in (FIRST, SECOND, LAST)]
    gateway = await start(engine, tools=bench.settings())
    answer = await gateway.ask(ASK)
    body = orjson.loads(answer.body)
    assert body["id"] == "chatcmpl-1"
    assert body["choices"] == [
        {"index": 0, "message": {"role": "assistant", "content": WHOLE}, "finish_reason": "stop"}
    ]
    assert body["usage"] == {"prompt_tokens": 30, "completion_tokens": 15, "total_tokens": 45}
    told = await receipt(gateway, answer)
    assert [row["prompt_tokens"] for row in told["rounds"]] == [10, 10, 10]
    assert [[t["name"] for t in row["tools"]] for row in told["rounds"]] == [["search"], ["search"], []]
    assert told["prompt_tokens"] == 30


@pytest.mark.parametrize("body", [ASK, STREAM], ids=["plain", "stream"])
async def test_the_engine_sees_its_own_words_and_the_results_appended(
    start: Start, engine: FakeEngine, bench: Bench, body: dict[str, Any]
) -> None:
    engine.plays = [says(FIRST), says(LAST)]
    gateway = await start(engine, tools=bench.settings())
    await gateway.ask(body)
    first, second = engine.calls
    assert [tool["function"]["name"] for tool in first.body["tools"]] == ["fail", "search", "write"]
    assert second.body["tools"] == first.body["tools"]
    call = {"id": SEARCH[0], "type": "function", "function": {"name": "search", "arguments": SEARCH[2]}}
    assert second.body["messages"] == [
        *body["messages"],
        {"role": "assistant", "content": "I look.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": SEARCH[0], "content": "search found a"},
    ]
    before = first.raw.index(b'"find it"}') + len(b'"find it"}')
    assert second.raw[:before] == first.raw[:before]
    assert second.raw.endswith(first.raw[before:])


async def test_calls_of_both_sides_run_ours_and_return_theirs(
    start: Start, engine: FakeEngine, bench: Bench
) -> None:
    mixed = Says("Both.", (SEARCH, EDIT), id="chatcmpl-2")
    engine.plays = [says(FIRST), says(mixed, step=1), says(LAST)]
    gateway = await start(engine, tools=bench.settings())
    answer = await gateway.ask(STREAM | {"tools": [CLIENTS]})
    choices = [choice for chunk in deltas(answer.body) for choice in chunk["choices"]]
    calls = [call for c in choices for call in c["delta"].get("tool_calls", [])]
    assert {call["index"] for call in calls} == {0}
    assert [call["function"]["name"] for call in calls if "id" in call] == ["edit"]
    assert "".join(call["function"]["arguments"] for call in calls) == EDIT[2]
    assert [c["finish_reason"] for c in choices if c["finish_reason"]] == ["tool_calls"]
    assert len(bench.ran) == 2
    # The client comes back with what it saw; the engine gets what it wrote.
    theirs = {"id": EDIT[0], "type": "function", "function": {"name": "edit", "arguments": '{"path":"x"}'}}
    seen = {"role": "assistant", "content": "I look.\n\nBoth.", "tool_calls": [theirs], "refusal": None}
    result = {"role": "tool", "tool_call_id": EDIT[0], "content": "edited"}
    await gateway.ask(ASK | {"messages": [*ASK["messages"], seen, result], "tools": [CLIENTS]})
    _, before, after = sent(engine)
    assert after[: len(before)] == before
    said = after[len(before)]
    assert said["content"] == "Both."
    assert [call["id"] for call in said["tool_calls"]] == [SEARCH[0], EDIT[0]]
    assert [item.get("tool_call_id") for item in after[len(before) + 1 :]] == [SEARCH[0], EDIT[0]]


async def test_what_was_hidden_stays_in_every_later_request_of_the_session(
    start: Start, engine: FakeEngine, bench: Bench
) -> None:
    engine.plays = [says(FIRST), says(LAST), says(Says("Sure about that.")), says(SECOND), says(LAST)]
    gateway = await start(engine, tools=bench.settings())
    messages = list(ASK["messages"])
    for question in ("really?", "and now?", ""):
        answer = orjson.loads((await gateway.ask(ASK | {"messages": messages})).body)
        messages += [answer["choices"][0]["message"], {"role": "user", "content": question}]
    histories = sent(engine)
    for before, after in pairwise(histories):
        assert after[: len(before)] == before
    assert "".join(str(m["role"])[0] for m in histories[-1]) == "uatauauat"


async def test_errors_are_results_that_the_model_reads(start: Start, engine: FakeEngine, bench: Bench) -> None:
    calls = (("call_fail_001", "fail", "{}"), ("call_bad_0001", "search", "{nonsense"))
    engine.plays = [says(Says(calls=calls)), says(LAST)]
    gateway = await start(engine, tools=bench.settings())
    assert (await gateway.ask(STREAM)).status == 200
    said, failed, unread = sent(engine)[1][1:]
    assert [item["tool_call_id"] for item in (failed, unread)] == ["call_fail_001", "call_bad_0001"]
    assert failed["content"].startswith("Error")
    assert unread["content"].startswith("Error")
    assert [call["function"]["arguments"] for call in said["tool_calls"]] == ["{}", "{}"]


async def test_a_name_that_the_request_did_not_offer_is_never_run(
    start: Start, engine: FakeEngine, bench: Bench
) -> None:
    engine.plays = [says(Says(calls=(("call_write_01", "write", "{}"),))), says(LAST)]
    gateway = await start(engine, tools=bench.settings(names=["search"]))
    answer = await gateway.ask(ASK)
    assert orjson.loads(answer.body)["choices"][0]["message"]["content"] == LAST.text
    assert bench.ran == []
    assert sent(engine)[1][-1]["content"].startswith("Error")
    async with gateway.get("/metrics") as response:
        page = await response.text()
    assert 'turngate_tool_failed_total{status="refused",tool="unknown"} 1.0' in page


async def test_a_client_s_own_tool_is_its_own_unless_it_is_to_be_intercepted(
    start: Start, engine: FakeEngine, bench: Bench
) -> None:
    own = {"type": "function", "function": {"name": "search", "parameters": {"type": "object"}}}
    engine.plays = [says(FIRST)]
    gateway = await start(engine, tools=bench.settings())
    body = orjson.loads((await gateway.ask(ASK | {"tools": [own]})).body)
    assert body["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "search"
    assert bench.ran == []
    intercepting = FakeEngine(plays=[says(FIRST), says(LAST)])
    gateway = await start(intercepting, tools=bench.settings(mode="intercept"))
    answer = await gateway.ask(STREAM | {"tools": [own]})
    assert b"tool_calls" not in answer.body
    assert bench.ran == [("search", {"q": "a"})]
    assert intercepting.calls[0].body["tools"] == [own]


async def test_without_tools_of_ours_for_it_a_request_is_relayed_byte_by_byte(
    start: Start, engine: FakeEngine, bench: Bench
) -> None:
    gateway = await start(engine, tools=bench.settings(models=["other"]))
    answer = await gateway.ask(STREAM | {"stream_options": {"include_usage": True}})
    assert answer.body == engine.calls[0].sent
    async with gateway.client.post(
        gateway.url("/v1/chat/completions"), data=b' {"model" :"m", "messages": [ ] , "n":1.0}'
    ) as response:
        assert response.status == 200
    assert engine.calls[-1].raw == b' {"model" :"m", "messages": [ ] , "n":1.0}'


@pytest.mark.parametrize("body", [ASK, STREAM], ids=["plain", "stream"])
async def test_rounds_end_at_the_bound_with_an_answer(
    start: Start, engine: FakeEngine, bench: Bench, body: dict[str, Any]
) -> None:
    engine.plays = [says(FIRST), says(SECOND), says(FIRST)]
    gateway = await start(engine, tools=bench.settings(rounds=2))
    answer = await gateway.ask(body)
    assert answer.status == 200
    assert len(engine.calls) == 3
    assert engine.calls[2].body["tool_choice"] == "none"
    assert len(bench.ran) == 2
    assert b"tool_calls" not in answer.body
    assert b'"finish_reason":"stop"' in answer.body
    await gateway.is_empty()


async def test_a_call_that_ran_into_the_token_limit_is_not_run(
    start: Start, engine: FakeEngine, bench: Bench
) -> None:
    torn = Says("I write.", (("call_write_01", "write", '{"q": "to'),), finish="length")
    engine.plays = [says(torn)]
    gateway = await start(engine, tools=bench.settings())
    answer = await gateway.ask(STREAM)
    choices = [choice for chunk in deltas(answer.body) for choice in chunk["choices"]]
    assert choices[-1]["finish_reason"] == "length"
    assert bench.ran == []
    assert len(engine.calls) == 1


async def test_what_forced_a_call_does_not_force_the_next_one(
    start: Start, engine: FakeEngine, bench: Bench
) -> None:
    engine.plays = [says(FIRST), says(LAST)]
    gateway = await start(engine, tools=bench.settings())
    await gateway.ask(ASK | {"tool_choice": "required"})
    assert [call.body["tool_choice"] for call in engine.calls] == ["required", "auto"]


@pytest.mark.parametrize("step", [0, 1])
async def test_the_openai_sdk_reads_a_three_round_answer(
    start: Start, engine: FakeEngine, bench: Bench, step: int
) -> None:
    thinking = Says("I look.", (SEARCH,), thinks="hm")
    engine.plays = [says(turn, step=step) for turn in (thinking, SECOND, LAST)]
    gateway = await start(engine, tools=bench.settings())
    async with sdk(gateway) as client, client.chat.completions.stream(model="m", messages=ASK["messages"]) as run:
        async for _ in run:
            pass
        final = await run.get_final_completion()
    assert final.choices[0].message.content == WHOLE
    assert final.choices[0].finish_reason == "stop"
    assert not final.choices[0].message.tool_calls
    assert sent(engine)[1][1]["reasoning_content"] == "hm"


async def test_the_openai_sdk_reads_calls_of_both_sides(start: Start, engine: FakeEngine, bench: Bench) -> None:
    engine.plays = [says(Says("Both.", (EDIT, SEARCH)), step=1)]
    gateway = await start(engine, tools=bench.settings())
    tools: Any = [CLIENTS]
    async with (
        sdk(gateway) as client,
        client.chat.completions.stream(model="m", messages=ASK["messages"], tools=tools) as run,
    ):
        async for _ in run:
            pass
        final = await run.get_final_completion()
    assert [call.function.name for call in final.choices[0].message.tool_calls or []] == ["edit"]
    assert final.choices[0].finish_reason == "tool_calls"
