"""How lines of batches are asked: what is retried, what stops them, and who goes first."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path

import openai
import orjson
import pytest
from aiohttp import web

from gateway.request import inprocess
from tests.path.batches import Connect, asks, create, over, plays, rows_of
from tests.path.conftest import Start
from tests.path.fake_engine import Call, FakeEngine, completion, error, replies


@pytest.fixture
def kept(tmp_path: Path) -> dict[str, str]:
    return {"directory": str(tmp_path / "batches")}


async def test_a_line_that_the_engine_refuses_goes_to_the_error_file(
    start: Start, engine: FakeEngine, kept: dict[str, str], sdk: Connect
) -> None:
    async def play(call: Call) -> web.StreamResponse:
        if call.body["messages"][0]["content"] == "bad":
            return await call.reply(400, error("Too long.", 400, "invalid_request_error", "messages"))
        return await call.reply(200, completion())

    plays(engine, play)
    client = sdk(await start(engine, batches=kept))
    done = await over(client, await create(client, [asks("good"), asks("bad"), asks("fine")]))
    assert done.status == "completed"
    assert done.request_counts is not None
    assert (done.request_counts.completed, done.request_counts.failed) == (2, 1)
    assert set(await rows_of(client, done.output_file_id)) == {"good", "fine"}
    row = (await rows_of(client, done.error_file_id))["bad"]
    assert (row["response"]["status_code"], row["error"]) == (400, None)
    assert row["response"]["body"]["error"]["message"] == "Too long."


async def test_what_can_succeed_is_asked_again(
    start: Start, engine: FakeEngine, kept: dict[str, str], sdk: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inprocess, "LONGEST_S", 0.01)

    async def full(call: Call) -> web.StreamResponse:
        return await call.reply(503, error("full", 503), **{"Retry-After": "0"})

    async def broken(call: Call) -> None:
        call.cut()

    engine.plays = [full, broken]
    client = sdk(await start(engine, batches=kept))
    done = await over(client, await create(client, [asks("a"), asks("b")]))
    assert done.request_counts is not None
    assert (done.status, done.request_counts.completed, len(engine.calls)) == ("completed", 2, 4)


async def test_cancelling_stops_the_engine_and_keeps_what_is_finished(
    start: Start, engine: FakeEngine, kept: dict[str, str], sdk: Connect
) -> None:
    hangs = asyncio.Event()

    async def play(call: Call) -> web.StreamResponse:
        if call.body["messages"][0]["content"] != "r0":
            await hangs.wait()
        return await call.reply(200, completion())

    plays(engine, play)
    gateway = await start(engine, batches=kept)
    client = sdk(gateway)
    batch = await create(client, [asks(f"r{n}") for n in range(6)])
    await engine.has_seen(2)
    cancelling = await client.batches.cancel(batch.id)
    assert cancelling.status in ("cancelling", "cancelled")
    done = await over(client, cancelling)
    await gateway.is_empty()
    assert (done.status, done.completed_at) == ("cancelled", None)
    assert done.cancelling_at is not None
    assert set(await rows_of(client, done.output_file_id)) == {"r0"}
    errors = await rows_of(client, done.error_file_id)
    assert {row["error"]["code"] for row in errors.values()} == {"batch_cancelled"}
    assert len(errors) == 5
    assert (await client.batches.cancel(batch.id)).status == "cancelled"


async def test_what_is_not_answered_in_its_window_expires(
    start: Start, engine: FakeEngine, kept: dict[str, str], sdk: Connect
) -> None:
    async def hangs(call: Call) -> None:
        await asyncio.Event().wait()

    plays(engine, hangs)
    gateway = await start(engine, batches=kept)
    client = sdk(gateway)
    done = await over(client, await create(client, [asks("a"), asks("b")], completion_window="1s"))
    assert (done.status, done.output_file_id) == ("expired", None)
    assert done.expired_at is not None
    errors = await rows_of(client, done.error_file_id)
    assert {row["error"]["code"] for row in errors.values()} == {"batch_expired"}
    await gateway.is_empty()


async def test_a_restart_goes_on_and_asks_nothing_twice_that_was_answered(
    start: Start, engine: FakeEngine, kept: dict[str, str], sdk: Connect
) -> None:
    holds = asyncio.Event()

    async def play(call: Call) -> web.StreamResponse:
        if not holds.is_set() and call.body["messages"][0]["content"] == "r5":
            await asyncio.Event().wait()
        return await call.reply(200, completion())

    plays(engine, play)
    rows = [asks(f"r{n}") for n in range(12)]
    first = await start(engine, batches=kept)
    client = sdk(first)
    batch = await create(client, rows)
    while (counts := (await client.batches.retrieve(batch.id)).request_counts) and counts.completed < 11:
        await asyncio.sleep(0.02)
    await first.app.stop()
    holds.set()
    client = sdk(await start(engine, batches=kept))
    done = await over(client, batch)
    assert done.status == "completed"
    assert set(await rows_of(client, done.output_file_id)) == {f"r{n}" for n in range(12)}
    asked = [call.body["messages"][0]["content"] for call in engine.calls]
    assert sorted(asked) == sorted([*(f"r{n}" for n in range(12)), "r5"])


async def test_lines_wait_behind_turns_that_came_later(
    start: Start, engine: FakeEngine, kept: dict[str, str], sdk: Connect
) -> None:
    may_end = asyncio.Event()

    async def play(call: Call) -> web.StreamResponse:
        await may_end.wait()
        return await call.reply(200, completion())

    plays(engine, play)
    gateway = await start(engine, batches=kept, policy={"slots_per_replica": 1})
    client = sdk(gateway)
    batch = await create(client, [asks("line 1"), asks("line 2"), asks("line 3")])
    await engine.has_seen(1)
    turn = gateway.begin(asks("", "a turn")["body"])
    await gateway.until(lambda: gateway.num_waiting >= 1)
    may_end.set()
    assert (await turn).status == 200
    assert engine.calls[1].body["messages"][0]["content"] == "a turn"
    assert (await over(client, batch)).status == "completed"


async def test_lines_with_one_prefix_are_asked_side_by_side(
    start: Start, engine: FakeEngine, kept: dict[str, str], sdk: Connect
) -> None:
    client = sdk(await start(engine, batches=kept))
    rows = [asks(f"r{n}", "abc"[n % 3] * 600 + str(n)) for n in range(30)]
    await over(client, await create(client, rows))
    order = [call.body["messages"][0]["content"][0] for call in engine.calls]
    assert sum(a != b for a, b in pairwise(order)) <= 6


async def test_a_deleted_input_serves_its_live_batch_to_the_end(
    start: Start, engine: FakeEngine, kept: dict[str, str], tmp_path: Path, sdk: Connect
) -> None:
    may_end = asyncio.Event()

    async def play(call: Call) -> web.StreamResponse:
        await may_end.wait()
        return await call.reply(200, completion())

    plays(engine, play)
    client = sdk(await start(engine, batches=kept))
    batch = await create(client, [asks(f"r{n}") for n in range(300)])
    await engine.has_seen(1)
    assert (await client.files.delete(batch.input_file_id)).deleted
    with pytest.raises(openai.NotFoundError):
        await client.files.content(batch.input_file_id)
    may_end.set()
    done = await over(client, batch)
    assert len(await rows_of(client, done.output_file_id)) == 300


async def test_an_answer_of_loose_json_is_a_row_of_strict_json(
    start: Start, engine: FakeEngine, kept: dict[str, str], sdk: Connect
) -> None:
    engine.otherwise = replies(200, orjson.dumps(completion("half")).replace(b"half", rb"half \ud800"))
    gateway = await start(engine, batches=kept)
    client = sdk(gateway)
    done = await over(client, await create(client, [asks("r1")]))
    row = (await rows_of(client, done.output_file_id))["r1"]
    assert row["response"]["body"]["choices"][0]["message"]["content"] == "half ?"


async def test_lines_are_gated_turns_however_much_they_look_like_side_requests(
    start: Start, engine: FakeEngine, kept: dict[str, str], sdk: Connect
) -> None:
    gateway = await start(engine, batches=kept, models={"side_model": "m"})
    system = {"role": "system", "content": "Always the same. " * 100}
    rows = [asks(f"r{n}", messages=[system, {"role": "user", "content": str(n)}]) for n in range(8)]
    client = sdk(gateway)
    assert (await over(client, await create(client, rows))).status == "completed"
    async with gateway.get("/metrics") as response:
        page = await response.text()
    assert 'turngate_turns_total{kind="single"' in page
    assert 'kind="side"' not in page
    assert 'turngate_batch_lines_total{endpoint="/v1/chat/completions",result="completed"} 8.0' in page
