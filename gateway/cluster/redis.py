"""The board of several gateways: Redis or Valkey."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import orjson

from gateway.cluster.member import Member
from gateway.cluster.membership import BoardGone, State, decode, placed_of
from gateway.core.errors import ConfigError
from gateway.core.redis import client
from gateway.sessions.session_locations import Placed, Trail

if TYPE_CHECKING:
    from redis.asyncio import Redis

TIMEOUT_S = 0.5
"""Of one answer: whoever waits for it has a turn to decide on."""
GONE_MS = 3500
"""After this time without a word a member is gone."""
MAX_PLACED = 20_000
"""Entries of the stream of placements; one holds those of a second."""


def connected(url: str) -> Redis:
    """Connects when it is first asked. Raises ConfigError."""
    try:
        return client(url, TIMEOUT_S, retry=None, max_connections=64)
    except ImportError:
        raise ConfigError("cluster.redis: redis is not installed: pip install 'turngate[redis]'") from None


@asynccontextmanager
async def asking() -> AsyncIterator[None]:
    """Any failure of the server or the way to it is a BoardGone."""
    from redis.exceptions import RedisError

    try:
        yield
    except (RedisError, OSError, TimeoutError) as error:
        raise BoardGone(str(error) or type(error).__name__) from None


class RedisBoard:
    """A `Board`. Keys: `members` (ids), `member:ID` (a state that expires), `placed` (a stream)."""

    expected: Sequence[Member] = ()

    def __init__(self, redis: Redis, prefix: str) -> None:
        self.redis = redis
        self.prefix = prefix
        self._read_to = "0"
        self._num_told = 0
        """Placements by this process that are in the stream."""

    async def exchange(self, mine: State, trail: Trail) -> list[State]:
        async with asking():
            num_news = trail.num_news
            ids, placed = await self._tell(mine, trail.news(self._num_told))
            self._num_told = num_news
            others = [name for name in ids if name != mine.member.id]
            found = await self.redis.mget([self._key(f"member:{name}") for name in others]) if others else []
            if gone := [name for name, text in zip(others, found, strict=True) if text is None]:
                await self.redis.srem(self._key("members"), *gone)
        for entry_id, entry in placed:
            self._read_to = entry_id.decode()
            trail.learn(placed_of(orjson.loads(entry[b"rows"])))
        return [decode(text) for text in found if isinstance(text, bytes)]

    async def leave(self, me: Member) -> None:
        async with asking():
            await self.redis.delete(self._key(f"member:{me.id}"))

    async def close(self) -> None:
        await self.redis.aclose()

    async def _tell(self, mine: State, news: Placed) -> tuple[list[str], list[Any]]:
        """Ids of all members, and the placements since the last time."""
        async with self.redis.pipeline(transaction=False) as pipe:
            pipe.set(self._key(f"member:{mine.member.id}"), mine.encode(), px=GONE_MS)
            pipe.sadd(self._key("members"), mine.member.id)
            if news:
                pipe.xadd(self._key("placed"), {"rows": orjson.dumps(news)}, maxlen=MAX_PLACED, approximate=True)
            pipe.smembers(self._key("members"))
            pipe.xrange(self._key("placed"), min=f"({self._read_to}", count=1000)
            *_, ids, placed = await pipe.execute()
        return sorted(name.decode() for name in ids), placed

    def _key(self, name: str) -> str:
        return f"{self.prefix}:{name}"
