"""Answers whose client was kept waiting, read by the helpers of the official SDKs for JavaScript."""

from __future__ import annotations

import asyncio
import json
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.deadline import DEADLINE_S
from tests.path.fake_engine import DONE, FakeEngine, Play, error, replies, stalls_after, streams
from tests.path.test_waiting_sdk import LAST, finds, named
from tests.path.tool_dialects import response_events, speaks
from tests.path.toolkit import Says, says
from tests.real import own_tools, parts
from tests.real.gateway import Gateway, gateway

SCRIPT = Path(__file__).parent / "inside" / "node_sdk.mjs"
WAITS: dict[str, Any] = {"stream__silent_queue_s": 0.1, "stream__keep_alive_s": 0.1, "probing__hints": False}
NUM_KEEP_ALIVES = 3
CALLS = Says("I look.", (("call_1", "edit", '{"path":"x"}'),), id="chatcmpl-1")
SEARCH = Says("I look.", (("call_2", "web_search", '{"query":"a"}'),), id="resp_of_engine_1")

Json = dict[str, Any]


@asynccontextmanager
async def waiting(*plays: Play, **settings: Any) -> AsyncIterator[tuple[Gateway, FakeEngine, asyncio.Event]]:
    """A gateway, and its engine, which says nothing until the event."""
    engine, go_on = FakeEngine(), asyncio.Event()
    engine.plays = [stalls_after(until=go_on, then=plays[0]), *plays[1:]]
    await engine.start()
    try:
        async with gateway(f"vllm://127.0.0.1:{engine.port}", **WAITS, **settings) as running:
            yield running, engine, go_on
    finally:
        await engine.stop()


async def asked(
    base_url: str, api: str, heard: Callable[[int], None], previous: str = ""
) -> tuple[list[Json], Json]:
    """The events that the helper passes on, and what it ends with. `heard`: told of each, by its number."""
    parts.require("sdks", parts.SDKS_DIR / "node_modules" / "openai")
    command = ["node", str(SCRIPT), str(parts.SDKS_DIR), base_url, api, previous]
    process = await asyncio.create_subprocess_exec(*command, stdout=PIPE)
    assert process.stdout is not None
    events: list[Json] = []
    try:
        async with asyncio.timeout(DEADLINE_S):
            async for line in process.stdout:
                told: Json = json.loads(line)
                if "connected" in told:  # status 200 came with the first keep-alive
                    heard(NUM_KEEP_ALIVES)
                elif "event" in told:
                    events.append(told["event"])
                    heard(len(events))
                else:
                    return events, told
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
    raise AssertionError("it ended without a word")


def until(go_on: asyncio.Event, num_events: int = NUM_KEEP_ALIVES) -> Callable[[int], None]:
    """The engine answers once the client has had so many keep-alives."""

    def heard(number: int) -> None:
        if number >= num_events:
            go_on.set()

    return heard


@pytest.mark.parametrize("play", [speaks(LAST), named(LAST)], ids=["an id of its own", "the id that it is given"])
async def test_the_helper_of_responses_reads_an_answer_that_was_waited_for(play: Play) -> None:
    async with waiting(play, speaks(Says("And more.", id="resp_9")), finds) as (front, _, go_on):
        events, told = await asked(front.base_url, "responses", until(go_on))
        final = told["final"]
        more, after = await asked(front.base_url, "responses", until(go_on), previous=final["id"])
        _, read = await asked(front.base_url, "retrieve", until(go_on), previous=final["id"])
    assert final["output_text"] == "It is there."
    assert [event["type"] for event in events].count("response.created") == 1
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert {event["response"]["id"] for event in events if "response" in event} == {final["id"]}
    assert after["final"]["output_text"] == "And more."
    assert more[-1]["type"] == "response.completed"
    assert (read["final"]["id"], read["final"]["output_text"]) == (final["id"], "It is there.")


async def test_an_engine_that_begins_at_once_and_then_is_silent_is_no_second_beginning() -> None:
    whole = list(response_events(LAST, {}))
    go_on = asyncio.Event()
    engine = FakeEngine(plays=[stalls_after(*whole[:2], until=go_on, then=streams(whole[2:]))])
    await engine.start()
    async with gateway(f"vllm://127.0.0.1:{engine.port}", **WAITS) as front:
        events, told = await asked(front.base_url, "responses", until(go_on))
    await engine.stop()
    assert told["final"]["output_text"] == "It is there."
    assert [event["type"] for event in events].count("response.created") == 1


async def test_the_helper_of_responses_reads_rounds_with_tools_of_ours() -> None:
    async with waiting(speaks(SEARCH), speaks(LAST), tools__use=own_tools.USE) as (front, engine, go_on):
        events, told = await asked(front.base_url, "responses", until(go_on))
    assert told["final"]["output_text"] == "I look.It is there."
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert len(engine.calls) == 2


async def test_a_failure_after_keep_alives_reaches_the_helper_of_responses() -> None:
    async with waiting(replies(400, error("no such thing", 400))) as (front, _, go_on):
        events, told = await asked(front.base_url, "responses", until(go_on))
    assert events[-1]["type"] == "response.failed"
    assert events[-1]["response"]["error"]["message"] == "no such thing"
    assert "identity" not in told.get("error", "")


async def test_the_helper_of_chat_reads_an_answer_that_was_waited_for() -> None:
    async with waiting(says(CALLS)) as (front, _, go_on):
        events, told = await asked(front.base_url, "chat", until(go_on))
    (choice,) = told["final"]["choices"]
    assert choice["message"]["content"] == "I look."
    assert choice["message"]["tool_calls"][0]["function"]["arguments"] == '{"path":"x"}'
    assert {event["id"] for event in events} == {told["final"]["id"]}


async def test_completions_that_were_waited_for_have_one_id() -> None:
    chunk = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "m"}
    choices = [
        {"index": 0, "text": text, "finish_reason": end} for text, end in (("It is ", None), ("there.", "stop"))
    ]
    said = [b"data: " + json.dumps(chunk | {"choices": [choice]}).encode() + b"\n\n" for choice in choices]
    async with waiting(streams([*said, DONE])) as (front, _, go_on):
        events, told = await asked(front.base_url, "completions", until(go_on))
    assert told["final"]["text"] == "It is there."
    assert len({event["id"] for event in events}) == 1


@pytest.mark.parametrize("turn", [LAST, CALLS], ids=["text", "a call"])
async def test_the_helper_of_messages_reads_an_answer_that_was_waited_for(turn: Says) -> None:
    async with waiting(speaks(turn)) as (front, _, go_on):
        events, told = await asked(front.base_url, "messages", until(go_on))
    assert [event["type"] for event in events].count("message_start") == 1
    assert [block["type"] for block in told["final"]["content"]][-1] == ("tool_use" if turn.calls else "text")
