"""Memory of a request is free when it ends, however it ends. What refers to itself, as an error does that a frame
of its own traceback holds, is free only once the garbage collector finds it. That looks at old objects very seldom
(`spare_collections`): a body of 8 MB, or a tool list, would stay for hours."""

from __future__ import annotations

import asyncio
import gc
import types
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.path.conftest import Gateway, Start
from tests.path.fake_engine import (
    DONE,
    FakeEngine,
    Play,
    answers,
    chunk,
    completion,
    cuts_after,
    error,
    finish,
    replies,
    stalls_after,
    streams,
)
from tests.path.test_lists import PATH as LIST_PATH
from tests.path.test_lists import SLOTS, asks, plays
from tests.path.toolkit import Bench, Says, says
from tests.policies.test_scheduler_errors import Failing

CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
STREAM = CHAT | {"stream": True}
ROUNDS = 20
"""Loops of the event loop after which all of a request is over."""


@contextmanager
def uncollected() -> Iterator[list[str]]:
    """Names of what the block leaves of the gateway's functions and values, and only the collector would find."""
    found: list[str] = []
    gc.collect()
    gc.disable()
    try:
        yield found
    finally:
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        gc.set_debug(0)
        found += sorted({name for left in gc.garbage if (name := _ours(left)) is not None})
        gc.garbage.clear()
        gc.enable()
        gc.collect()


def _ours(value: object) -> str | None:
    kind = type(value)  # not of what a proxy stands for
    if issubclass(kind, types.FrameType):
        assert isinstance(value, types.FrameType)
        return value.f_code.co_qualname if "/gateway/" in value.f_code.co_filename else None
    return (
        f"{kind.__module__}.{kind.__qualname__}" if kind.__module__.startswith(("gateway.", "policies.")) else None
    )


async def settled(gateway: Gateway) -> None:
    """Returns once the request that was is over, and its connections are closed."""
    await gateway.is_empty()
    for _ in range(ROUNDS):
        await asyncio.sleep(0)


FULL = replies(429, error("Full.", 429))
BROKEN = replies(500, error("Broken.", 500))
ENDINGS: dict[str, tuple[list[Play], dict[str, Any], int]] = {
    "a whole answer": ([replies(200, completion())], CHAT, 200),
    "a stream": ([answers], STREAM, 200),
    "the engine's 400": ([replies(400, error("No.", 400))], CHAT, 400),
    "the engine's 400 to a stream": ([replies(400, error("No.", 400))], STREAM, 400),
    "no JSON": ([], {"model": 7}, 400),
    "no engine left": ([BROKEN, BROKEN], CHAT, 500),
    "no engine left for a stream": ([BROKEN, BROKEN], STREAM, 500),
    "full engines": ([FULL, FULL], STREAM, 429),
    "a reset in mid-stream": ([cuts_after(chunk(content="a"))], STREAM, 200),
    "an error event": ([streams([b'data: {"error":{"message":"no","code":400}}\n\n'])] * 2, STREAM, 400),
    "an answer that is none": ([streams([b"<html>"])] * 2, STREAM, 502),
}


@pytest.mark.parametrize("ending", ENDINGS)
async def test_a_request_leaves_nothing_to_the_collector(start: Start, ending: str) -> None:
    scripts, body, status = ENDINGS[ending]
    engines = [FakeEngine(), FakeEngine()]
    gateway = await start(*engines)
    for warm_up in (True, False):
        for engine in engines:
            engine.plays = list(scripts)
        with uncollected() as found:
            answer = await gateway.ask(body)
            await settled(gateway)
        assert answer.status == status
        assert warm_up or found == []


async def leaves_its_stream(gateway: Gateway, engine: FakeEngine) -> None:
    engine.plays = [stalls_after(chunk(content="a"))]
    asking = gateway.begin(STREAM)
    await engine.has_seen(1)
    asking.cancel()


async def leaves_before_its_answer(gateway: Gateway, engine: FakeEngine) -> None:
    engine.plays = [stalls_after()]
    asking = gateway.begin(CHAT)
    await engine.has_seen(1)
    asking.cancel()


async def leaves_the_queue(gateway: Gateway, engine: FakeEngine) -> None:
    engine.plays = [stalls_after()]
    asking = [gateway.begin(STREAM)]
    await engine.has_seen(1)
    asking.append(gateway.begin(STREAM | {"messages": [{"role": "user", "content": "another"}]}))
    await gateway.until(lambda: gateway.num_waiting == 1)
    for one in reversed(asking):
        one.cancel()
        await asyncio.gather(one, return_exceptions=True)


async def leaves_its_body(gateway: Gateway, engine: FakeEngine) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", gateway.app.port)
    writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n")
    writer.write(b"Content-Length: 3000000\r\n\r\n" + b" " * 1_000_000)
    await writer.drain()
    await gateway.until(lambda: gateway.app.parts.handler.bodies.num_bytes > 0)
    writer.close()
    await writer.wait_closed()
    await gateway.until(lambda: gateway.app.parts.handler.bodies.num_bytes == 0)


async def leaves_its_list(gateway: Gateway, engine: FakeEngine) -> None:
    plays(engine, play=stalls_after())
    asking = gateway.begin(asks(8, stream=True), LIST_PATH)
    await engine.has_seen(1)
    asking.cancel()


async def sends_a_list_to_a_full_engine(gateway: Gateway, engine: FakeEngine) -> None:
    plays(engine, play=replies(400, error("No.", 400)))
    assert (await gateway.ask(asks(8), LIST_PATH)).status == 400


async def sends_a_list_that_is_cut_once(gateway: Gateway, engine: FakeEngine) -> None:
    engine.plays = [cuts_after(), *[replies(400, error("No.", 400))] * 20]
    assert (await gateway.ask(asks(8, stream=True), LIST_PATH)).status in (400, 502)


async def is_refused(gateway: Gateway, engine: FakeEngine) -> None:
    engine.plays = [stalls_after()]
    first = gateway.begin(STREAM)
    await engine.has_seen(1)
    headers = {"X_Turngate_Deadline_Ms": "0"}
    answer = await gateway.ask(STREAM | {"messages": [{"role": "user", "content": "late"}]}, **headers)
    assert answer.status == 429
    first.cancel()


async def meets_a_policy_that_fails(gateway: Gateway, engine: FakeEngine) -> None:
    failing = Failing(("rank",), lambda: True)
    scheduler = gateway.app.parts.gate._scheduler
    before, scheduler._policy = scheduler._policy, failing
    assert (await gateway.ask(CHAT)).status == 500
    scheduler._policy = before


Client = Callable[[Gateway, FakeEngine], Awaitable[None]]
CLIENTS: list[Client] = [
    leaves_its_stream,
    leaves_before_its_answer,
    leaves_the_queue,
    leaves_its_body,
    leaves_its_list,
    sends_a_list_to_a_full_engine,
    sends_a_list_that_is_cut_once,
    is_refused,
    meets_a_policy_that_fails,
]


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.__name__)
async def test_a_client_leaves_nothing_to_the_collector_that(start: Start, client: Client) -> None:
    policy = SLOTS if "list" in client.__name__ else {"slots_per_replica": 1}
    engine = FakeEngine()
    gateway = await start(engine, policy=policy, limits={"attempts": 1})
    for warm_up in (True, False):
        with uncollected() as found:
            engine.calls.clear()
            await client(gateway, engine)
            await asyncio.gather(*gateway.tasks, return_exceptions=True)
            gateway.tasks.clear()
            await settled(gateway)
        assert warm_up or found == []


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_an_answer_with_tools_of_the_gateway_leaves_nothing_to_the_collector(
    start: Start, engine: FakeEngine, stream: bool
) -> None:
    bench = Bench()
    gateway = await start(engine, tools=bench.settings())
    for warm_up in (True, False):
        engine.plays = [says(Says("I look.", (("call_search_1", "search", '{"q": "a"}'),))), says(Says("There."))]
        with uncollected() as found:
            assert (await gateway.ask(CHAT | {"stream": stream})).status == 200
            await settled(gateway)
        assert warm_up or found == []


async def test_a_connection_leaves_nothing_to_the_collector(start: Start, engine: FakeEngine) -> None:
    engine.plays = [streams([chunk(content="hi"), finish(), DONE])] * 2
    gateway = await start(engine)
    for warm_up in (True, False):
        with uncollected() as found:
            assert (await gateway.ask(STREAM, Connection="close")).status == 200
            await settled(gateway)
        assert warm_up or found == []
