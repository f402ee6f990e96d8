"""A gateway without memory, in front of an engine that still has the caches of its sessions."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from policies.scheduler import Scheduler
from policies.types import PoolLessons
from tests.deadline import DEADLINE_S
from tests.path.conftest import Start
from tests.path.fake_engine import FakeEngine

TOOLS = [{"type": "function", "function": {"name": "ls", "parameters": {}}}]


def call(task: str, num_turns: int) -> dict[str, Any]:
    """The body of an agent's call, after so many turns."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": f"{task} " * 600}]
    for number in range(num_turns):
        asked = {"id": f"call_{task}_{number}", "type": "function", "function": {"name": "ls", "arguments": "{}"}}
        messages.append({"role": "assistant", "content": None, "tool_calls": [asked]})
        messages.append({"role": "tool", "tool_call_id": asked["id"], "content": f"file {number} " * 100})
    return {"model": "m", "messages": messages, "tools": TOOLS}


async def test_a_session_comes_back_to_a_gateway_that_was_restarted_as_one_in_mid_run(
    start: Start, engine: FakeEngine
) -> None:
    before = await start(engine)
    for num_turns in range(3):
        assert (await before.ask(call("fix", num_turns))).status == 200
    after = await start(engine)
    told = {}
    for name, body in (("back", call("fix", 3)), ("new", call("other", 0)), ("next", call("fix", 4))):
        answer = await after.ask(body)
        async with after.get(f"/v1/turngate/receipts/{answer.headers['X-Turngate-Receipt']}") as response:
            told[name] = await response.json()
    assert told["back"]["session"] == told["next"]["session"] != told["new"]["session"]
    assert told["new"]["expected_cached_tokens"] == 0 < told["back"]["expected_cached_tokens"]
    scheduler = after.app.parts.gate._scheduler
    assert scheduler._fleet.sessions[told["back"]["session"]].num_begun == 5


async def test_a_gateway_begins_with_what_the_last_one_learned(
    start: Start, engine: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "the same at each start")
    kept = {"learned_file": str(tmp_path / "learned"), "identity": {"secret": "env:SECRET"}}
    before = await start(engine, **kept)
    for num_turns in range(3):
        assert (await before.ask(call("fix", num_turns))).status == 200
    await before.app.stop()
    after = await start(engine, **kept)
    old, new = (each.app.parts.gate._scheduler for each in (before, after))
    assert lasting(new) == lasting(old) != []
    assert list(new.family_lessons()) == list(old.family_lessons()) != []
    first = (await after.ask(call("other", 0))).headers["X-Turngate-Receipt"]
    async with after.get(f"/v1/turngate/receipts/{first}") as response:
        assert (await response.json())["family"] in {lessons.id for lessons in old.family_lessons()}
    assert b"fix" not in (tmp_path / "learned").read_bytes()
    back = (await after.ask(call("fix", 3))).headers["X-Turngate-Receipt"]
    async with after.get(f"/v1/turngate/receipts/{back}") as response:
        assert (await response.json())["reason"] == "resident"  # its room was kept


async def test_a_gateway_that_is_killed_leaves_what_it_learned_some_seconds_before(
    start: Start, engine: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.request.learned.WRITTEN_EVERY_S", 0.01)
    before = await start(engine, learned_file=str(tmp_path / "learned"))
    assert (await before.ask(call("fix", 0))).status == 200
    async with asyncio.timeout(DEADLINE_S):
        while b'"ratio"' not in (written := read_bytes(tmp_path / "learned")):
            await asyncio.sleep(0.01)
    (tmp_path / "copy").write_bytes(written)
    after = await start(engine, learned_file=str(tmp_path / "copy"))
    old, new = (each.app.parts.gate._scheduler for each in (before, after))
    assert lasting(new) == lasting(old)


def lasting(scheduler: Scheduler) -> list[PoolLessons]:
    return [replace(lessons, residents=()) for lessons in scheduler.pool_lessons()]


def read_bytes(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""
