"""A session has one lifetime: once it is over, nothing in a running gateway holds its id."""

from __future__ import annotations

import gc
from collections import deque
from types import CoroutineType, FrameType, FunctionType, GeneratorType, MethodType, ModuleType
from typing import Any

from gateway.app import App
from gateway.sessions.session_table import ENDED_KEPT_S
from policies.turns import MOST_S
from tests.path.conftest import Gateway, Start
from tests.path.fake_engine import FakeEngine, replies
from tests.path.toolkit import Bench, Says, says

TTL_S = 3_600.0
CACHED = {"prompt_tokens_details": {"cached_tokens": 8}}
USAGE = {"usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15} | CACHED}
PASSED_OVER = (ModuleType, type, CoroutineType, GeneratorType, FrameType)
FOREIGN = ("asyncio", "_asyncio", "uvloop", "aiohttp", "logging", "prometheus_client", "zmq", "tests", "_pytest")
"""Packages whose objects lead out of the gateway, to the loop and the test that runs in it."""


def inside(one: Any) -> list[Any]:
    """What an object refers to, without the way out of the gateway."""
    if isinstance(one, PASSED_OVER) or type(one).__module__.partition(".")[0] in FOREIGN:
        return []
    if isinstance(one, FunctionType):
        return [cell.cell_contents for cell in one.__closure__ or ()]
    if isinstance(one, MethodType):
        return [one.__self__]
    return gc.get_referents(one)


def holders(app: App, session_id: str) -> list[str]:
    """The ways from the gateway to each text that holds the id."""
    gc.collect()
    seen, found = {id(app)}, []
    queue = deque([(app, "app")])
    while queue:
        one, way = queue.popleft()
        for other in inside(one):
            if isinstance(other, str | bytes):
                if session_id in (other if isinstance(other, str) else other.decode("latin-1")):
                    found.append(f"{way} > {type(one).__name__}")
            elif id(other) not in seen:
                seen.add(id(other))
                queue.append((other, f"{way} > {type(one).__name__}"))
    return found


def num_objects(app: App) -> int:
    """Texts and numbers are left out: lists of statistics hold a fixed number of them."""
    seen = {id(app)}
    queue: deque[Any] = deque([app])
    while queue:
        for other in inside(queue.popleft()):
            if not isinstance(other, str | bytes | int | float) and id(other) not in seen:
                seen.add(id(other))
                queue.append(other)
    return len(seen)


def chat(*said: str) -> dict[str, Any]:
    roles = ("user", "assistant")
    messages = [{"role": roles[number % 2], "content": text} for number, text in enumerate(said)]
    return {"model": "m", "messages": [{"role": "system", "content": "You help."}, *messages]}


async def gateway_with_all_parts(start: Start, engine: FakeEngine, bench: Bench, **identity: Any) -> Gateway:
    """Tools of its own, and a table of few sessions; no receipts, which have a time of their own."""
    sections = {"identity": {"session_ttl_s": TTL_S, **identity}, "receipts": {"keep_s": 0}}
    probing = {"hints": False, "interval_s": 1e6}  # a poll would meet the leaps of time
    return await start(engine, tools=bench.settings(), probing=probing, **sections)


async def serve_tools(gateway: Gateway, engine: FakeEngine, name: str, **headers: str) -> str:
    """A turn in which a tool of the gateway is called; the id of its session."""
    call = ("call_search_1", "search", '{"q":"a"}')
    answer_of_engine = Says(f"It is there, {name} found it.").body() | USAGE
    engine.plays += [says(Says("I look.", (call,))), replies(200, answer_of_engine)]
    answer = await gateway.ask(chat(f"Find {name}."), X_Turngate_Session=name, **headers)
    assert answer.status == 200
    return str(answer.headers["X-Turngate-Session"])


async def turn_of(gateway: Gateway, engine: FakeEngine, name: str, **headers: str) -> str:
    session_id = await serve_tools(gateway, engine, name, **headers)
    assert len(holders(gateway.app, session_id)) > 8, "the walk has to find what is there"
    return session_id


async def next_request(gateway: Gateway, engine: FakeEngine, name: str = "another") -> None:
    assert (await gateway.ask(chat("Hello."), X_Turngate_Session=name)).status == 200


async def test_a_session_that_was_idle_for_long_is_forgotten_everywhere(start: Start, engine: FakeEngine) -> None:
    gateway = await gateway_with_all_parts(start, engine, Bench())
    session_id = await turn_of(gateway, engine, "one")
    await gateway.clock.passes(TTL_S)
    await next_request(gateway, engine)
    assert holders(gateway.app, session_id) == []


async def test_a_session_that_its_client_ended_is_forgotten_everywhere(start: Start, engine: FakeEngine) -> None:
    gateway = await gateway_with_all_parts(start, engine, Bench())
    session_id = await turn_of(gateway, engine, "one", X_Turngate_Final="1")
    await gateway.clock.passes(ENDED_KEPT_S)
    await next_request(gateway, engine)
    assert holders(gateway.app, session_id) == []


async def test_a_full_table_forgets_its_oldest_session_everywhere(start: Start, engine: FakeEngine) -> None:
    gateway = await gateway_with_all_parts(start, engine, Bench(), max_sessions=2)
    session_id = await turn_of(gateway, engine, "one")
    await gateway.clock.passes(4 * MOST_S)  # timers of leases hold an id until they fire
    for name in ("two", "three"):
        await next_request(gateway, engine, name)
    assert holders(gateway.app, session_id) == []


async def test_the_memory_of_forgotten_sessions_returns(start: Start, engine: FakeEngine) -> None:
    gateway = await gateway_with_all_parts(start, engine, Bench(), max_sessions=2)
    sizes = []
    for number in range(1_000):
        await serve_tools(gateway, engine, f"session {number}")
        if number % 20 == 19:
            sizes.append(num_objects(gateway.app))
    # The statistics that are kept for all sessions are full after 600 of them.
    assert max(sizes[40:]) - max(sizes[30:40]) < 200, "less than one object for each of the last 200 sessions"


async def test_a_session_that_was_forgotten_may_come_back(start: Start, engine: FakeEngine) -> None:
    gateway = await gateway_with_all_parts(start, engine, Bench())
    await turn_of(gateway, engine, "one")
    await gateway.clock.passes(TTL_S)
    await next_request(gateway, engine)
    await turn_of(gateway, engine, "one")
