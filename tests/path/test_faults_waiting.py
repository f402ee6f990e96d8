"""Engines that refuse a call whose client was kept waiting, and engines whose queue has no place for one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import orjson
import pytest

from policies.types import Hold
from tests.path.batches import Connect, asks, create, over
from tests.path.conftest import Answer, Gateway, Start, rest_of
from tests.path.fake_engine import (
    Call,
    FakeEngine,
    Play,
    answers,
    cuts_after,
    error,
    replies,
    stalls_after,
    streams,
)
from tests.path.faults import ENGINE, counted, fault, faults, outcomes
from tests.path.secured import by, keys
from tests.path.tool_dialects import speaks
from tests.path.toolkit import Bench, Says, says

ASK: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
STREAM = ASK | {"stream": True}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": STREAM,
    "/v1/completions": {"model": "m", "prompt": "hi", "stream": True},
    "/v1/responses": {"model": "m", "input": "hi", "stream": True},
    "/v1/messages": STREAM | {"max_tokens": 9},
}
AT_ONCE = {"silent_queue_s": 0}
"""Every stream that is not answered at once has status 200 and a keep-alive."""
ONE_SLOT = {"name": "fifo", "slots_per_replica": 1}
QUEUE_FULL = "The request queue is full."
NO_PLACE = [
    ("sglang", QUEUE_FULL),
    ("sglang", "The request is aborted by a higher priority request."),
    ("sglang", "Request waiting timeout reached."),
    ("vllm", "The engine is currently busy and cannot accept new requests. Please try again later."),
    ("vllm", "The engine has reached its prefill token backlog limit. Please try again later."),
    ("dynamo", "Service temporarily overloaded"),
]
"""What SGLang 0.5.23, vLLM 0.32 and Dynamo 1.6.1 say."""


def full(status: int = 503, retry_after: str = "") -> Play:
    return replies(status, error("full", status), **({"Retry-After": retry_after} if retry_after else {}))


def no_place(message: str, is_stream: bool) -> Play:
    """As SGLang says it: a stream has begun with status 200 by then."""
    told = {"error": {"message": message, "type": "SERVICE_UNAVAILABLE", "param": None, "code": 503}}
    if is_stream:
        return streams([b"data: " + orjson.dumps(told) + b"\n\n", b"data: [DONE]\n\n"])
    return replies(503, {"object": "error", "message": message, "type": "SERVICE_UNAVAILABLE", "code": 503})


async def in_its_dialect(call: Call) -> Any:
    """A short answer, whatever path was asked."""
    if "messages" in call.path or "responses" in call.path:
        return await speaks(Says("hello", id="resp_1"))(call)
    if "chat" in call.path:
        return await answers(call)
    choice = {"index": 0, "text": "hello", "finish_reason": "stop"}
    chunk = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "m", "choices": [choice]}
    return await streams([b"data: " + orjson.dumps(chunk) + b"\n\n", b"data: [DONE]\n\n"])(call)


@pytest.fixture
def sglang() -> FakeEngine:
    """One without pages of its own."""
    pages = ("/v1/loads", "/server_info", "/get_server_info", "/health", "/busy_threshold")
    return FakeEngine(lacks=frozenset(pages))


def resting(gateway: Gateway) -> int:
    return gateway.app.parts.gate.view().waiting[Hold.REPLICA]


async def rests(gateway: Gateway) -> None:
    await gateway.until(lambda: resting(gateway) == 1)


async def passes(gateway: Gateway, is_over: Callable[[], bool], step_s: float = 1.0) -> float:
    """Time passes, in steps, until something is so; how much of it."""
    began_at = gateway.clock.now()
    while not is_over():
        await gateway.clock.passes(step_s / 2)
        assert gateway.clock.now() < began_at + 1_000
    return gateway.clock.now() - began_at


async def receipt(gateway: Gateway, answer: Answer) -> dict[str, Any]:
    async with gateway.get("/v1/turngate/receipts/" + answer.headers["X-Turngate-Receipt"]) as response:
        told: dict[str, Any] = await response.json()
        return told


@fault(
    ENGINE,
    "429, 503, 529 or a reset, after keep-alives",
    "retried, at another replica first, within `max_wait_s`",
    outcomes("answered"),
)
@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize(
    "play", [full(), full(429), full(529), cuts_after(b""), cuts_after(b": hello\n\n")],
    ids=["503", "429", "529", "reset", "reset after a comment"],
)  # fmt: skip
async def test_an_engine_that_fails_after_our_keep_alives_is_asked_again(
    start: Start, engine: FakeEngine, play: Play, path: str
) -> None:
    engine.plays = [play, play, in_its_dialect]
    gateway = await start(engine, stream=AT_ONCE)
    client = gateway.begin(BODIES[path], path)
    for _ in range(2):
        await rests(gateway)
        await passes(gateway, lambda: resting(gateway) == 0)
    answer = await client
    assert (answer.status, answer.is_cut) == (200, False)
    assert (b"message_stop" if path == "/v1/messages" else b"hello") in answer.body
    assert b"error" not in answer.body.replace(b'"error":null', b"")
    told = await receipt(gateway, answer)
    assert told["attempts"] == len(engine.calls) == 3
    assert len(told["notes"]) == 2
    assert await counted(gateway, outcomes("answered")) == 1
    await gateway.is_empty()


async def test_another_replica_is_asked_at_once_and_the_first_when_both_have_refused(start: Start) -> None:
    first, second = FakeEngine(), FakeEngine()
    first.plays = second.plays = [full(), full(), answers]
    gateway = await start(first, second, stream=AT_ONCE)
    client = gateway.begin(STREAM)
    await rests(gateway)
    assert len(first.calls) == len(second.calls) == 1
    await passes(gateway, client.done)
    assert b"hello" in (await client).body
    assert len(first.calls) + len(second.calls) == 3


@fault(
    ENGINE,
    "full after keep-alives, with `Retry-After`",
    "retried after that, or at the client's bound",
    faults("full"),
)
async def test_how_long_an_engine_wants_to_be_left_alone_is_honoured(start: Start, engine: FakeEngine) -> None:
    engine.plays = [full(retry_after="17"), answers]
    gateway = await start(engine, stream=AT_ONCE)
    client = gateway.begin(STREAM)
    await rests(gateway)
    waited_s = await passes(gateway, client.done)
    assert 15 <= waited_s <= 30
    assert len(engine.calls) == 2
    assert await counted(gateway, faults("full")) == 1


async def test_no_engine_is_left_alone_beyond_the_bound_of_the_client(start: Start, engine: FakeEngine) -> None:
    engine.plays = [full(retry_after="9999")] * 9
    gateway = await start(engine, stream=AT_ONCE)
    client = gateway.begin(STREAM)
    await rests(gateway)
    waited_s = await passes(gateway, client.done)
    assert 280 <= waited_s <= 340
    assert len(engine.calls) == 2
    answer = await client
    assert answer.is_cut
    assert b'"message":"full"' in answer.body


@fault(
    ENGINE,
    "full after keep-alives, beyond `max_wait_s`",
    "an error event, then a reset",
    outcomes("engine_refused"),
)
async def test_an_engine_that_stays_full_is_asked_seldom_and_not_for_ever(
    start: Start, engine: FakeEngine
) -> None:
    engine.plays = [full()] * 1_000
    gateway = await start(engine, stream=AT_ONCE)
    client = gateway.begin(STREAM)
    await rests(gateway)
    assert 280 <= await passes(gateway, client.done) <= 340
    answer = await client
    assert answer.is_cut
    assert answer.body.count(b'"message":"full"') == 1
    assert 20 <= len(engine.calls) <= 70
    assert await counted(gateway, outcomes("engine_refused")) == 1
    assert (await receipt(gateway, answer))["attempts"] == len(engine.calls)


@pytest.mark.parametrize("play", [cuts_after(b""), replies(500, error("boom", 500))], ids=["reset", "500"])
async def test_a_call_that_breaks_engines_is_not_sent_for_ever(
    start: Start, engine: FakeEngine, play: Play
) -> None:
    engine.plays = [play] * 99
    gateway = await start(engine, stream=AT_ONCE)
    client = gateway.begin(STREAM)
    assert await passes(gateway, client.done) < 30
    assert (await client).is_cut
    assert len(engine.calls) == 3


@pytest.mark.parametrize("status", [400, 401, 404])
async def test_what_no_wait_can_change_is_told_at_once(start: Start, engine: FakeEngine, status: int) -> None:
    engine.plays = [replies(status, error("no such model" if status == 404 else "no", status))] * 9
    gateway = await start(engine, stream=AT_ONCE)
    answer = await gateway.ask(STREAM)
    assert answer.is_cut
    assert b"error" in answer.body
    assert len(engine.calls) == 1


async def test_while_the_client_can_ask_again_itself_it_is_told(start: Start, engine: FakeEngine) -> None:
    engine.plays = [full(retry_after="17")]
    gateway = await start(engine)
    answer = await gateway.ask(STREAM)
    assert (answer.status, answer.headers["Retry-After"]) == (503, "17")
    assert len(engine.calls) == 1


# ---- queues of engines


@fault(
    ENGINE,
    "its own queue is full, or gives the place to another",
    "back to the gate's queue, with its old arrival",
    faults("full"),
)
@pytest.mark.parametrize(("kind", "message"), NO_PLACE)
@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_call_for_which_an_engines_queue_has_no_place_waits_in_ours(
    start: Start, sglang: FakeEngine, kind: str, message: str, is_stream: bool
) -> None:
    sglang.plays = [no_place(message, is_stream)] * 3
    gateway = await start(sglang, kind=kind)
    client = gateway.begin(ASK | {"stream": is_stream})
    await rests(gateway)
    assert len(sglang.calls) == 1, "it is not sent again at once"
    assert gateway.num_waiting == 1
    assert gateway.slots_used == 0
    waited_s = await passes(gateway, client.done, 0.1)
    answer = await client
    assert (answer.status, len(sglang.calls)) == (200, 4)
    assert b"hello" in answer.body
    assert waited_s > 1
    assert (await receipt(gateway, answer))["attempts"] == 4
    assert await counted(gateway, faults("full")) == 3


async def test_a_call_that_comes_back_to_the_queue_goes_before_those_that_came_later(
    start: Start, sglang: FakeEngine
) -> None:
    go_on = asyncio.Event()
    sglang.plays = [no_place(QUEUE_FULL, is_stream=False), stalls_after(until=go_on, then=answers)]
    gateway = await start(sglang, kind="sglang", policy=ONE_SLOT)
    tasks = []
    for number, task in enumerate(("first", "second", "third")):
        tasks.append(gateway.begin(ASK | {"messages": [{"role": "user", "content": task}]}))
        if number == 0:
            await rests(gateway)
        else:
            await gateway.until(lambda: gateway.num_waiting + gateway.slots_used == len(tasks))
    await sglang.has_seen(2)
    await passes(gateway, lambda: resting(gateway) == 0)
    go_on.set()
    assert [answer.status for answer in await asyncio.gather(*tasks)] == [200] * 3
    asked = [call.body["messages"][0]["content"] for call in sglang.calls]
    assert asked == ["first", "second", "first", "third"]


async def test_a_queue_that_stays_full_is_told_with_a_status(start: Start, sglang: FakeEngine) -> None:
    sglang.plays = [no_place(QUEUE_FULL, is_stream=False)] * 1_000
    gateway = await start(sglang, kind="sglang")
    client = gateway.begin(ASK)
    assert 380 <= await passes(gateway, client.done) <= 440
    answer = await client
    assert answer.status == 503
    assert int(answer.headers["Retry-After"]) >= 1
    assert len(sglang.calls) <= 90


async def test_a_line_of_a_batch_waits_there_too(
    start: Start, sglang: FakeEngine, sdk: Connect, tmp_path: Any
) -> None:
    sglang.plays = [no_place(QUEUE_FULL, is_stream=False)] * 2
    gateway = await start(sglang, kind="sglang", batches={"directory": str(tmp_path)})
    client = sdk(gateway)
    batch = await create(client, [asks("a")])
    await passes(gateway, lambda: len(sglang.calls) == 3, 0.1)
    done = await over(client, batch)
    assert done.request_counts is not None
    assert (done.status, done.request_counts.completed) == ("completed", 1)
    assert await counted(gateway, outcomes("answered")) == 1, "one request, whatever it took"


# ---- who leaves, what is counted, what has begun


async def test_a_client_that_leaves_while_its_call_waits_again_gives_its_place_back(
    start: Start, engine: FakeEngine
) -> None:
    engine.plays = [full()]
    gateway = await start(engine, stream=AT_ONCE)
    client = gateway.begin(STREAM)
    await rests(gateway)
    client.cancel()
    await gateway.is_empty()
    for _ in range(20):
        await gateway.clock.passes(1)
    assert len(engine.calls) == 1
    assert await counted(gateway, outcomes("client_gone")) == 1


async def test_a_gateway_that_stops_turns_away_who_waits_again(start: Start, engine: FakeEngine) -> None:
    engine.plays = [full()]
    gateway = await start(engine, stream=AT_ONCE, timeouts={"shutdown_grace_s": 30})
    async with gateway.post(STREAM) as response:
        rest = asyncio.create_task(rest_of(response))
        await rests(gateway)
        await gateway.app.stop()
        answer = await rest
    assert answer.is_cut
    assert b'"code":"stopping"' in answer.body


async def test_a_call_that_was_asked_often_is_counted_and_charged_once(start: Start, engine: FakeEngine) -> None:
    engine.plays = [full(), cuts_after(b""), answers]
    far = {"window_s": 1e9, "budget_window_s": 1e9}
    rules = {"requests": 9, "tokens": 1_000_000, **far}
    gateway = await start(engine, stream=AT_ONCE, keys=keys("a", limits=rules))
    client = gateway.begin(STREAM, **by("a"))
    await passes(gateway, client.done)
    assert b"hello" in (await client).body
    async with gateway.get("/v1/turngate/limits", **by("a")) as response:
        used = {row["limit"]: row["used"] for row in (await response.json())["limits"]}
    assert (used["requests"], used["tokens"]) == (1, 9)
    assert await counted(gateway, "turngate_prompt_tokens_total") == 7
    assert await counted(gateway, "turngate_retries_total") == 2


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("play", [full(), cuts_after(b"")], ids=["503", "reset"])
async def test_a_later_round_of_an_answer_is_asked_again_and_no_tool_runs_twice(
    start: Start, engine: FakeEngine, is_stream: bool, play: Play
) -> None:
    bench = Bench()
    search = Says("I look.", (("call_search_1", "search", '{"q":"a"}'),), id="chatcmpl-1")
    engine.plays = [says(search), play, play, says(Says("It is there.", id="chatcmpl-2"))]
    gateway = await start(engine, tools=bench.settings())
    client = gateway.begin(ASK | {"stream": is_stream})
    await engine.has_seen(2)
    await passes(gateway, client.done)
    answer = await client
    assert (answer.status, answer.is_cut) == (200, False)
    assert answer.body.endswith(b"[DONE]\n\n") if is_stream else b"It is there." in answer.body
    assert bench.ran == [("search", {"q": "a"})]
    assert len(engine.calls) == 4
    assert [call.body["messages"] for call in engine.calls[1:]] == [engine.calls[1].body["messages"]] * 3
    await gateway.is_empty()


async def test_an_engine_that_comes_back_within_the_bound_answers(start: Start, engine: FakeEngine) -> None:
    """It refuses connections, as while it is restarted: it is lost, found again by a poll, and asked."""
    gateway = await start(engine, stream=AT_ONCE)
    port = engine.port
    await engine.stop()
    client = gateway.begin(STREAM)
    await rests(gateway)
    for _ in range(30):
        await gateway.clock.passes(1)
    assert not client.done()
    await engine.start(port)
    await passes(gateway, client.done)
    assert b"hello" in (await client).body


async def test_a_deadline_bounds_how_long_it_is_asked_again(start: Start, engine: FakeEngine) -> None:
    engine.plays = [full()] * 99
    gateway = await start(engine, stream=AT_ONCE)
    client = gateway.begin(STREAM, **{"X-Turngate-Deadline-Ms": "5000"})
    await rests(gateway)
    assert await passes(gateway, client.done) <= 20
    assert (await client).is_cut


async def test_a_part_of_a_list_that_is_full_is_asked_again(start: Start, sglang: FakeEngine) -> None:
    async def completes(call: Call) -> Any:
        choices = [{"index": n, "text": "hello", "finish_reason": "stop"} for n in range(len(call.body["prompt"]))]
        about = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "m", "choices": choices}
        return await call.reply(200, about | {"usage": {"prompt_tokens": 1, "completion_tokens": 1}})

    sglang.plays = [no_place(QUEUE_FULL, is_stream=False), *[completes] * 9]
    gateway = await start(sglang, kind="sglang", policy={"slots_per_replica": 16})
    client = gateway.begin({"model": "m", "prompt": ["a", "b", "c"]}, "/v1/completions")
    await passes(gateway, client.done, 0.1)
    answer = await client
    assert answer.status == 200
    assert [choice["index"] for choice in orjson.loads(answer.body)["choices"]] == [0, 1, 2]
