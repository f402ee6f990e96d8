"""How many calls a replica gets at once: as many as its engine states, or as its counts show."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.app import App
from gateway.config.settings import Settings
from tests.path.conftest import Gateway, Start
from tests.path.fake_engine import FakeEngine, answers, stalls_after
from tests.transport.loops import carrier

STREAMS = 500


def asks(number: int) -> dict[str, Any]:
    return {"model": "m", "stream": True, "messages": [{"role": "user", "content": f"task {number}"}]}


async def polled(gateway: Gateway, times: int = 1) -> None:
    for _ in range(times):
        for watch in gateway.app.parts.monitor._pollers.values():
            await watch.poll()


def slots(gateway: Gateway) -> int | None:
    [replica] = gateway.app.parts.gate.view().replicas
    return replica.slots


@pytest.mark.parametrize("kind", ["vllm", "openai"])
async def test_none_of_500_streams_waits_at_the_gate_of_an_engine_that_states_no_slots(
    start: Start, engine: FakeEngine, kind: str
) -> None:
    go_on = asyncio.Event()
    engine.plays = [stalls_after(then=answers, until=go_on)] * STREAMS
    gateway = await start(engine, kind=kind)
    tasks = [gateway.begin(asks(number)) for number in range(STREAMS)]
    await engine.has_seen(STREAMS)
    assert gateway.num_waiting == 0
    assert gateway.slots_used == STREAMS
    await polled(gateway, 5)
    assert slots(gateway) is None
    go_on.set()
    assert {answer.status for answer in await asyncio.gather(*tasks)} == {200}


async def test_an_engine_that_shows_a_queue_gets_no_more_than_it_runs_until_the_queue_is_gone(
    start: Start, engine: FakeEngine
) -> None:
    go_on = asyncio.Event()
    engine.plays = [stalls_after(then=answers, until=go_on)] * 100
    engine.num_slots = 4
    gateway = await start(engine, kind="vllm")
    first = [gateway.begin(asks(number)) for number in range(10)]
    await engine.has_seen(10)
    await polled(gateway, 3)
    assert slots(gateway) == 4
    late = [gateway.begin(asks(number)) for number in range(10, 20)]
    await gateway.until(lambda: gateway.num_waiting == 10)
    engine.num_slots = 100
    await polled(gateway)
    assert slots(gateway) == 10
    await polled(gateway, 4)
    await engine.has_seen(20)
    assert gateway.num_waiting == 0
    go_on.set()
    assert {answer.status for answer in await asyncio.gather(*first, *late)} == {200}


async def test_the_slots_of_the_embedded_engine_reach_the_gate() -> None:
    settings = {"listen": {"port": 0}, "transport": carrier(), "engines": ["embedded"], "embedded": {"slots": 7}}
    app = App(Settings.model_validate(settings))
    try:
        await app.start()
        assert [replica.slots for replica in app.parts.gate.view().replicas] == [7]
    finally:
        await app.stop()
