"""Several tenants over HTTP, in front of the embedded engine: what one declares takes no turns from another.

Nothing is timed: the turns of the quiet tenant are counted while the other one has a number of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from itertools import count
from typing import Any

import aiohttp
import pytest

from benchmarks.fleet.tenants import embedded_gateway
from tests.deadline import DEADLINE_S
from tests.path.secured import by, keys
from tests.transport.loops import carrier

CHAT = "/v1/chat/completions"
ENGINE = {"slots": 4, "speed": 40}
SYSTEM = {"role": "system", "content": "You are an agent. " * 30}
LANES, FLOOD_TURNS = 12, 160
LEAST = 0.5
"""Of the turns without the header, in real time on machines that do other things: it was one of twenty.
`tests/contract/test_tenants.py` holds 0.8 in virtual time."""

DECLARED: dict[str, dict[str, str]] = {
    "no turns to follow": {"X-Turngate-Remaining-Turns": "0"},
    "sub-agents of long sessions": {
        "X-Turngate-Session": "{call}",
        "X-Turngate-Parent": "parent",
        "X-Turngate-Remaining-Turns": "999",
        "X-Turngate-Deadline-Ms": "100000000",
    },
    "one session for each lane, tried again": {
        "X-Session-Affinity": "{lane}",
        "X-Stainless-Retry-Count": "3",
        "X-Vllm-Priority": "-100",
    },
}


def gateway(states_slots: bool) -> AbstractAsyncContextManager[str]:
    """Its base URL."""
    return embedded_gateway(ENGINE, states_slots, transport=carrier(), keys=keys("flood", "quiet"))


class Clients:
    """Lanes of one tenant that never stop, and one agent of another."""

    def __init__(self, url: str, http: aiohttp.ClientSession, declared: Mapping[str, str]) -> None:
        self._url, self._http, self._declared = url, http, declared
        self._calls = count()
        self.num_flood = self.num_quiet = 0
        self.flooded = asyncio.Event()

    async def ask(self, messages: list[Any], headers: Mapping[str, str]) -> str:
        body = {"model": "embedded", "messages": [SYSTEM, *messages], "max_tokens": 24}
        async with self._http.post(self._url + CHAT, json=body, headers=headers) as response:
            answer = await response.json()
            assert response.status == 200, answer
            return str(answer["choices"][0]["message"]["content"])

    async def lane(self, number: int) -> None:
        """A new conversation with each call."""
        while True:
            call = next(self._calls)
            told = {name: text.format(call=call, lane=number) for name, text in self._declared.items()}
            await self.ask([{"role": "user", "content": f"task {call}"}], {**by("flood"), **told})
            self.num_flood += 1
            if self.num_flood == FLOOD_TURNS:
                self.flooded.set()

    async def agent(self) -> None:
        messages: list[Any] = [{"role": "user", "content": "the task of the quiet one"}]
        while True:
            text = await self.ask(messages, by("quiet"))
            self.num_quiet += 1
            messages += [{"role": "assistant", "content": text}, {"role": "user", "content": f"{self.num_quiet}"}]


async def turns_of_the_quiet(states_slots: bool, declared: Mapping[str, str]) -> int:
    """While the flood has FLOOD_TURNS."""
    limit = aiohttp.TCPConnector(limit=0)
    async with gateway(states_slots) as url, aiohttp.ClientSession(connector=limit) as http:
        clients = Clients(url, http, declared)
        tasks = [asyncio.create_task(clients.lane(number)) for number in range(LANES)]
        tasks.append(asyncio.create_task(clients.agent()))
        flooded = asyncio.create_task(clients.flooded.wait())
        async with asyncio.timeout(DEADLINE_S):
            done, _ = await asyncio.wait((flooded, *tasks), return_when=asyncio.FIRST_COMPLETED)
        num = clients.num_quiet
        for task in (flooded, *tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert flooded in done, [task.exception() for task in done]
        return num


@pytest.mark.parametrize("states_slots", [True, False], ids=["queue at the gate", "queue in the engine"])
async def test_a_header_on_every_call_of_one_tenant_takes_no_turns_from_another(states_slots: bool) -> None:
    without = await turns_of_the_quiet(states_slots, {})
    assert without >= 4
    for name, declared in DECLARED.items():
        assert await turns_of_the_quiet(states_slots, declared) >= LEAST * without - 1, name
