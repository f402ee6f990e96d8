"""Tenants over HTTP beside a flood of long prompts, in front of the embedded engine: the part of the tokens that
each gets. Nothing is timed: answers are counted."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest

from benchmarks.fleet.tenants import Clients, gateway
from tests.deadline import DEADLINE_S

NUM_TENANTS, LONGER_PROMPTS = 3, 5
NUM_WARM, NUM_MEASURED = 8, 24
LEAST = 0.8
"""One turn of the flood is a fifth of a part. `tests/contract/test_tenant_shares.py` holds 0.9 in virtual time."""


@pytest.mark.parametrize("states_slots", [True, False], ids=["slots stated", "slots unknown"])
async def test_beside_a_flood_of_long_prompts_each_tenant_has_its_part_of_the_tokens(states_slots: bool) -> None:
    unbounded = aiohttp.TCPConnector(limit=0)
    async with gateway(NUM_TENANTS, states_slots) as url, aiohttp.ClientSession(connector=unbounded) as http:
        clients = Clients(url, http)
        tasks = clients.lanes(NUM_TENANTS, (LONGER_PROMPTS, 1))
        try:
            async with asyncio.timeout(DEADLINE_S):
                for num in NUM_WARM, NUM_MEASURED:
                    await clients.count_turns(NUM_TENANTS, num)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
    assert clients.played.least_part() >= LEAST
