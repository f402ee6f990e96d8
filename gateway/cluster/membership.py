"""Who serves together, and who of them is home to a session: all decide alike, without talking."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import orjson

from gateway.core import fields
from gateway.core.errors import ConfigError
from gateway.core.redis import client
from gateway.sessions.session_locations import Origin, Placed, Trail
from policies.placement import weight
from policies.types import ReplicaId

if TYPE_CHECKING:
    from redis.asyncio import Redis


@dataclass(frozen=True, slots=True)
class Member:
    """One process."""

    gateway: str
    """Workers of one machine are one gateway: they share its port."""
    worker: int
    url: str
    """Of its private listener, without a closing slash."""

    @property
    def id(self) -> str:
        return f"{self.gateway}/{self.worker}"


def by_preference(members: Iterable[Member], origin: Origin) -> list[Member]:
    """The home first, then who takes over when it is gone, by rendezvous.

    A family lives at one gateway, whose ledger counts its shared prefix once. Inside a gateway its sessions are
    spread over all workers, since a fleet of one family must be able to use all cores.
    """

    def preference(member: Member) -> tuple[int, int]:
        return weight(member.gateway, origin.family), weight(member.id, origin.root)

    return sorted(members, key=preference, reverse=True)


# ---- what members tell each other each second, and where: the board


@dataclass(frozen=True, slots=True)
class MemberState:
    """One member, as it was a moment ago."""

    member: Member
    demand: dict[ReplicaId, float] = field(default_factory=dict)
    """Tokens that are resident or wait, by replica."""

    def encode(self) -> bytes:
        member = self.member
        return orjson.dumps(
            {"gateway": member.gateway, "worker": member.worker, "url": member.url, "demand": self.demand}
        )


def decode(text: bytes) -> MemberState:
    """Raises ValueError for what no member of this release writes."""
    try:
        told = orjson.loads(text)
        member = Member(str(told["gateway"]), int(told["worker"]), str(told["url"]))
        return MemberState(
            member, {str(name): float(tokens) for name, tokens in fields.obj(told, "demand").items()}
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"no state of a member: {error}") from None


def placed_of(rows: Any) -> Placed:
    """Raises ValueError."""
    if not isinstance(rows, list) or not all(isinstance(row, list) and len(row) == 2 for row in rows):
        raise ValueError("no list of placements")
    return [(str(root), str(replica_id)) for root, replica_id in rows]


class BoardGone(Exception):
    """Nothing can be told or heard now."""


class Board(Protocol):
    """A place to meet. All of it is bounded in time."""

    expected: Sequence[Member]
    """Members whether heard or not: all agree on the home of a session from the first request on."""

    async def exchange(self, mine: MemberState, trail: Trail) -> list[MemberState]:
        """Tell what is mine, and return the other members that were here lately; placements go both ways.
        Raises BoardGone."""
        ...

    async def leave(self, me: Member) -> None:
        """Say that this member takes no more."""
        ...

    async def close(self) -> None: ...


# ---- the board of several gateways: Redis or Valkey

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

    async def exchange(self, mine: MemberState, trail: Trail) -> list[MemberState]:
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

    async def _tell(self, mine: MemberState, news: Placed) -> tuple[list[str], list[Any]]:
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
