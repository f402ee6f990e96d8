"""A gateway that stops: begun answers are finished, everybody else is sent away at once with something to do."""

from __future__ import annotations

import asyncio
import signal
import sys
from typing import Any

import aiohttp
import orjson
import pytest

from tests.deadline import DEADLINE_S
from tests.path.conftest import Gateway, Start, rest_of
from tests.path.fake_engine import DONE, FakeEngine, chunk, finish, stalls_after, streams
from tests.path.faults import GATEWAY, counted, fault, outcomes
from tests.path.test_cancellation import ASK, ONE_SLOT, OTHER, STREAM

DIALECTS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
    "/v1/completions": {"prompt": "hi"},
    "/v1/messages": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 5},
    "/v1/responses": {"input": "hi"},
}


async def stopping_with_one_running(start: Start, engine: FakeEngine) -> tuple[Gateway, asyncio.Event]:
    """Its only slot is taken by an answer that has begun, which ends when the event is set."""
    go_on = asyncio.Event()
    engine.plays = [stalls_after(chunk(content="half"), until=go_on, then=streams([finish(), DONE]))]
    gateway = await start(engine, policy=ONE_SLOT, timeouts={"shutdown_grace_s": 30})
    gateway.begin(OTHER | {"stream": True})
    await engine.has_seen(1)
    return gateway, go_on


@fault(GATEWAY, "stops: answers that have begun", "are finished within the grace time", outcomes("answered"))
async def test_an_answer_that_has_begun_is_finished(start: Start, engine: FakeEngine) -> None:
    gateway, go_on = await stopping_with_one_running(start, engine)
    stopping = asyncio.create_task(gateway.app.stop())
    await asyncio.sleep(0)
    go_on.set()
    answer = await gateway.tasks[0]
    assert answer.body == chunk(content="half") + finish() + DONE
    assert not answer.is_cut
    await stopping


@fault(
    GATEWAY,
    "stops: turns that wait",
    "503 with `Retry-After` at once, in their dialect",
    outcomes("rejected_stopping"),
)
@pytest.mark.parametrize("path", DIALECTS)
async def test_who_waits_is_sent_away_at_once_in_its_dialect(start: Start, engine: FakeEngine, path: str) -> None:
    gateway, go_on = await stopping_with_one_running(start, engine)
    waiting = gateway.begin({"model": "m"} | DIALECTS[path], path)
    await gateway.until(lambda: gateway.num_waiting == 1)
    stopping = asyncio.create_task(gateway.app.stop())
    answer = await waiting
    assert answer.status == 503
    assert answer.headers["Retry-After"] == "3"  # after the sessions whose cache is warm
    assert (orjson.loads(answer.body).get("type") == "error") == (path == "/v1/messages")
    assert await counted(gateway, outcomes("rejected_stopping")) == 1
    go_on.set()
    await stopping


@fault(
    GATEWAY, "stops: a waiting turn has status 200", "an error event, then a reset", outcomes("rejected_stopping")
)
async def test_who_waits_with_keep_alives_gets_an_error_event(start: Start, engine: FakeEngine) -> None:
    go_on = asyncio.Event()
    engine.plays = [stalls_after(chunk(content="half"), until=go_on, then=streams([finish(), DONE]))]
    rules = {"silent_queue_s": 0, "keep_alive_s": 3600}
    gateway = await start(engine, policy=ONE_SLOT, stream=rules, timeouts={"shutdown_grace_s": 30})
    gateway.begin(OTHER | {"stream": True})
    await engine.has_seen(1)
    async with gateway.post(STREAM) as response:
        assert response.status == 200
        stopping = asyncio.create_task(gateway.app.stop())
        answer = await rest_of(response)
    assert answer.is_cut
    assert b'"code":"stopping"' in answer.body
    go_on.set()
    await stopping


@fault(GATEWAY, "stops: new requests", "503; /health says draining", outcomes("rejected_stopping"))
async def test_a_gateway_that_stops_says_so_and_takes_nothing_new(start: Start, engine: FakeEngine) -> None:
    gateway, go_on = await stopping_with_one_running(start, engine)
    stopping = asyncio.create_task(gateway.app.stop())
    await asyncio.sleep(0)
    assert (await gateway.ask(ASK)).status == 503
    async with gateway.get("/health") as response:
        assert (response.status, (await response.json())["status"]) == (200, "draining")
    async with gateway.get("/ready") as response:
        assert response.status == 503
    go_on.set()
    await stopping
    with pytest.raises(aiohttp.ClientConnectionError):
        await gateway.ask(ASK)


async def test_an_answer_that_outlasts_the_grace_is_cut(start: Start, engine: FakeEngine) -> None:
    engine.plays = [stalls_after(chunk(content="half"))]
    gateway = await start(engine, timeouts={"shutdown_grace_s": 0.05})
    async with gateway.post(STREAM) as response:
        assert await response.content.readany() == chunk(content="half")
        await gateway.app.stop()
        assert (await rest_of(response)).is_cut


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_the_first_signal_drains_and_the_second_ends_at_once(
    engine: FakeEngine, number: signal.Signals
) -> None:
    await engine.start()
    engine.plays = [stalls_after(chunk(content="half"))]
    command = [
        "serve",
        "--engine",
        f"vllm://127.0.0.1:{engine.port}",
        "--port",
        "0",
        "--set",
        "probing.hints=false",
    ]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "gateway", *command, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    async with asyncio.timeout(DEADLINE_S), aiohttp.ClientSession() as client:
        while b"OPENAI_BASE_URL=" not in (line := await process.stdout.readline()):
            assert line
        base = line.decode().partition("OPENAI_BASE_URL=")[2].strip()
        async with client.post(f"{base}/chat/completions", json=STREAM) as response:
            assert await response.content.readany() == chunk(content="half")
            process.send_signal(number)
            health = base.removesuffix("/v1") + "/health"
            while True:
                async with client.get(health) as told:
                    if (await told.json())["status"] == "draining":
                        break
            process.send_signal(number)
            assert await process.wait() != 0
    await engine.stop()
