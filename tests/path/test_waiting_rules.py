"""The waiting rules of the wire, one contract each: what a client hears while it waits, and when it is refused."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest

from policies.types import Hold, Tick
from tests.path.conftest import Answer, Gateway, Start, rest_of
from tests.path.fake_engine import DONE, Call, FakeEngine, Play, chunk, finish, replies, stalls_after, streams

ONE_SLOT = {"name": "fifo", "slots_per_replica": 1}
EVENTS = [chunk(content="hello"), finish(), DONE]


def ask(task: str, chars: int = 0, stream: bool = True) -> dict[str, Any]:
    text = task + " " + task[-1] * chars
    return {"model": "m", "messages": [{"role": "user", "content": text}], "stream": stream}


class Held:
    """Plays that each wait until they are let go."""

    def __init__(self) -> None:
        self.gates: list[asyncio.Event] = []

    def play(self) -> Play:
        gate = asyncio.Event()
        self.gates.append(gate)
        return stalls_after(until=gate, then=_answer)

    def plays(self, count: int) -> list[Play]:
        return [self.play() for _ in range(count)]


async def _answer(call: Call) -> Any:
    if not call.body.get("stream"):
        return await replies(200, {"choices": []})(call)
    return await streams(EVENTS)(call)


def is_keep_alive(event: bytes) -> bool:
    choices = orjson.loads(event.removeprefix(b"data: "))["choices"]
    return bool(choices == [{"index": 0, "delta": {}, "finish_reason": None}])


def told(stream: bytes) -> list[Any]:
    """What its events say, whatever answer they name."""
    found = [event.removeprefix(b"data: ") for event in stream.split(b"\n\n") if event]
    return [orjson.loads(data)["choices"] if data != b"[DONE]" else None for data in found]


async def test_a_queued_stream_hears_nothing_then_200_then_keep_alives_then_its_answer(
    start: Start, engine: FakeEngine
) -> None:
    held = Held()
    engine.plays = held.plays(2)
    gateway = await start(engine, policy=ONE_SLOT)
    gateway.begin(ask("first"))
    await engine.has_seen(1)
    opening = asyncio.create_task(gateway.post(ask("second")).__aenter__())
    await gateway.until(lambda: gateway.num_waiting == 1)
    gateway.clock.advance(85)
    for _ in range(50):
        await asyncio.sleep(0)
    assert not opening.done()
    gateway.clock.advance(5)
    response = await opening
    assert response.status == 200
    assert response.headers["Content-Type"].startswith("text/event-stream")
    assert is_keep_alive(await response.content.readany())
    gateway.clock.advance(25)
    assert is_keep_alive(await response.content.readany())
    held.gates[0].set()  # now it is its turn, and the engine is silent
    await engine.has_seen(2)
    gateway.clock.advance(25)
    assert is_keep_alive(await response.content.readany())
    held.gates[1].set()
    assert told(await response.content.read()) == told(b"".join(EVENTS))
    response.close()


async def test_keep_alives_end_with_the_first_byte_of_the_engine(start: Start, engine: FakeEngine) -> None:
    go_on = asyncio.Event()
    engine.plays = [stalls_after(chunk(content="1"), until=go_on, then=_answer)]
    gateway = await start(engine, stream={"silent_queue_s": 0})
    async with gateway.post(ask("task")) as response:
        received = await response.content.readany()
        while told(received)[-1:] != told(chunk(content="1")):
            received += await response.content.readany()
        for _ in range(4):
            gateway.clock.advance(25)
            for _ in range(50):
                await asyncio.sleep(0)
        go_on.set()
        assert told(await response.content.read()) == told(b"".join(EVENTS))


async def lost(start: Start, engine: FakeEngine) -> tuple[Gateway, Any]:
    """A turn that waits with status 200, and whose only engine has gone."""
    engine.plays = [stalls_after()]
    gateway = await start(engine, policy=ONE_SLOT, stream={"silent_queue_s": 0})
    first = gateway.begin(ask("first"))
    await engine.has_seen(1)
    response = await gateway.post(ask("second"))
    assert is_keep_alive(await response.content.readany())
    gateway.app.parts.monitor.failed(gateway.app.parts.monitor.engines[0])
    await gateway.until(lambda: gateway.app.parts.gate.view().waiting[Hold.REPLICA] == 1)
    first.cancel()
    await engine.is_idle()
    return gateway, response


async def test_a_turn_that_loses_its_last_engine_after_an_early_200_waits_for_one(
    start: Start, engine: FakeEngine
) -> None:
    gateway, response = await lost(start, engine)
    while len(engine.calls) < 2:  # the next poll finds it up
        await gateway.clock.passes(1)
    answer = await rest_of(response)
    response.close()
    assert b"hello" in answer.body
    assert not answer.is_cut


async def test_one_that_finds_none_within_its_bound_gets_an_error_event_and_a_reset(
    start: Start, engine: FakeEngine
) -> None:
    gateway, response = await lost(start, engine)
    rest = asyncio.create_task(rest_of(response))
    await engine.stop()
    for _ in range(28):
        await gateway.clock.passes(5)
    assert gateway.num_waiting == 1
    for _ in range(4):
        await gateway.clock.passes(5)
    answer = await rest
    response.close()
    assert (answer.status, answer.is_cut) == (200, True)
    *_, last = answer.body.split(b"\n\n")[:-1]
    assert orjson.loads(last.removeprefix(b"data: "))["error"]["code"] == "no_replica"


async def test_an_engine_that_fails_after_an_early_200_is_still_replaced_unseen(start: Start) -> None:
    first, second = FakeEngine(), FakeEngine()
    fail = asyncio.Event()
    first.plays = second.plays = [stalls_after(until=fail, then=replies(500, b"boom"))]
    gateway = await start(first, second, stream={"silent_queue_s": 0})
    async with gateway.post(ask("task")) as response:
        assert is_keep_alive(await response.content.readany())
        fail.set()
        rest = await response.content.read()
    assert rest.endswith(DONE)
    assert b"error" not in rest
    assert len(first.calls) == len(second.calls) == 1


async def test_an_answer_that_is_not_streamed_is_never_begun_early(start: Start, engine: FakeEngine) -> None:
    held = Held()
    engine.plays = held.plays(1)
    gateway = await start(engine)
    client = gateway.begin(ask("task", stream=False))
    await engine.has_seen(1)
    gateway.clock.advance(250)
    for _ in range(50):
        await asyncio.sleep(0)
    assert not client.done()
    held.gates[0].set()
    assert (await client).body == b'{"choices":[]}'


@pytest.mark.parametrize(("is_queued", "status"), [(True, 429), (False, 504)])
async def test_an_answer_that_is_not_streamed_comes_before_600_s(
    start: Start, engine: FakeEngine, is_queued: bool, status: int
) -> None:
    engine.plays = [stalls_after(), stalls_after()]
    gateway = await start(engine, policy=ONE_SLOT, timeouts={"idle_s": 9999, "first_byte_s": 9999})
    if is_queued:
        gateway.begin(ask("first"))
        await engine.has_seen(1)
    client = gateway.begin(ask("second", stream=False))
    await (gateway.until(lambda: gateway.num_waiting == 1) if is_queued else engine.has_seen(1))
    gateway.clock.advance(591)
    answer = await client
    assert answer.status == status
    assert ("Retry-After" in answer.headers) == (status == 429)


class Crowd:
    """A cache that one session fills, so that each further one is admitted when another ends: 140 s apart."""

    def __init__(self, gateway: Gateway, engine: FakeEngine) -> None:
        self.gateway, self.engine = gateway, engine
        self.held = Held()
        engine.plays = self.held.plays(12)
        self.clients: dict[str, asyncio.Task[Answer]] = {}

    async def arrive(self, name: str, stream: bool = True) -> asyncio.Task[Answer]:
        num_waiting = self.gateway.num_waiting
        self.clients[name] = client = self.gateway.begin(ask(f"task {name}", chars=4_000, stream=stream))
        await self.gateway.until(lambda: client.done() or self.gateway.num_waiting > num_waiting)
        return client

    async def end_one(self, number: int) -> Call:
        """End the session of this number in the order of service; the next one is served then."""
        self.held.gates[number].set()
        return await self.engine.has_seen(number + 2)


async def crowd(start: Start, silent_queue_s: float = 9_999) -> Crowd:
    """One in service ("e"), one that waits ("f"), and five admissions out of the queue, 140 s apart."""
    engine = FakeEngine(capacity_tokens=1_200)
    gateway = await start(engine, policy={"ceiling": 0.95}, stream={"silent_queue_s": silent_queue_s})
    people = Crowd(gateway, engine)
    gateway.begin(ask("task 0", chars=4_000))
    await engine.has_seen(1)
    for name in "ab":
        await people.arrive(name, stream=False)
    gateway.clock.advance(61)
    await people.end_one(0)
    for number, name in enumerate("cdef", start=1):
        await people.arrive(name, stream=False)
        gateway.clock.advance(140)
        await people.end_one(number)
    return people


def served(call: Call) -> str:
    return str(call.body["messages"][0]["content"].split()[1])


async def test_a_wait_that_would_be_too_long_is_refused_on_arrival_with_retry_after(start: Start) -> None:
    people = await crowd(start)
    await people.arrive("g", stream=False)
    answer = await (await people.arrive("h"))
    assert answer.status == 429
    assert int(answer.headers["Retry-After"]) >= 300
    assert orjson.loads(answer.body)["error"]["type"] == "rate_limit_error"
    assert b"Try again in" in answer.body


async def test_a_refused_session_keeps_its_place(start: Start) -> None:
    people = await crowd(start)
    await people.arrive("g", stream=False)
    assert (await (await people.arrive("h"))).status == 429
    people.gateway.clock.advance(140)
    assert served(await people.end_one(5)) == "f"
    await people.arrive("late", stream=False)
    await people.arrive("h", stream=False)
    people.gateway.clock.advance(140)
    assert served(await people.end_one(6)) == "g"
    people.gateway.clock.advance(61)
    assert served(await people.end_one(7)) == "h"


async def test_a_wait_that_has_become_too_long_is_refused_before_anything_is_sent(start: Start) -> None:
    people = await crowd(start, silent_queue_s=90)
    client = await people.arrive("g")
    assert not client.done()
    people.gateway.clock.advance(90)
    answer = await client
    assert answer.status == 429
    assert int(answer.headers["Retry-After"]) >= 250


async def test_a_session_larger_than_the_cache_runs_alone(start: Start) -> None:
    engine = FakeEngine(capacity_tokens=1_200)
    gateway = await start(engine)
    answer = await gateway.ask(ask("huge", chars=40_000))
    assert answer.status == 200
    assert answer.headers["X-Turngate-Reason"] == "alone"


async def test_a_client_that_names_a_deadline_is_refused_when_it_comes(start: Start, engine: FakeEngine) -> None:
    held = Held()
    engine.plays = held.plays(1)
    gateway = await start(engine, policy=ONE_SLOT)
    gateway.begin(ask("first"))
    await engine.has_seen(1)
    refused = gateway.begin(ask("second"), **{"X-Turngate-Deadline-Ms": "5000"})
    await gateway.until(lambda: gateway.num_waiting == 1)
    gateway.clock.advance(5)
    gateway.app.parts.gate.tell(Tick())
    answer = await refused
    assert (answer.status, answer.headers["Retry-After"]) == (429, "1")
    assert orjson.loads(answer.body)["error"]["code"] == "deadline"
    assert len(engine.calls) == 1
