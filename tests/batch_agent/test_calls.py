from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from aiohttp import web

from batch_agent import calls
from batch_agent.calls import ModelCalls, Slots
from batch_agent.connection import Connection
from batch_agent.results import BadAnswer, ConnectError, HTTPStatusError
from tests.batch_agent.scripted import Asked, Scripted, refusal, says
from tests.clock import Clock

BODY = {"model": "m", "messages": [{"role": "user", "content": "go"}]}


class Sleeps:
    """Instead of sleeping: what would have been slept, and how many slots were used meanwhile."""

    def __init__(self) -> None:
        self.pauses_s: list[float] = []
        self.slots = Slots(1)
        self.used: list[int] = []

    async def __call__(self, seconds: float) -> None:
        self.pauses_s.append(seconds)
        self.used.append(self.slots.used)


Make = Callable[..., ModelCalls]


@pytest.fixture
def sleeps() -> Sleeps:
    return Sleeps()


@pytest.fixture
async def make(gateway: Scripted, sleeps: Sleeps) -> AsyncIterator[Make]:
    async with Connection(f"{gateway.url}/v1", wall_clock=lambda: 1_000_000_000.0) as connection:

        def make(max_retries: int = 3, timeout_s: float | None = None) -> ModelCalls:
            rng = random.Random(1)
            return ModelCalls(connection, sleeps.slots, max_retries, timeout_s, sleep=sleeps, rng=rng)

        yield make


def failing(times: int, failure: Callable[[], web.Response]) -> Callable[[Asked], Any]:
    return lambda asked: failure() if asked.number < times else says("done")


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504, 529])
async def test_what_may_pass_is_sent_again(gateway: Scripted, make: Make, status: int) -> None:
    gateway.script = failing(2, lambda: refusal(status, "busy"))
    if status == 504:
        gateway.script = failing(1, lambda: refusal(504, "busy"))
        with pytest.raises(ConnectError, match="ended before"):  # it asked for a stream then, and got none
            await make(max_retries=1).chat(BODY, {})
        return
    assert (await make().chat(BODY, {})).message["content"] == "done"
    assert [asked.headers.get("x-stainless-retry-count") for asked in gateway.asked] == [None, "1", "2"]


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 422])
async def test_what_cannot_succeed_is_sent_once(gateway: Scripted, make: Make, status: int) -> None:
    gateway.script = lambda asked: refusal(status, "no")
    with pytest.raises(HTTPStatusError, match=f"{status}: no"):
        await make().chat(BODY, {})
    assert len(gateway.asked) == 1


async def test_an_empty_account_is_not_asked_again(gateway: Scripted, make: Make) -> None:
    answer = {"error": {"message": "You exceeded your current quota", "code": "insufficient_quota"}}
    gateway.script = lambda asked: web.json_response(answer, status=429)
    with pytest.raises(HTTPStatusError):
        await make().chat(BODY, {})
    assert len(gateway.asked) == 1


async def test_retries_end(gateway: Scripted, make: Make) -> None:
    gateway.script = lambda asked: refusal(503, "down")
    with pytest.raises(HTTPStatusError, match="down") as failed:
        await make(max_retries=2).chat(BODY, {})
    assert failed.value.retryable
    assert len(gateway.asked) == 3


async def test_pauses_grow_up_to_a_bound_and_differ(gateway: Scripted, make: Make, sleeps: Sleeps) -> None:
    gateway.script = failing(8, lambda: refusal(500, "x"))
    await make(max_retries=8).chat(BODY, {})
    for number, pause_s in enumerate(sleeps.pauses_s):
        longest_s = min(calls.LONGEST_PAUSE_S, 2.0**number)
        assert longest_s / 2 <= pause_s <= longest_s
    assert len(set(sleeps.pauses_s)) == 8


@pytest.mark.parametrize(
    ("headers", "retry_after_s"),
    [
        ({"Retry_After": "7"}, 7.0),
        ({"Retry_After_Ms": "1500", "Retry_After": "2"}, 1.5),
        ({"Retry_After": "Sun, 09 Sep 2001 01:46:50 GMT"}, 10.0),
    ],
)
async def test_retry_after_is_obeyed_and_little_more(
    gateway: Scripted, make: Make, sleeps: Sleeps, headers: dict[str, str], retry_after_s: float
) -> None:
    gateway.script = failing(1, lambda: refusal(429, "later", **headers))
    await make().chat(BODY, {})
    assert retry_after_s <= sleeps.pauses_s[0] <= retry_after_s * 1.2


async def test_a_retry_after_that_nobody_can_read_counts_as_none(
    gateway: Scripted, make: Make, sleeps: Sleeps
) -> None:
    gateway.script = failing(1, lambda: refusal(429, "later", Retry_After="soon"))
    await make().chat(BODY, {})
    assert sleeps.pauses_s[0] <= 1.0


async def test_waiting_when_told_to_is_no_failure_until_patience_is_over(
    gateway: Scripted, make: Make, sleeps: Sleeps
) -> None:
    gateway.script = failing(20, lambda: refusal(429, "later", Retry_After="60"))
    assert (await make(max_retries=0).chat(BODY, {})).message["content"] == "done"
    gateway.script = lambda asked: refusal(429, "later", Retry_After="900")
    with pytest.raises(HTTPStatusError):
        await make(max_retries=0).chat(BODY, {})
    assert sum(sleeps.pauses_s[20:]) >= calls.PATIENCE_S


@pytest.mark.parametrize("answer", ["99999999999", "1e300", "inf", "nan"])
async def test_no_pause_is_longer_than_patience(
    gateway: Scripted, make: Make, sleeps: Sleeps, answer: str
) -> None:
    gateway.script = failing(1, lambda: refusal(429, "later", Retry_After_Ms=answer))
    await make().chat(BODY, {})
    assert sleeps.pauses_s[0] <= 1.2 * calls.PATIENCE_S


async def test_a_pause_holds_no_slot(gateway: Scripted, make: Make, sleeps: Sleeps) -> None:
    gateway.script = failing(2, lambda: refusal(503, "x"))
    await make().chat(BODY, {})
    assert sleeps.used == [0, 0]


async def test_a_cut_answer_is_asked_for_again(gateway: Scripted, make: Make) -> None:
    async def cut(asked: Asked) -> Any:
        if asked.number:
            return says("done")
        response = web.Response(status=200, headers={"Content-Length": "1000"})
        response.body = b"{"
        response.force_close()
        return response

    gateway.script = cut
    assert (await make().chat(BODY, {})).message["content"] == "done"


async def test_an_answer_that_says_nothing_for_long_is_lost_unless_it_may_take_for_ever(gateway: Scripted) -> None:
    begun, goes_on = asyncio.Event(), asyncio.Event()

    async def script(asked: Asked) -> Any:
        begun.set()
        await goes_on.wait()
        return says("done")

    gateway.script = script
    url = f"{gateway.url}/v1"
    async with Connection(url, silence_s=0.05) as hasty, Connection(url, silence_s=None) as patient:
        waits = asyncio.ensure_future(ModelCalls(patient, Slots(1)).chat(BODY, {}))
        await begun.wait()
        with pytest.raises(ConnectError):
            await ModelCalls(hasty, Slots(1), 0).chat(BODY, {})
        goes_on.set()
        assert (await waits).message["content"] == "done"


async def test_nobody_at_the_address_says_so() -> None:
    async with Connection("http://127.0.0.1:9/v1") as connection:
        model_calls = ModelCalls(connection, Slots(1), 0)
        with pytest.raises(ConnectError, match=r"127\.0\.0\.1:9"):
            await model_calls.chat(BODY, {})


async def test_a_turn_has_its_own_deadline(gateway: Scripted, make: Make, clock: Clock) -> None:
    async def stall(asked: Asked) -> Any:
        await asyncio.Event().wait()

    gateway.script = stall
    call = asyncio.ensure_future(make(max_retries=1, timeout_s=600).chat(BODY, {}))
    for num_asked in (1, 2):
        await gateway.until(lambda n=num_asked: len(gateway.asked) == n)  # type: ignore[misc]
        clock.advance(600)
    with pytest.raises(TimeoutError, match="timeout_per_turn"):
        await call
    await gateway.until(lambda: gateway.num_running == 0)
    assert len(gateway.asked) == 2


async def test_an_answer_that_is_too_long_for_a_plain_one_is_asked_for_as_a_stream(
    gateway: Scripted, make: Make
) -> None:
    def script(asked: Asked) -> Any:
        if not asked.body.get("stream"):
            return refusal(504, "No answer within 590 s; ask for a stream, which is kept alive.")
        events = [
            '{"choices":[{"index":0,"delta":{"role":"assistant","content":"to"}}]}',
            '{"choices":[{"index":0,"delta":{"content":"ld","reasoning":"why"}}]}',
            '{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}',
            '{"choices":[],"usage":{"prompt_tokens":4,"completion_tokens":3}}',
            "[DONE]",
        ]
        text = ": keep-alive\n\n" + "".join(f"data: {event}\r\n\r\n" for event in events)
        return web.Response(text=text, content_type="text/event-stream")

    gateway.script = script
    model_calls = make()
    for _ in range(2):
        reply = await model_calls.chat(BODY, {})
        assert reply.message == {"role": "assistant", "content": "told", "reasoning": "why"}
        assert (reply.finish_reason, reply.usage.prompt_tokens) == ("stop", 4)
    assert [bool(asked.body.get("stream")) for asked in gateway.asked] == [False, True, True]


async def test_what_is_no_completion_is_an_error_of_its_own(gateway: Scripted, make: Make) -> None:
    gateway.script = lambda asked: web.json_response({"choices": []})
    with pytest.raises(BadAnswer, match="no chat completion"):
        await make().chat(BODY, {})
    gateway.script = lambda asked: web.Response(text="<html>")
    with pytest.raises(BadAnswer, match="no JSON object"):
        await make().chat(BODY, {})


async def test_a_stream_that_tells_of_a_wrong_request_is_not_asked_for_again(
    gateway: Scripted, make: Make
) -> None:
    def script(asked: Asked) -> Any:
        if not asked.body.get("stream"):
            return refusal(504, "too long")
        error = b'{"error": {"message": "too many tokens", "type": "invalid_request_error"}}'
        return web.Response(body=b"data: " + error + b"\n\ndata: [DONE]\n\n", content_type="text/event-stream")

    gateway.script = script
    with pytest.raises(HTTPStatusError, match="too many tokens"):
        await make().chat(BODY, {})
    assert len(gateway.asked) == 2
