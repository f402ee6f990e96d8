"""Engines that answer a part of a list with nonsense, or not at all: clients get each answer, or one reason."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest
from aiohttp import web

from tests.path.conftest import Answer, Gateway, Start
from tests.path.fake_engine import DONE, Call, FakeEngine, error
from tests.path.test_lists import PATH, SLOTS, asks, choice, echoes, event, plays, texts_of


async def answered(gateway: Gateway, body: Any) -> Answer:
    """Time passes for as long as nothing else happens."""
    task = gateway.begin(body, PATH)
    while not task.done():
        if not gateway.slots_used and not any(engine.num_running for engine in gateway.engines):
            gateway.clock.advance(0.1)
        await asyncio.sleep(0)
    return await task


ODD: list[Any] = [
    "no object",
    {"choices": 7},
    {"choices": ["no object", None]},
    {"choices": [choice(99, "of nobody's prompt")]},
    {"choices": [choice(-1, "of nobody's prompt")]},
    {"choices": [{"index": "0", "text": ["no", "text"], "finish_reason": None}]},
    {"choices": [], "usage": "none"},
]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("odd", ODD, ids=[str(n) for n in range(len(ODD))])
async def test_an_answer_that_is_none_is_asked_for_again(
    start: Start, engine: FakeEngine, odd: Any, stream: bool
) -> None:
    async def play(call: Call) -> web.StreamResponse:
        if len(engine.calls) > 1:
            return await echoes(call)
        if not stream:
            return await call.reply(200, orjson.dumps(odd))
        await call.write(b"data: " + orjson.dumps(odd) + b"\n\n")
        return await call.end()

    plays(engine, play=play)
    gateway = await start(engine, policy=SLOTS)
    answer = await answered(gateway, asks(8, stream=stream))
    assert answer.status == 200
    found = texts_of(answer) if stream else {c["index"]: c["text"] for c in orjson.loads(answer.body)["choices"]}
    assert found == {n: f"prompt {n}/0" for n in range(8)}
    await gateway.is_empty()


async def test_a_part_that_has_all_its_answers_is_not_asked_again_whatever_else_its_engine_says(
    start: Start, engine: FakeEngine
) -> None:
    async def play(call: Call) -> web.StreamResponse:
        await call.write(event([choice(n, text) for n, text in enumerate(call.body["prompt"])]))
        await call.write(b"data: no JSON\n\n")
        return await call.end()

    plays(engine, play=play)
    gateway = await start(engine, policy=SLOTS)
    answer = await answered(gateway, asks(8, stream=True))
    assert texts_of(answer) == {n: f"prompt {n}" for n in range(8)}
    assert answer.body.endswith(DONE)
    assert len(engine.calls) == 2
    await gateway.is_empty()


async def test_a_stream_of_nonsense_ends_with_its_reason_and_not_with_done(
    start: Start, engine: FakeEngine
) -> None:
    async def play(call: Call) -> web.StreamResponse:
        await call.write(event([choice(99, "of nobody's prompt")]))
        return await call.end()

    plays(engine, play=play)
    gateway = await start(engine, policy=SLOTS)
    answer = await answered(gateway, asks(8, stream=True))
    assert (answer.status, b"no answer to the prompts" in answer.body) == (502, True)
    await gateway.is_empty()


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_a_list_that_finds_no_room_is_counted_as_refused_by_the_engine_not_as_a_bad_request(
    start: Start, engine: FakeEngine, stream: bool
) -> None:
    async def play(call: Call) -> web.StreamResponse:
        return await call.reply(429, error("Full.", 429, "rate_limit_error"))

    plays(engine, play=play)
    gateway = await start(engine, policy=SLOTS)
    answer = await answered(gateway, asks(8, stream=stream))
    assert answer.status == 429
    async with gateway.get(f"/v1/turngate/receipts/{answer.headers['X-Turngate-Receipt']}") as response:
        assert (await response.json())["outcome"] == "engine_refused"
