"""Tools of ours on `/v1/responses`, read by the official SDK."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from openai import AsyncOpenAI

from tests.path.conftest import Gateway, Start
from tests.path.fake_engine import FakeEngine
from tests.path.tool_dialects import speaks
from tests.path.toolkit import Bench, Says

PATH = "/v1/responses"
ASK: dict[str, Any] = {"model": "m", "input": "find it"}
EDIT: Any = {"type": "function", "name": "edit", "parameters": {"type": "object"}, "strict": False}
SEARCH = ("call_search_1", "search", '{"q":"a"}')
THEIRS = ("call_edit_0001", "edit", '{"path":"x"}')
FIRST = Says("I look.", (SEARCH,), id="resp_1")
SECOND = Says("Once more.", (("call_search_2", "search", '{"q":"b"}'),), id="resp_2")
LAST = Says("It is there.", id="resp_3")


def sdk(gateway: Gateway) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=gateway.url("/v1"), api_key="x", max_retries=0)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def inputs(engine: FakeEngine) -> list[list[dict[str, Any]]]:
    return [call.body["input"] for call in engine.calls]


@pytest.mark.parametrize("step", [0, 1])
async def test_the_sdk_streams_a_three_round_answer(
    start: Start, engine: FakeEngine, bench: Bench, step: int
) -> None:
    engine.plays = [speaks(turn, step) for turn in (FIRST, SECOND, LAST)]
    gateway = await start(engine, tools=bench.settings())
    async with sdk(gateway) as client, client.responses.stream(**ASK) as stream:
        events = [event async for event in stream]
        final = await stream.get_final_response()
    assert final.output_text == "I look.Once more.It is there."
    assert [item.type for item in final.output] == ["message"] * 3
    assert final.id == "resp_1"
    assert final.usage is not None
    assert (final.usage.input_tokens, final.usage.input_tokens_details.cached_tokens) == (30, 6)
    assert final.tools == []
    kinds = [event.type for event in events]
    assert kinds.count("response.created") == kinds.count("response.completed") == 1
    numbers = [event.sequence_number for event in events]
    assert numbers == list(range(len(numbers)))
    assert bench.ran == [("search", {"q": "a"}), ("search", {"q": "b"})]
    await gateway.is_empty()


async def test_a_plain_answer_has_the_items_of_all_rounds(start: Start, engine: FakeEngine, bench: Bench) -> None:
    engine.plays = [speaks(turn) for turn in (FIRST, LAST)]
    gateway = await start(engine, tools=bench.settings())
    body = orjson.loads((await gateway.ask(ASK, PATH)).body)
    assert [item["id"] for item in body["output"]] == ["msg_resp_1", "msg_resp_3"]
    assert body["usage"]["total_tokens"] == 30
    asked, said, call, result = inputs(engine)[1]
    assert asked == {"role": "user", "content": "find it"}
    assert said["content"][0]["text"] == "I look."
    assert (call["type"], call["call_id"]) == ("function_call", SEARCH[0])
    assert result == {"type": "function_call_output", "call_id": SEARCH[0], "output": "search found a"}


@pytest.mark.parametrize("is_stream", [False, True])
async def test_calls_of_both_sides_over_two_requests_keep_the_history_append_only(
    start: Start, engine: FakeEngine, bench: Bench, is_stream: bool
) -> None:
    both = Says("Both.", (SEARCH, THEIRS), id="resp_2")
    engine.plays = [speaks(FIRST), speaks(both, 1), speaks(LAST)]
    gateway = await start(engine, tools=bench.settings())
    asked: Any = [{"role": "user", "content": "find it"}]
    async with sdk(gateway) as client:
        if is_stream:
            async with client.responses.stream(model="m", input=asked, tools=[EDIT]) as stream:
                answer: Any = await stream.get_final_response()
        else:
            answer = await client.responses.create(model="m", input=asked, tools=[EDIT])
        calls = [item for item in answer.output if item.type == "function_call"]
        assert [(call.call_id, call.name, call.arguments) for call in calls] == [THEIRS]
        assert [tool.name for tool in answer.tools] == ["edit"]
        output = [item.model_dump(exclude_none=True, exclude={"parsed_arguments"}) for item in answer.output]
        output.append({"type": "function_call_output", "call_id": THEIRS[0], "output": "edited"})
        await client.responses.create(model="m", input=asked + output, tools=[EDIT])
    _, before, after = inputs(engine)
    assert after[: len(before)] == before
    assert [item.get("call_id") for item in after[len(before) :]] == [
        None,
        SEARCH[0],
        THEIRS[0],
        SEARCH[0],
        THEIRS[0],
    ]


async def test_a_stored_answer_is_followed_up_where_the_engine_left_it(
    start: Start, engine: FakeEngine, bench: Bench
) -> None:
    engine.plays = [speaks(turn) for turn in (FIRST, Says("Both.", (SEARCH, THEIRS), id="resp_2"), LAST)]
    gateway = await start(engine, tools=bench.settings())
    public = orjson.loads((await gateway.ask(ASK | {"tools": [EDIT]}, PATH)).body)
    assert public["id"] == "resp_1"
    theirs = {"type": "function_call_output", "call_id": THEIRS[0], "output": "edited"}
    await gateway.ask(ASK | {"previous_response_id": public["id"], "input": [theirs]}, PATH)
    body = engine.calls[-1].body
    assert body["previous_response_id"] == "resp_2"
    ours = {"type": "function_call_output", "call_id": SEARCH[0], "output": "search found a"}
    assert body["input"] == [ours, theirs]


async def test_without_tools_of_ours_a_stream_is_relayed_as_it_came(
    start: Start, engine: FakeEngine, bench: Bench
) -> None:
    engine.plays = [speaks(LAST)]
    gateway = await start(engine, tools=bench.settings(models=["other"]))
    answer = await gateway.ask(ASK | {"stream": True}, PATH)
    assert answer.body == engine.calls[0].sent
    body = engine.calls[0].body
    assert body == ASK | {"stream": True, "request_id": body["request_id"]}
