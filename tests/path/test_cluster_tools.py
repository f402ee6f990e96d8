"""Tool calls in flight at two gateways, one of which is killed: what is started again for whoever asks again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import orjson
import pytest
from aiohttp import web

from tests.deadline import DEADLINE_S
from tests.path.counted_tools import ToolServer
from tests.path.fake_engine import Call
from tests.path.fleet import Fleet
from tests.path.fleet import start as start
from tests.path.fleet import valkey_server as valkey_server
from tests.path.toolkit import Says, says

NUM_SESSIONS = 32


@pytest.fixture
async def tools() -> AsyncIterator[ToolServer]:
    server = ToolServer()
    await server.start()
    yield server
    await server.stop()


def messages(session: int) -> list[Any]:
    return [
        {"role": "system", "content": f"You are agent number {session}. " + "Work with care. " * 100},
        {"role": "user", "content": f"Task {session}"},
    ]


def calls_of(session: int) -> list[str]:
    """What its model calls, in turn."""
    return ["order", "fetch"] if session % 2 else ["fetch", "order"]


async def play(call: Call) -> web.StreamResponse | None:
    """One call of each tool, whatever comes of them, then the end."""
    session = session_of(call)
    number = len(results(call))
    if number == 2:
        return await says(Says("All is done.", id="chatcmpl-3"))(call)
    called = (f"call_{session}_{number}", calls_of(session)[number], orjson.dumps({"session": session}).decode())
    return await says(Says("Now.", (called,), id=f"chatcmpl-{number}"))(call)


def session_of(call: Call) -> int:
    return int(call.body["messages"][1]["content"].split()[1])


def results(call: Call) -> list[str]:
    return [message["content"] for message in call.body["messages"] if message["role"] == "tool"]


async def test_a_gateway_killed_in_mid_call_has_none_started_twice_that_must_run_once(
    start: Callable[..., Awaitable[Fleet]], tools: ToolServer
) -> None:
    fleet = await start(play, "--set", f"tools.use={orjson.dumps([tools.settings()]).decode()}")
    for gateway in fleet.gateways:
        await fleet.until_members(gateway, 2)
    held_at = {n: calls_of(n)[n // 2 % 2] for n in range(NUM_SESSIONS)}
    tools.held = {(tool, session) for session, tool in held_at.items()}
    asked = [asyncio.create_task(fleet.turn(n, 0, messages(n))) for n in range(NUM_SESSIONS)]
    async with asyncio.timeout(DEADLINE_S):
        while not tools.held <= tools.starts.keys():
            await asyncio.sleep(0.01)

    await fleet.gateways[0].kill()
    tools.go_on.set()
    await asyncio.gather(*asked)

    assert 0 < len(fleet.broken) < NUM_SESSIONS, "only those that the dead one carried"
    orders = {session: tools.starts["order", session] for session in range(NUM_SESSIONS)}
    assert set(orders.values()) == {1}
    assert any(tools.starts["fetch", session] == 2 for session in range(NUM_SESSIONS)), "some were interrupted"
    assert max(tools.starts.values()) <= 2
    calls = [call for engine in fleet.engines for call in engine.calls]
    told = {session_of(call): found for call in calls if len(found := results(call)) == 2}
    assert told.keys() == orders.keys()
    for session, (first, second) in told.items():
        order = first if calls_of(session)[0] == "order" else second
        was_interrupted = held_at[session] == "order"
        assert order == f"order {session} is done" or (was_interrupted and "unknown" in order)
    assert any("unknown" in "".join(found) for found in told.values())
