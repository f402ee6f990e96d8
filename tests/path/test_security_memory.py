"""What clients make the gateway remember is bounded in bytes, owner by owner, and never refused."""

from __future__ import annotations

import gc
import sys
from array import array
from collections import deque
from typing import Any

import pytest

from gateway.app import App
from gateway.config.memory import MemoryBounds
from tests.path.conftest import Gateway, Start
from tests.path.fake_engine import FakeEngine
from tests.path.test_session_lifetime import inside
from tests.path.toolkit import Bench

MEMORY_BYTES = 16 * 2**20
OWNERS = frozenset(MemoryBounds.__slots__)


def numbers_and_texts_bytes(app: App) -> int:
    """Bytes of all arrays and long texts that a gateway holds."""
    gc.collect()
    seen, num_bytes = {id(app)}, 0
    queue: deque[Any] = deque([app])
    while queue:
        for other in inside(queue.popleft()):
            if id(other) in seen:
                continue
            seen.add(id(other))
            if isinstance(other, str | bytes | array):
                num_bytes += sys.getsizeof(other)
            else:
                queue.append(other)
    return num_bytes


async def bounded(start: Start, engine: FakeEngine, **sections: Any) -> Gateway:
    return await start(engine, limits={"memory_bytes": MEMORY_BYTES}, probing={"hints": False}, **sections)


async def memory_of(gateway: Gateway) -> dict[str, Any]:
    async with gateway.get("/health") as answer:
        page: dict[str, Any] = (await answer.json())["memory"]
        return page


def tiny_messages(number: int, count: int = 9_999) -> dict[str, Any]:
    roles = ("user", "assistant")
    messages = [{"role": roles[at % 2], "content": f"{number} {at}"} for at in range(count)]
    return {"model": "m", "messages": messages}


def tool_list(number: int) -> dict[str, Any]:
    tool = {"name": "read", "description": f"{number:07} " * 125_000, "parameters": {"type": "object"}}
    messages = [{"role": "user", "content": f"Task {number}, of its own."}]
    return {"model": "m", "messages": messages, "tools": [{"type": "function", "function": tool}]}


def system_text(number: int) -> dict[str, Any]:
    system = {"role": "system", "content": f"{number:07} " * 25_000}
    return {"model": "m", "messages": [system, {"role": "user", "content": f"Task {number}."}]}


@pytest.mark.parametrize(
    ("made", "count"),
    [(tiny_messages, 25), (tool_list, 8), (system_text, 60)],
    ids=["messages", "tools", "system"],
)
async def test_sessions_and_tool_lists_of_any_size_are_bounded_in_bytes(
    start: Start, engine: FakeEngine, made: Any, count: int
) -> None:
    gateway = await bounded(start, engine)
    before = numbers_and_texts_bytes(gateway.app)
    for number in range(count):
        assert (await gateway.ask(made(number))).status == 200
    memory = await memory_of(gateway)
    assert all(row["bytes"] <= row["limit_bytes"] + 2**20 for row in memory["owners"].values())
    assert numbers_and_texts_bytes(gateway.app) - before <= memory["bytes"] <= MEMORY_BYTES


async def test_one_id_for_many_conversations_is_bounded_in_bytes_too(start: Start, engine: FakeEngine) -> None:
    gateway = await bounded(start, engine)
    for number in range(25):
        assert (await gateway.ask(tiny_messages(number), X_Turngate_Session="one")).status == 200
    owners = (await memory_of(gateway))["owners"]
    assert owners["recognition"]["bytes"] <= owners["recognition"]["limit_bytes"] + 2**20


async def test_every_owner_shows_its_bytes_and_its_bound_and_their_sum_is_the_setting(
    start: Start, engine: FakeEngine, tmp_path: Any
) -> None:
    gateway = await bounded(start, engine, tools=Bench().settings(), batches={"directory": str(tmp_path)})
    await gateway.ask(tiny_messages(0, 5))
    memory = await memory_of(gateway)
    assert set(memory["owners"]) == OWNERS
    assert MEMORY_BYTES - 100 <= memory["limit_bytes"] <= MEMORY_BYTES
    async with gateway.get("/metrics") as answer:
        page = await answer.text()
    for owner in OWNERS:
        assert f'turngate_memory_bytes{{owner="{owner}"}}' in page
        assert f'turngate_memory_limit_bytes{{owner="{owner}"}}' in page
