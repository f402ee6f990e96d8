"""A client without headers that changes its model in mid-session: one session, resident where it is served."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest

from tests.path.conftest import Gateway, Start
from tests.path.fake_engine import FakeEngine, replies, stalls_after

Json = Any

RULES = "\n".join(f"Rule {n}: do {n * 7919} things in order and say so." for n in range(60))
TOOLS = [{"type": "function", "function": {"name": "read", "description": "Reads a file.", "parameters": {}}}]
SMALL, LARGE = "small", "large"
PROMPT_TOKENS = 1000
CAPACITY_TOKENS = 1600


def answer(turn: int) -> dict[str, Any]:
    call = {"id": f"call_{turn:012}", "type": "function", "function": {"name": "read", "arguments": "{}"}}
    message = {"role": "assistant", "content": f"I read part {turn}.", "tool_calls": [call]}
    usage = {"prompt_tokens": PROMPT_TOKENS, "completion_tokens": 5, "total_tokens": PROMPT_TOKENS + 5}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
    return {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "choices": [choice], "usage": usage}


class Client:
    """An agent that keeps its history whatever model answers."""

    def __init__(self, gateway: Gateway, engines: dict[str, FakeEngine], task: str = "mend the fault") -> None:
        self._gateway = gateway
        self._engines = engines
        self._history: list[Any] = [{"role": "user", "content": f"Please {task} in main.py."}]

    @property
    def num_sent(self) -> int:
        return len(self._history)

    async def turn(self, model: str, until: asyncio.Event | None = None) -> Json:
        """The receipt of a turn. `until`: the engine answers then."""
        play = replies(200, answer(self.num_sent))
        self._engines[model].plays.append(play if until is None else stalls_after(then=play, until=until))
        system = {"role": "system", "content": RULES}
        body = {"model": model, "messages": [system, *self._history], "tools": TOOLS}
        told = await self._gateway.ask(body)
        assert told.status == 200, told.body
        said = orjson.loads(told.body)["choices"][0]["message"]
        content = f"line {self.num_sent}"
        self._history += [said, {"role": "tool", "tool_call_id": said["tool_calls"][0]["id"], "content": content}]
        return await self.get(f"/v1/turngate/receipts/{told.headers['X-Turngate-Receipt']}")

    async def get(self, path: str) -> Json:
        async with self._gateway.get(path) as response:
            found: Json = await response.json()
            return found


def resident_tokens(gateway: Gateway) -> list[int]:
    return [replica.residency_tokens for replica in gateway.app.parts.gate.view().replicas]


@pytest.fixture
def engines() -> dict[str, FakeEngine]:
    return {model: FakeEngine(model=model, capacity_tokens=CAPACITY_TOKENS) for model in (SMALL, LARGE)}


async def test_a_switch_of_model_moves_a_session_to_the_replicas_of_the_new_one(
    start: Start, engines: dict[str, FakeEngine]
) -> None:
    gateway = await start(*engines.values())
    client, seen = Client(gateway, engines), []
    for model in (SMALL, SMALL, LARGE, LARGE, SMALL):
        receipt = await client.turn(model)
        (row,) = (await client.get("/v1/turngate/sessions"))["sessions"]
        is_resident = [tokens >= PROMPT_TOKENS for tokens in resident_tokens(gateway)]
        seen.append((row["session"], row["turns"], row["model"], row["replica"], *is_resident))
        assert (receipt["session"], receipt["turn"]) == (row["session"], row["turns"])
    (session,) = {id_ for id_, *_ in seen}
    small, large = (SMALL, "e1", True, False), (LARGE, "e2", False, True)
    places = (small, small, large, large, small)
    assert seen == [(session, turn, *place) for turn, place in enumerate(places, start=1)]


async def test_a_session_that_switches_is_held_where_the_room_of_the_new_model_is_taken(
    start: Start, engines: dict[str, FakeEngine]
) -> None:
    gateway = await start(*engines.values())
    client, other, ends = Client(gateway, engines), Client(gateway, engines, "write a test"), asyncio.Event()
    first = await client.turn(SMALL)
    await other.turn(LARGE)
    running = asyncio.create_task(other.turn(LARGE, until=ends))
    await engines[LARGE].has_seen(2)
    switched = asyncio.create_task(client.turn(LARGE))
    await gateway.until(lambda: gateway.num_waiting == 1)
    assert len(engines[LARGE].calls) == 2
    ends.set()
    await running
    assert (await switched)["session"] == first["session"]
    assert [tokens >= PROMPT_TOKENS for tokens in resident_tokens(gateway)] == [False, True]
