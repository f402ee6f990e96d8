"""A client of Redis or Valkey. Whoever waits for it can be cancelled at any moment."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from redis.asyncio import Redis


def client(url: str, timeout_s: float, **options: Any) -> Redis:
    """Connects when it is first asked. `timeout_s`: of one answer. Raises ImportError where redis is missing."""
    from redis.asyncio import Redis

    if url.startswith("valkey"):
        url = url.replace("valkey", "redis", 1)
    made = Redis.from_url(url, socket_timeout=timeout_s, socket_connect_timeout=timeout_s, **options)
    pool = made.connection_pool
    pool.connection_class = heeding(pool.connection_class)
    return made


def heeding(connection_class: Any) -> Any:
    """Connections that heed a cancellation. Redis sends by `asyncio.wait_for`, which before Python 3.12 forgets
    one that comes as it ends: a task that asks for ever would never end, and a gateway never stop."""

    class Heeding(connection_class):  # type: ignore[misc]
        async def send_packed_command(self, *args: Any, **options: Any) -> None:
            task = asyncio.current_task()
            assert task is not None
            num_cancelled = task.cancelling()
            await super().send_packed_command(*args, **options)
            if task.cancelling() > num_cancelled:
                await self.disconnect(nowait=True)  # nobody reads the answer
                raise asyncio.CancelledError

    return Heeding
