"""A client that leaves, in whatever phase, stops the engine and leaves an empty fleet."""

from __future__ import annotations

import asyncio

import pytest

from tests.path.conftest import Gateway, Start
from tests.path.fake_engine import FakeEngine, chunk, completion, finish, stalls_after, streams

ASK = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
STREAM = ASK | {"stream": True}
OTHER = {"model": "m", "messages": [{"role": "user", "content": "another task"}]}
ONE_SLOT = {"name": "fifo", "slots_per_replica": 1}


async def leave(gateway: Gateway, client: asyncio.Task[object]) -> None:
    client.cancel()
    await asyncio.gather(client, return_exceptions=True)


async def outcomes(gateway: Gateway, outcome: str) -> float:
    async with gateway.get("/metrics") as response:
        lines = (await response.text()).splitlines()
    return sum(
        float(line.split()[-1]) for line in lines if f'turngate_outcomes_total{{outcome="{outcome}"' in line
    )


@pytest.mark.parametrize("body", [ASK, STREAM], ids=["plain", "stream"])
async def test_a_client_that_leaves_while_queued_gives_its_place_back(
    start: Start, engine: FakeEngine, body: dict[str, object]
) -> None:
    engine.plays = [stalls_after()]
    gateway = await start(engine, policy=ONE_SLOT)
    running = gateway.begin(OTHER)
    await engine.has_seen(1)
    client = gateway.begin(body)
    await gateway.until(lambda: gateway.num_waiting == 1)
    await leave(gateway, client)
    await gateway.until(lambda: gateway.num_waiting == 0)
    assert gateway.slots_used == 1
    assert len(engine.calls) == 1
    await leave(gateway, running)
    await gateway.is_empty()
    assert await outcomes(gateway, "client_gone") == 2


@pytest.mark.parametrize("body", [ASK, STREAM], ids=["plain", "stream"])
@pytest.mark.parametrize("headers_sent", [False, True], ids=["before its headers", "after its headers"])
async def test_a_client_that_leaves_during_prefill_stops_the_engine(
    start: Start, engine: FakeEngine, body: dict[str, object], headers_sent: bool
) -> None:
    engine.plays = [stalls_after(*([b""] if headers_sent else []))]
    gateway = await start(engine)
    client = gateway.begin(body)
    await engine.has_seen(1)
    assert gateway.slots_used == 1
    await leave(gateway, client)
    await gateway.is_empty()
    assert await outcomes(gateway, "client_gone") == 1


async def test_a_client_that_leaves_in_mid_stream_stops_the_engine(start: Start, engine: FakeEngine) -> None:
    engine.plays = [stalls_after(chunk(content="half"))]
    gateway = await start(engine)
    async with gateway.post(STREAM) as response:
        assert await response.content.readany() == chunk(content="half")
        response.close()
    await gateway.is_empty()
    assert await outcomes(gateway, "client_gone") == 1


async def test_a_client_that_leaves_between_the_parts_of_a_body_stops_the_engine(
    start: Start, engine: FakeEngine
) -> None:
    engine.plays = [stalls_after(str(completion()).encode()[:9])]
    gateway = await start(engine)
    client = gateway.begin(ASK)
    await engine.has_seen(1)
    await leave(gateway, client)
    await gateway.is_empty()


@pytest.mark.parametrize("phase", ["queued", "prefill"])
async def test_a_client_that_leaves_after_an_early_200_gives_all_back(
    start: Start, engine: FakeEngine, phase: str
) -> None:
    engine.plays = [stalls_after(), stalls_after()]
    gateway = await start(engine, policy=ONE_SLOT if phase == "queued" else {}, stream={"silent_queue_s": 0})
    running = gateway.begin(OTHER)
    await engine.has_seen(1)
    async with gateway.post(STREAM) as response:
        assert response.status == 200
        assert b"delta" in await response.content.readany()
        response.close()
    await leave(gateway, running)
    await gateway.is_empty()
    assert await outcomes(gateway, "client_gone") == 2


async def test_a_slot_is_free_as_soon_as_the_engine_is_done(start: Start, engine: FakeEngine) -> None:
    gateway = await start(engine, policy=ONE_SLOT)
    for n in range(5):
        answer = await gateway.ask({"model": "m", "messages": [{"role": "user", "content": f"task {n}"}]})
        assert answer.status == 200
    await gateway.is_empty()


async def test_stopping_lets_running_answers_finish(start: Start, engine: FakeEngine) -> None:
    go_on = asyncio.Event()
    engine.plays = [stalls_after(chunk(content="half"), until=go_on, then=streams([finish()]))]
    gateway = await start(engine, timeouts={"shutdown_grace_s": 30})
    client = gateway.begin(STREAM)
    await engine.has_seen(1)
    stopping = asyncio.create_task(gateway.app.stop())
    await asyncio.sleep(0)
    go_on.set()
    answer = await client
    assert answer.body == chunk(content="half") + finish()
    assert not answer.is_cut
    await stopping


async def test_a_client_that_leaves_with_the_whole_answer_has_been_answered(
    start: Start, engine: FakeEngine
) -> None:
    """Codex closes its connection as soon as it has read `response.completed`."""
    engine.plays = [stalls_after(chunk(content="whole"), finish())] * 2
    gateway = await start(engine)
    session_ids = []
    for _ in range(2):
        async with gateway.post(STREAM) as response:
            session_ids.append(response.headers["X-Turngate-Session"])
            while finish() not in (got := await response.content.readany()):
                assert got
            response.close()
        await gateway.is_empty()
    assert await outcomes(gateway, "answered") == 2
    # A prompt that was answered is not retried: the same again is a sibling.
    assert len(set(session_ids)) == 2
