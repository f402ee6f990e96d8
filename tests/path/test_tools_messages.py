"""Tools of ours on `/v1/messages`, read by the official SDK."""

from __future__ import annotations

from typing import Any

import anthropic
import orjson
import pytest

from tests.path.conftest import Gateway, Start
from tests.path.fake_engine import FakeEngine
from tests.path.tool_dialects import speaks
from tests.path.toolkit import Bench, Says

PATH = "/v1/messages"
ASK: dict[str, Any] = {"model": "m", "max_tokens": 99, "messages": [{"role": "user", "content": "find it"}]}
EDIT = {"name": "edit", "description": "Edits", "input_schema": {"type": "object"}}
SEARCH = ("toolu_search_1", "search", '{"q":"a"}')
THEIRS = ("toolu_edit_001", "edit", '{"path":"x"}')
FIRST = Says("I look.", (SEARCH,), id="msg_1")
SECOND = Says("Once more.", (("toolu_search_2", "search", '{"q":"b"}'),), id="msg_2")
LAST = Says("It is there.", id="msg_3")


def sdk(gateway: Gateway) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(base_url=gateway.url(""), api_key="x", max_retries=0)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def histories(engine: FakeEngine) -> list[list[dict[str, Any]]]:
    return [call.body["messages"] for call in engine.calls]


@pytest.mark.parametrize("step", [0, 1])
async def test_the_sdk_streams_a_three_round_answer(
    start: Start, engine: FakeEngine, bench: Bench, step: int
) -> None:
    engine.plays = [speaks(turn, step) for turn in (FIRST, SECOND, LAST)]
    gateway = await start(engine, tools=bench.settings())
    async with sdk(gateway) as client, client.messages.stream(**ASK) as stream:
        kinds = [event.type async for event in stream]
        final = await stream.get_final_message()
    assert [block.text for block in final.content if block.type == "text"] == [
        "I look.",
        "Once more.",
        "It is there.",
    ]
    assert len(final.content) == 3
    assert final.stop_reason == "end_turn"
    assert (final.usage.input_tokens, final.usage.output_tokens) == (30, 15)
    assert final.id == "msg_1"
    assert (kinds.count("message_start"), kinds.count("message_stop")) == (1, 1)
    assert bench.ran == [("search", {"q": "a"}), ("search", {"q": "b"})]
    await gateway.is_empty()


async def test_a_plain_answer_has_the_blocks_of_all_rounds(start: Start, engine: FakeEngine, bench: Bench) -> None:
    engine.plays = [speaks(turn) for turn in (FIRST, LAST)]
    gateway = await start(engine, tools=bench.settings())
    body = orjson.loads((await gateway.ask(ASK, PATH)).body)
    assert [block["text"] for block in body["content"]] == ["I look.", "It is there."]
    assert (body["stop_reason"], body["usage"]["input_tokens"]) == ("end_turn", 20)
    said, result = histories(engine)[1][1:]
    assert [block["type"] for block in said["content"]] == ["text", "tool_use"]
    assert result["content"] == [{"type": "tool_result", "tool_use_id": SEARCH[0], "content": "search found a"}]
    offered = engine.calls[0].body["tools"]
    assert [set(tool) for tool in offered] == [{"name", "description", "input_schema"}] * 3


@pytest.mark.parametrize("is_stream", [False, True])
async def test_calls_of_both_sides_over_two_requests_keep_the_history_append_only(
    start: Start, engine: FakeEngine, bench: Bench, is_stream: bool
) -> None:
    both = Says("Both.", (SEARCH, THEIRS), id="msg_2")
    engine.plays = [speaks(FIRST), speaks(both, 1), speaks(LAST)]
    gateway = await start(engine, tools=bench.settings())
    async with sdk(gateway) as client:
        tools: Any = [EDIT]
        if is_stream:
            async with client.messages.stream(**ASK, tools=tools) as stream:
                answer = await stream.get_final_message()
        else:
            answer = await client.messages.create(**ASK, tools=tools)
        uses = [block for block in answer.content if block.type == "tool_use"]
        assert [(use.id, use.name, use.input) for use in uses] == [(THEIRS[0], "edit", {"path": "x"})]
        assert answer.stop_reason == "tool_use"
        content = [block.model_dump(exclude_none=True) for block in answer.content]
        result = {"type": "tool_result", "tool_use_id": THEIRS[0], "content": "edited"}
        messages: Any = [
            *ASK["messages"],
            {"role": "assistant", "content": content},
            {"role": "user", "content": [result, {"type": "text", "text": "and now?"}]},
        ]
        await client.messages.create(**ASK | {"messages": messages}, tools=tools)
    _, before, after = histories(engine)
    assert after[: len(before)] == before
    said, results = after[len(before) :]
    assert [block.get("name") for block in said["content"]] == [None, "search", "edit"]
    assert [block.get("tool_use_id") for block in results["content"]] == [SEARCH[0], THEIRS[0], None]


async def test_a_failed_call_is_marked_as_an_error(start: Start, engine: FakeEngine, bench: Bench) -> None:
    engine.plays = [speaks(Says(calls=(("toolu_fail_01", "fail", "{}"),))), speaks(LAST)]
    gateway = await start(engine, tools=bench.settings())
    await gateway.ask(ASK | {"stream": True}, PATH)
    [block] = histories(engine)[1][-1]["content"]
    assert block["is_error"] is True


async def test_without_a_call_of_ours_a_stream_is_relayed_as_it_came(
    start: Start, engine: FakeEngine, bench: Bench
) -> None:
    engine.plays = [speaks(Says("Hi.", (THEIRS,)))]
    gateway = await start(engine, tools=bench.settings())
    answer = await gateway.ask(ASK | {"stream": True, "tools": [EDIT]}, PATH)
    assert answer.body == engine.calls[0].sent
