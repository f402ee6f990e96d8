"""A task that is cancelled while it calls Redis is cancelled."""

from __future__ import annotations

import asyncio

import pytest

from gateway.core.redis import client, heeding
from tests.deadline import DEADLINE_S
from tests.valkey import valkey as valkey
from tests.valkey import valkey_server as valkey_server


class Connection:
    """Sends as redis does."""

    def __init__(self) -> None:
        self.is_sent: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.is_connected = True

    async def send_packed_command(self, command: bytes) -> None:
        await asyncio.wait_for(self.is_sent, DEADLINE_S)

    async def disconnect(self, nowait: bool) -> None:
        self.is_connected = False


async def test_a_cancellation_at_the_moment_of_sending_is_kept() -> None:
    connection = heeding(Connection)()
    task = asyncio.create_task(connection.send_packed_command(b""))
    await asyncio.sleep(0)
    connection.is_sent.set_result(None)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("scheme", ["redis", "valkey"])
async def test_a_client_reaches_a_server_by_either_name(valkey: str, scheme: str) -> None:
    redis = client(valkey.replace("redis", scheme, 1), DEADLINE_S)
    assert await redis.ping() is True
    await redis.aclose()
