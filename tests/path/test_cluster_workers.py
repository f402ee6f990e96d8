"""`turngate serve --workers 3`: three processes that a client takes for one."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest
from aiohttp import web
from prometheus_client.parser import text_string_to_metric_families

from tests.deadline import DEADLINE_S
from tests.path.fake_engine import Call, FakeEngine, chunk, completion, replies, stalls_after
from tests.path.killed import GatewayProcess
from tests.path.secured import by, keys

NUM_SESSIONS, NUM_TURNS = 24, 3


@pytest.fixture
async def workers(engine: FakeEngine, tmp_path: Path) -> AsyncIterator[GatewayProcess]:
    await engine.start()
    process = GatewayProcess(engine, tmp_path / "batches", "--workers", "3")
    await process.start()
    yield process
    await process.stop()
    await engine.stop()


@pytest.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    """A connection for each request, so that the kernel spreads them over the workers."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as client:
        yield client


def messages(session: int, turn: int) -> list[Any]:
    said = [{"role": "system", "content": "You are one of many. " * 50}]
    said.append({"role": "user", "content": f"Task {session}"})
    for n in range(turn):
        said.append({"role": "assistant", "content": f"Answer {session}.{n} which is long enough"})
        said.append({"role": "user", "content": f"And then, {n}?"})
    return said


async def ask(client: aiohttp.ClientSession, gateway: GatewayProcess, session: int, turn: int) -> Any:
    body = {"model": "m", "messages": messages(session, turn)}
    async with client.post(gateway.url("/v1/chat/completions"), json=body) as response:
        assert response.status == 200, await response.text()
        return await response.json(), response.headers


async def get(client: aiohttp.ClientSession, gateway: GatewayProcess, path: str) -> Any:
    async with client.get(gateway.url(path)) as response:
        assert response.status == 200, path
        return await response.read()


async def sums(client: aiohttp.ClientSession, gateway: GatewayProcess) -> Counter[str]:
    """Of each metric over all its labels."""
    page = (await get(client, gateway, "/metrics")).decode()
    told: Counter[str] = Counter()
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            told[sample.name] += sample.value  # type: ignore[assignment]
    return told


async def children(gateway: GatewayProcess) -> list[int]:
    text = await asyncio.to_thread(Path(f"/proc/{gateway.pid}/task/{gateway.pid}/children").read_text)
    return [int(pid) for pid in text.split()]


async def play(call: Call) -> web.StreamResponse:
    """Each session's own answer, as its next turn will repeat it."""
    said = call.body["messages"]
    session, turn = said[1]["content"].split()[-1], (len(said) - 2) // 2
    return await call.reply(200, completion(f"Answer {session}.{turn} which is long enough"))


async def test_whichever_worker_is_asked_all_count_and_show_every_request(
    engine: FakeEngine, workers: GatewayProcess, client: aiohttp.ClientSession
) -> None:
    engine.plays = [play] * 1000
    receipts = []
    for turn in range(NUM_TURNS):
        answers = await asyncio.gather(*(ask(client, workers, n, turn) for n in range(NUM_SESSIONS)))
        receipts += [headers["X-Turngate-Receipt"] for _, headers in answers]
    for _ in range(4):  # other workers answer
        told = await sums(client, workers)
        assert told["turngate_outcomes_total"] == told["turngate_turns_total"] == NUM_SESSIONS * NUM_TURNS
        assert told["turngate_wait_seconds_count"] == NUM_SESSIONS * NUM_TURNS
        assert 0 < told["turngate_forwarded_total"] < NUM_SESSIONS * NUM_TURNS
        assert told["turngate_engine_up"] == 1
        rows = orjson.loads(await get(client, workers, "/v1/turngate/sessions"))["sessions"]
        assert [row["turns"] for row in rows] == [NUM_TURNS] * NUM_SESSIONS
    for receipt in receipts:
        told_of = orjson.loads(await get(client, workers, f"/v1/turngate/receipts/{receipt}"))
        assert told_of["id"] == receipt


async def test_a_dead_worker_is_replaced_and_its_sessions_go_on(
    engine: FakeEngine, workers: GatewayProcess, client: aiohttp.ClientSession
) -> None:
    engine.plays = [play] * 1000
    for n in range(NUM_SESSIONS):
        await ask(client, workers, n, 0)
    before = await children(workers)
    os.kill(before[1], signal.SIGKILL)
    for n in range(NUM_SESSIONS):
        await ask_again(client, workers, n, 1)
    async with asyncio.timeout(DEADLINE_S):
        while before[1] in (after := await children(workers)) or len(after) < 3:
            await asyncio.sleep(0.1)
        while not await has_members(client, workers, 3):
            await asyncio.sleep(0.1)


async def ask_again(client: aiohttp.ClientSession, gateway: GatewayProcess, session: int, turn: int) -> None:
    """As every SDK does after a connection that broke: one that was in the dead worker's queue."""
    for _ in range(3):
        try:
            await ask(client, gateway, session, turn)
        except aiohttp.ClientConnectionError:
            continue
        return
    raise AssertionError("the connection broke three times")


async def has_members(client: aiohttp.ClientSession, gateway: GatewayProcess, num: int) -> bool:
    try:
        told = orjson.loads(await get(client, gateway, "/health"))
    except aiohttp.ClientConnectionError:
        return False
    return len(told["cluster"]["members"]) == num


async def test_a_client_that_leaves_stops_the_engine_wherever_its_session_is_at_home(
    engine: FakeEngine, workers: GatewayProcess
) -> None:
    async def endless(call: Call) -> web.StreamResponse | None:
        while True:
            await call.write(chunk(content="more "))
            await asyncio.sleep(0.01)

    engine.plays = [endless] * 8
    for n in range(8):
        async with aiohttp.ClientSession() as leaving:
            body = {"model": "m", "stream": True, "messages": messages(n, 0)}
            async with leaving.post(workers.url("/v1/chat/completions"), json=body) as response:
                await response.content.readany()
    async with asyncio.timeout(DEADLINE_S):
        await engine.is_idle()


async def test_a_signal_to_the_supervisor_lets_answers_finish(
    engine: FakeEngine, workers: GatewayProcess, client: aiohttp.ClientSession
) -> None:
    go_on = asyncio.Event()

    async def slow(call: Call) -> web.StreamResponse:
        await go_on.wait()
        return await play(call)

    engine.plays = [slow] * 6
    asked = [asyncio.create_task(ask(client, workers, n, 0)) for n in range(6)]
    await engine.has_seen(6)
    workers.signal(signal.SIGTERM)
    go_on.set()
    await asyncio.gather(*asked)
    assert await workers.ended() == 0


async def test_nobody_else_gets_in_by_the_private_door(
    engine: FakeEngine, workers: GatewayProcess, client: aiohttp.ClientSession
) -> None:
    listening = await asyncio.to_thread(ports_of, await children(workers))
    private = listening - {workers.port}
    assert len(private) == 3
    for port in private:
        for headers in ({}, {"X-Turngate-Hop": "guess"}, {"X-Turngate-Hop-Admin": "yes"}):
            async with client.get(f"http://127.0.0.1:{port}/cluster/metrics", headers=headers) as response:
                assert response.status == 403


def ports_of(pids: list[int]) -> set[int]:
    """TCP ports on which the processes listen."""
    inodes = set()
    for pid in pids:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # a connection that has ended since
                if found := re.match(r"socket:\[(\d+)\]", os.readlink(link)):
                    inodes.add(found[1])
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return {int(row[1].split(":")[1], 16) for row in rows if row[3] == "0A" and row[9] in inodes}


async def test_the_requests_of_a_key_at_once_are_bounded_over_all_workers(
    engine: FakeEngine, client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    await engine.start()
    limited = orjson.dumps(keys("a", limits={"concurrency": 4})).decode()
    gateway = GatewayProcess(engine, tmp_path / "batches", "--workers", "3", "--set", f"keys={limited}")
    await gateway.start()
    try:
        for _ in range(3):
            assert 4 <= await most_at_once(engine, gateway, client) <= 5
            await until_none_is_held(gateway, client)
    finally:
        await gateway.stop()
        await engine.stop()


async def most_at_once(engine: FakeEngine, gateway: GatewayProcess, client: aiohttp.ClientSession) -> int:
    """Of 60 requests of one key, each of a session of its own: how many are not refused."""
    may_end, num_calls = asyncio.Event(), len(engine.calls)
    engine.plays = [stalls_after(until=may_end, then=replies(200, completion()))] * 60

    async def status() -> int:
        body = {"model": "m", "messages": [{"role": "user", "content": os.urandom(9).hex()}]}
        async with client.post(gateway.url("/v1/chat/completions"), json=body, headers=by("a")) as response:
            await response.read()
            return response.status

    tasks = [asyncio.create_task(status()) for _ in range(60)]
    async with asyncio.timeout(DEADLINE_S):
        while sum(task.done() for task in tasks) + len(engine.calls) - num_calls < 60:
            await asyncio.sleep(0.01)
    may_end.set()
    told = Counter(await asyncio.gather(*tasks))
    assert told.keys() == {200, 429}, told
    return told[200]


async def until_none_is_held(gateway: GatewayProcess, client: aiohttp.ClientSession) -> None:
    """An answer has come a moment before its place is given back."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            async with client.get(gateway.url("/v1/turngate/limits"), headers=by("a")) as response:
                rows = (await response.json())["limits"]
            if [row["used"] for row in rows if row["limit"] == "concurrency"] == [0]:
                return
            await asyncio.sleep(0.01)
