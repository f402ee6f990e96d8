"""A client of Redis or Valkey whose calls can be cancelled at any moment."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from redis.asyncio import Redis


def client(url: str, timeout_s: float, **options: Any) -> Redis:
    """Return a client that connects at its first call. `timeout_s`: bound on one answer. Raises ImportError when
    redis is not installed."""
    from redis.asyncio import Redis

    if url.startswith("valkey"):
        url = url.replace("valkey", "redis", 1)
    made = Redis.from_url(url, socket_timeout=timeout_s, socket_connect_timeout=timeout_s, **options)
    pool = made.connection_pool
    pool.connection_class = heeding(pool.connection_class)
    return made


def heeding(connection_class: Any) -> Any:
    """Return a class of connections that heed a cancellation. Redis sends by `asyncio.wait_for`. Before Python
    3.12 that loses a cancellation which comes as it ends, so a task with a loop of calls would never end."""

    class Heeding(connection_class):  # type: ignore[misc]
        async def send_packed_command(self, *args: Any, **options: Any) -> None:
            task = asyncio.current_task()
            assert task is not None
            num_cancelled = task.cancelling()
            await super().send_packed_command(*args, **options)
            if task.cancelling() > num_cancelled:
                await self.disconnect(nowait=True)  # the next call would read the answer
                raise asyncio.CancelledError

    return Heeding
