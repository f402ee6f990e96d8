"""When things happen around our tools: the slot, early starts, keep-alives, failures, and clients that leave."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest

from tests.path.conftest import Clock, Gateway, Start, rest_of
from tests.path.fake_engine import FakeEngine, Play, cuts_after, replies, stalls_after, streams
from tests.path.test_cancellation import leave, outcomes
from tests.path.toolkit import Bench, Says, deltas, says

ASK: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "find it"}]}
STREAM = ASK | {"stream": True}
OTHER = {"model": "m", "messages": [{"role": "user", "content": "another task"}]}
ONE_SLOT = {"name": "fifo", "slots_per_replica": 1}
FIRST = Says("I look.", (("call_search_1", "search", '{"q": "a"}'),))
EDIT = {"type": "function", "function": {"name": "edit", "parameters": {"type": "object"}}}
BOTH = Says("Both.", (("call_search_1", "search", '{"q": "a"}'), ("call_edit_01", "edit", "{}")))
LAST = Says("It is there.", id="chatcmpl-2")


@pytest.fixture
def bench() -> Bench:
    bench = Bench()
    bench.holds.clear()
    return bench


@pytest.mark.parametrize("body", [ASK, STREAM], ids=["plain", "stream"])
async def test_no_slot_is_held_while_tools_run(
    start: Start, engine: FakeEngine, bench: Bench, body: dict[str, Any]
) -> None:
    engine.plays = [says(FIRST)]
    gateway = await start(engine, tools=bench.settings(), policy=ONE_SLOT)
    waiting = gateway.begin(body)
    await bench.started.wait()
    await gateway.is_empty()
    assert (await gateway.ask(OTHER)).status == 200
    assert not waiting.done()
    bench.holds.set()
    assert (await waiting).status == 200


async def test_a_tool_starts_while_the_model_still_writes(start: Start, engine: FakeEngine, bench: Bench) -> None:
    events, go_on = FIRST.events(), asyncio.Event()
    engine.plays = [stalls_after(*events[:-1], until=go_on, then=streams(events[-1:])), says(LAST)]
    gateway = await start(engine, tools=bench.settings())
    client = gateway.begin(STREAM)
    await bench.started.wait()
    assert engine.num_running == 1
    bench.holds.set()
    go_on.set()
    assert (await client).status == 200


async def test_what_changes_the_world_waits_for_the_end_of_the_turn(
    start: Start, engine: FakeEngine, bench: Bench
) -> None:
    turn = Says(calls=(("call_write_01", "write", "{}"), ("call_search_1", "search", "{}")))
    engine.plays = [stalls_after(*turn.events()[:-1])]
    gateway = await start(engine, tools=bench.settings())
    client = gateway.begin(STREAM)
    await bench.started.wait()
    assert [name for name, _ in bench.ran] == ["search"]
    await leave(gateway, client)


async def test_calls_of_one_turn_run_side_by_side(start: Start, engine: FakeEngine, bench: Bench) -> None:
    calls = tuple((f"call_search_{n}", "search", f'{{"q": "{n}"}}') for n in range(3))
    engine.plays = [says(Says(calls=calls)), says(LAST)]
    gateway = await start(engine, tools=bench.settings())
    client = gateway.begin(STREAM)
    await gateway.until(lambda: bench.num_running == 3)
    bench.holds.set()
    await client
    results = [m for m in engine.calls[1].body["messages"] if m["role"] == "tool"]
    assert [m["content"] for m in results] == [f"search found {n}" for n in range(3)]


async def test_a_client_is_kept_alive_while_tools_run(
    start: Start, engine: FakeEngine, bench: Bench, clock: Clock
) -> None:
    engine.plays = [says(FIRST), says(LAST)]
    gateway = await start(engine, tools=bench.settings())
    async with gateway.post(STREAM) as response:
        await bench.started.wait()
        await gateway.is_empty()
        got = b""
        while b"ok." not in got:
            got += await response.content.readany()
        clock.advance(26)
        alive = deltas(await response.content.readany())
        assert alive[0]["choices"] == [{"index": 0, "delta": {}, "finish_reason": None}]
        bench.holds.set()
        rest = await rest_of(response)
    ids = {chunk["id"] for chunk in [*deltas(got), *alive, *deltas(rest.body)]}
    assert ids == {"chatcmpl-1"}


async def test_after_an_early_200_the_id_is_the_keep_alive_s(
    start: Start, engine: FakeEngine, bench: Bench
) -> None:
    bench.holds.set()
    go_on = asyncio.Event()
    engine.plays = [stalls_after(until=go_on, then=says(FIRST)), says(LAST)]
    gateway = await start(engine, tools=bench.settings(), stream={"silent_queue_s": 0})
    async with gateway.post(STREAM) as response:
        first = await response.content.readany()
        go_on.set()
        rest = await rest_of(response)
    assert len({chunk["id"] for chunk in deltas(first + rest.body)}) == 1


@pytest.mark.parametrize("round_", [1, 2])
async def test_a_round_that_fails_before_its_first_byte_goes_to_another_replica(
    start: Start, bench: Bench, round_: int
) -> None:
    bench.holds.set()
    failing: list[Play] = [says(FIRST), replies(503, b"{}")][-round_:]
    engines = [FakeEngine(plays=list(failing)), FakeEngine(plays=list(failing))]
    if round_ == 1:
        engines[0].plays = [replies(503, b"{}"), says(LAST)]
        engines[1].plays = [says(FIRST), says(LAST)]
    gateway = await start(*engines, tools=bench.settings())
    answer = await gateway.ask(STREAM)
    assert answer.status == 200
    assert answer.body.endswith(b"data: [DONE]\n\n")
    await gateway.is_empty()


@pytest.mark.parametrize("round_", [1, 2])
async def test_a_stream_that_breaks_off_is_reset_and_its_calls_end(
    start: Start, engine: FakeEngine, bench: Bench, round_: int
) -> None:
    if round_ == 2:
        bench.holds.set()
    cut = cuts_after(*FIRST.events()[:-1])
    engine.plays = [cut] if round_ == 1 else [says(FIRST), cut]
    gateway = await start(engine, tools=bench.settings())
    answer = await gateway.ask(STREAM)
    assert answer.is_cut
    await gateway.is_empty()
    await gateway.until(lambda: bench.num_running == 0)
    assert await outcomes(gateway, "engine_cut") == 1


async def test_with_no_replica_left_in_a_later_round_the_stream_ends_in_an_error(
    start: Start, engine: FakeEngine, bench: Bench
) -> None:
    bench.holds.set()
    engine.plays = [says(FIRST), replies(400, {"error": {"message": "too long", "type": "x", "code": 400}})]
    gateway = await start(engine, tools=bench.settings())
    answer = await gateway.ask(STREAM)
    assert b'"error":' in answer.body
    assert answer.is_cut
    await gateway.is_empty()


def phases() -> dict[str, tuple[list[Play], str]]:
    """Plays of the engine, and what has come when the client leaves."""
    return {
        "in the first round, with a call running": ([stalls_after(*FIRST.events()[:-1])], "tool"),
        "while tools run": ([says(FIRST)], "tool"),
        "while tools of a mixed turn run": ([says(BOTH)], "tool"),
        "before the second round's first byte": ([says(FIRST), stalls_after()], "second"),
        "in the second round": ([says(FIRST), stalls_after(*LAST.events()[:2])], "second"),
    }


@pytest.mark.parametrize("phase", phases())
@pytest.mark.parametrize("body", [ASK, STREAM], ids=["plain", "stream"])
async def test_a_client_that_leaves_leaves_no_slot_no_task_and_no_call(
    start: Start, engine: FakeEngine, bench: Bench, phase: str, body: dict[str, Any]
) -> None:
    engine.plays, until = phases()[phase]
    if not body.get("stream") and "first round" in phase:
        pytest.skip("a body comes whole")
    gateway = await start(engine, tools=bench.settings())
    before = asyncio.all_tasks()
    client = gateway.begin(body | {"tools": [EDIT]})
    await bench.started.wait()
    if until == "second":
        bench.holds.set()
        await engine.has_seen(2)
    await leave(gateway, client)
    await gateway.is_empty()
    await gateway.until(lambda: bench.num_running == 0)
    await gateway.until(lambda: not ours(before))
    assert await outcomes(gateway, "client_gone") == 1


def ours(before: set[asyncio.Task[Any]]) -> list[str]:
    """Tasks of the loop or of a tool that were not there before."""
    names = [repr(task.get_coro()) for task in asyncio.all_tasks() - before if not task.done()]
    return [name for name in names if "tool_runtime" in name or "ToolLoop" in name]


async def test_a_client_that_leaves_while_its_second_round_is_queued_gives_its_place_back(
    start: Start, engine: FakeEngine, bench: Bench
) -> None:
    engine.plays = [says(FIRST), stalls_after()]
    gateway = await start(engine, tools=bench.settings(), policy=ONE_SLOT)
    client = gateway.begin(STREAM)
    await bench.started.wait()
    await gateway.is_empty()
    running = gateway.begin(OTHER)
    await engine.has_seen(2)
    bench.holds.set()
    await gateway.until(lambda: gateway.num_waiting == 1)
    await leave(gateway, client)
    await gateway.until(lambda: gateway.num_waiting == 0)
    await leave(gateway, running)
    await gateway.is_empty()


async def test_two_agents_that_ask_the_same_share_one_execution(
    start: Start, engine: FakeEngine, bench: Bench
) -> None:
    engine.plays = [says(FIRST), says(FIRST)]
    gateway = await start(engine, tools=bench.settings())
    clients = [gateway.begin(ASK | {"messages": [{"role": "user", "content": who}]}) for who in "ab"]
    await engine.has_seen(2)
    await gateway.is_empty()
    bench.holds.set()
    for client in clients:
        assert orjson.loads((await client).body)["choices"][0]["message"]["content"].startswith("I look.")
    assert len(bench.ran) == 1
    page = await metrics(gateway)
    assert 'turngate_tool_requested_total{tool="search"} 2.0' in page
    assert 'turngate_tool_executed_total{tool="search"} 1.0' in page
    assert 'turngate_tool_coalesced_total{tool="search"} 1.0' in page


async def metrics(gateway: Gateway) -> str:
    async with gateway.get("/metrics") as response:
        return str(await response.text())
