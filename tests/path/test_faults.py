"""Engines that fail: another replica before the first byte, unseen by the client; a reset after it."""

from __future__ import annotations

import asyncio

import orjson
import pytest

from tests.path.conftest import Gateway, Start
from tests.path.fake_engine import (
    DONE,
    FakeEngine,
    Play,
    chunk,
    completion,
    cuts_after,
    error,
    finish,
    replies,
    stalls_after,
    streams,
)

ASK = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
STREAM = ASK | {"stream": True}
REJECTED = b'data: {"error":{"message":"full","type":"ServiceUnavailableError","code":503}}\n\n'
CREATED = b'event: response.created\ndata: {"type":"response.created","response":{"id":"resp_1"}}\n\n'


async def pair(start: Start, play: Play) -> tuple[Gateway, FakeEngine, FakeEngine]:
    """Two engines; whichever is asked first plays `play`, the other one answers."""
    first, second = FakeEngine(), FakeEngine()
    plays = [play]
    first.plays = second.plays = plays
    return await start(first, second), first, second


async def receipt(gateway: Gateway, headers: dict[str, str]) -> dict[str, object]:
    async with gateway.get("/v1/turngate/receipts/" + headers["X-Turngate-Receipt"]) as response:
        told: dict[str, object] = await response.json()
        return told


@pytest.mark.parametrize("body", [ASK, STREAM], ids=["plain", "stream"])
@pytest.mark.parametrize(
    "play",
    [
        replies(500, error("boom", 500)),
        replies(502, b"<html>bad gateway</html>"),
        replies(429, error("slow down", 429)),
        replies(503, error("full", 503)),
        replies(529, {"message": "Service temporarily overloaded", "type": "Overloaded", "code": 529}),
        cuts_after(b""),
    ],
    ids=["500", "502", "429", "503", "529", "cut"],
)
async def test_an_engine_that_fails_before_its_first_byte_is_replaced_unseen(
    start: Start, play: Play, body: dict[str, object]
) -> None:
    gateway, first, second = await pair(start, play)
    answer = await gateway.ask(body)
    assert answer.status == 200
    assert b"hello" in answer.body
    assert len(first.calls) == len(second.calls) == 1
    assert (await receipt(gateway, answer.headers))["attempts"] == 2
    await gateway.is_empty()


@pytest.mark.parametrize(
    "parts",
    [[REJECTED, DONE], [b": hello\n\n", REJECTED], [b""]],
    ids=["vllm rejects with 200", "after a comment", "no event at all"],
)
async def test_a_stream_that_brings_no_answer_is_replaced_unseen(start: Start, parts: list[bytes]) -> None:
    gateway, *_ = await pair(start, streams(parts))
    answer = await gateway.ask(STREAM)
    assert answer.status == 200
    assert b"hello" in answer.body
    assert b"full" not in answer.body


async def test_a_body_that_is_cut_is_replaced_unseen(start: Start) -> None:
    gateway, *_ = await pair(start, cuts_after(orjson.dumps(completion())[:20]))
    assert (await gateway.ask(ASK)).body == orjson.dumps(completion())


async def test_events_that_engines_send_on_arrival_do_not_count_as_an_answer(start: Start) -> None:
    gateway, *_ = await pair(start, cuts_after(CREATED))
    done = b'event: response.completed\ndata: {"type":"response.completed","response":{"status":"completed"}}\n\n'
    for engine in gateway.engines:
        engine.plays.append(streams([CREATED, done]))
    answer = await gateway.ask({"model": "m", "input": "hi", "stream": True}, "/v1/responses")
    assert answer.body == CREATED + done


async def test_a_dead_engine_is_left_at_once_and_the_next_turn_does_not_try_it(start: Start) -> None:
    first, second = FakeEngine(), FakeEngine()
    gateway = await start(first, second)
    await first.stop()
    for n in range(3):
        answer = await gateway.ask({"model": "m", "messages": [{"role": "user", "content": f"task {n}"}]})
        assert answer.status == 200
    assert len(second.calls) == 3


async def test_the_only_engines_own_error_is_relayed_when_none_is_left(start: Start, engine: FakeEngine) -> None:
    gateway = await start(engine)
    engine.plays = [replies(500, error("boom", 500)), replies(503, error("full", 503))]
    broken, full = await gateway.ask(ASK), await gateway.ask(STREAM)
    assert (broken.status, broken.body) == (500, orjson.dumps(error("boom", 500)))
    assert (full.status, full.body) == (503, orjson.dumps(error("full", 503)))
    assert int(full.headers["Retry-After"]) >= 1
    assert int(full.headers["Retry-After-Ms"]) >= 1000
    assert "Retry-After" not in broken.headers


async def test_an_error_that_is_not_in_the_callers_dialect_is_translated(start: Start, engine: FakeEngine) -> None:
    gateway = await start(engine)
    overloaded = {"message": "Service temporarily overloaded", "type": "Overloaded", "code": 529}
    engine.plays = [replies(529, overloaded), replies(529, overloaded), streams([REJECTED, DONE])]
    chat = await gateway.ask(ASK)
    assert chat.status == 503  # OpenAI's clients do not retry 529
    assert orjson.loads(chat.body)["error"]["message"] == "Service temporarily overloaded"
    messages = await gateway.ask(ASK | {"max_tokens": 9}, "/v1/messages")
    assert messages.status == 529
    assert orjson.loads(messages.body)["type"] == "error"
    rejected = await gateway.ask(STREAM)
    assert rejected.status == 503
    assert orjson.loads(rejected.body)["error"]["message"] == "full"
    assert rejected.headers["Content-Type"] == "application/json"


@pytest.mark.parametrize("status", [400, 404, 422])
async def test_the_clients_own_mistakes_are_relayed_untouched_and_not_tried_twice(
    start: Start, status: int
) -> None:
    told = error("no", status, "BadRequestError")
    gateway, first, second = await pair(start, replies(status, told))
    answer = await gateway.ask(ASK)
    assert (answer.status, answer.body) == (status, orjson.dumps(told))
    assert len(first.calls) + len(second.calls) == 1


async def test_a_wrong_key_of_the_gateway_is_not_told_as_a_wrong_key_of_the_client(
    start: Start, engine: FakeEngine
) -> None:
    engine.plays = [replies(401, error("bad key", 401))]
    gateway = await start(engine)
    answer = await gateway.ask(ASK)
    assert answer.status == 502
    assert b"api_key" in answer.body


async def test_no_engine_at_all_is_503_with_retry_after(start: Start, engine: FakeEngine) -> None:
    gateway = await start(engine)
    await engine.stop()
    for _ in range(2):
        answer = await gateway.ask(ASK)
        assert answer.status == 503
        assert int(answer.headers["Retry-After"]) >= 1


@pytest.mark.parametrize(
    "play",
    [
        cuts_after(chunk(content="half")),
        streams([chunk(content="half")]),
        streams([chunk(content="half"), REJECTED, DONE]),
    ],
    ids=["cut", "clean end without a finish", "error in the middle"],
)
async def test_an_answer_that_breaks_off_is_reset_and_never_ends_cleanly(start: Start, play: Play) -> None:
    gateway, *_ = await pair(start, play)
    answer = await gateway.ask(STREAM)
    assert answer.status == 200
    assert answer.is_cut
    assert b"[DONE]" not in answer.body
    assert answer.body.startswith(chunk(content="half"))
    await gateway.is_empty()


async def test_a_connection_that_breaks_after_the_end_marker_harms_nobody(
    start: Start, engine: FakeEngine
) -> None:
    engine.plays = [cuts_after(chunk(content="hello"), finish(), DONE)]
    gateway = await start(engine)
    answer = await gateway.ask(STREAM)
    assert not answer.is_cut
    assert (await receipt(gateway, answer.headers))["outcome"] == "answered"


async def test_a_slow_drip_arrives_drop_by_drop(start: Start, engine: FakeEngine) -> None:
    go_on = asyncio.Event()
    rest = [finish(), DONE]
    engine.plays = [stalls_after(chunk(content="1"), until=go_on, then=streams(rest))]
    gateway = await start(engine)
    async with gateway.post(STREAM) as response:
        assert await response.content.readany() == chunk(content="1")
        go_on.set()
        assert await response.content.read() == b"".join(rest)
