"""The processes that serve together, the home of each session, and each member's share of the replicas.

All members decide alike, without waiting for each other.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import orjson

from gateway.core import fields
from gateway.core.errors import ConfigError
from gateway.core.redis import client
from gateway.sessions.session_locations import Origin, Placed, Trail
from policies.fleet import FleetView, ReplicaView
from policies.placement import rendezvous_weight
from policies.types import Hold, ReplicaId

if TYPE_CHECKING:
    from redis.asyncio import Redis


@dataclass(frozen=True, slots=True)
class Member:
    """One process of those that serve together."""

    gateway: str
    """Workers of one machine are one gateway: they share its port."""
    worker: int
    url: str
    """Base URL of its private listener, without a closing slash."""

    @property
    def id(self) -> str:
        return f"{self.gateway}/{self.worker}"


def by_preference(members: Iterable[Member], origin: Origin) -> list[Member]:
    """Sort members by rendezvous hashing: the home of a session first, then those that replace a lost home.

    A family lives at one gateway, whose ledger counts its shared prefix once. Inside a gateway the sessions of a
    family are spread over all workers, so that a fleet of one family can use all cores.
    """

    def preference(member: Member) -> tuple[int, int]:
        return rendezvous_weight(member.gateway, origin.family), rendezvous_weight(member.id, origin.root)

    return sorted(members, key=preference, reverse=True)


# ---- the board: where members exchange their states each second


@dataclass(frozen=True, slots=True)
class MemberState:
    """The state of one member a moment ago."""

    member: Member
    demand: dict[ReplicaId, float] = field(default_factory=dict)
    """Tokens that are resident or wait, by replica."""

    def encode(self) -> bytes:
        member = self.member
        return orjson.dumps(
            {"gateway": member.gateway, "worker": member.worker, "url": member.url, "demand": self.demand}
        )


def decode_state(text: bytes) -> MemberState:
    """Read the state of a member. Raises ValueError when no member of this release has written it."""
    try:
        row = orjson.loads(text)
        member = Member(str(row["gateway"]), int(row["worker"]), str(row["url"]))
        demand = {str(name): float(tokens) for name, tokens in fields.obj(row, "demand").items()}
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"no state of a member: {error}") from None
    return MemberState(member, demand)


def placed_of(rows: Any) -> Placed:
    """Read a list of placements. Raises ValueError."""
    if not isinstance(rows, list) or not all(isinstance(row, list) and len(row) == 2 for row in rows):
        raise ValueError("no list of placements")
    return [(str(root), str(replica_id)) for root, replica_id in rows]


class BoardGone(Exception):
    """The other members, or the Redis of all, cannot be reached now."""


class Board(Protocol):
    """A place where members exchange their states. Each call is bounded in time."""

    expected: Sequence[Member]
    """Members that count before they are heard, so that all agree on the home of a session from the first request
    on."""

    async def exchange(self, mine: MemberState, trail: Trail) -> list[MemberState]:
        """Publish the state of this member and return the states of the others that were heard lately. Placements
        of sessions are exchanged with them. Raises BoardGone."""
        ...

    async def leave(self, me: Member) -> None:
        """Publish that this member takes no more requests."""
        ...

    async def close(self) -> None: ...


# ---- the board of several gateways: Redis or Valkey

TIMEOUT_S = 0.5
"""Bound on one answer of Redis, for which turns may wait."""
GONE_MS = 3500
"""A member that has not written its state for this long is lost."""
MAX_PLACED = 20_000
"""Entries of the stream of placements. One entry holds the placements of a second."""


def connected(url: str) -> Redis:
    """Return a client that connects at its first call. Raises ConfigError."""
    try:
        return client(url, TIMEOUT_S, retry=None, max_connections=64)
    except ImportError:
        raise ConfigError("cluster.redis: redis is not installed: pip install 'turngate[redis]'") from None


@asynccontextmanager
async def redis_call() -> AsyncIterator[None]:
    """Turn every failure of Redis, or of the way to it, into a BoardGone."""
    from redis.exceptions import RedisError

    try:
        yield
    except (RedisError, OSError, TimeoutError) as error:
        raise BoardGone(str(error) or type(error).__name__) from None


class RedisBoard:
    """A `Board` in Redis. Keys: `members` (ids), `member:ID` (a state that expires), `placed` (a stream)."""

    expected: Sequence[Member] = ()

    def __init__(self, redis: Redis, prefix: str) -> None:
        self.redis = redis
        self.prefix = prefix
        self._read_to = "0"
        self._num_published = 0
        """Placements of this process that are in the stream."""

    async def exchange(self, mine: MemberState, trail: Trail) -> list[MemberState]:
        async with redis_call():
            num_news = trail.num_news
            ids, placed = await self._publish(mine, trail.news(self._num_published))
            self._num_published = num_news
            others = [name for name in ids if name != mine.member.id]
            found = await self.redis.mget([self._key(f"member:{name}") for name in others]) if others else []
            if gone := [name for name, text in zip(others, found, strict=True) if text is None]:
                await self.redis.srem(self._key("members"), *gone)
        for entry_id, entry in placed:
            self._read_to = entry_id.decode()
            trail.learn(placed_of(orjson.loads(entry[b"rows"])))
        return [decode_state(text) for text in found if isinstance(text, bytes)]

    async def leave(self, me: Member) -> None:
        async with redis_call():
            await self.redis.delete(self._key(f"member:{me.id}"))

    async def close(self) -> None:
        await self.redis.aclose()

    async def _publish(self, mine: MemberState, news: Placed) -> tuple[list[str], list[Any]]:
        """Write the state and the placements of this member. Return the ids of all members, and the placements
        since the last call."""
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


# ---- shares: how much of each replica a member may fill

EQUAL = 0.1
"""Part of a replica that is shared equally, so that a member without work can begin to have some."""


def shares(
    me: str, demands: Mapping[str, Mapping[ReplicaId, float]], replicas: Iterable[ReplicaId]
) -> dict[ReplicaId, float]:
    """Return the share of each replica that `me` may fill, between 0 and 1.

    `demands`: the tokens that are resident or wait, by member, of all members. The shares of members that know the
    same demands add up to 1.
    """
    return {replica: _share(me, demands, replica) for replica in replicas}


def _share(me: str, demands: Mapping[str, Mapping[ReplicaId, float]], replica: ReplicaId) -> float:
    equal = 1 / len(demands)
    total = sum(demand.get(replica, 0.0) for demand in demands.values())
    return EQUAL * equal + (1 - EQUAL) * (demands[me].get(replica, 0.0) / total if total else equal)


def demand_of(view: FleetView) -> dict[ReplicaId, float]:
    """Return the resident tokens of each replica, with an equal part of the tokens of waiting turns, which may go
    to any replica."""
    waiting = view.waiting.get(Hold.RESIDENCY, 0) / max(1, len(view.replicas))
    return {replica.id: replica.residency_tokens + waiting * _session_tokens(replica) for replica in view.replicas}


def _session_tokens(replica: ReplicaView) -> float:
    return replica.residency_tokens / replica.num_residents if replica.num_residents else SESSION_TOKENS


# ---- the exchange of each second

LOG = logging.getLogger(__name__)

INTERVAL_S = 1.0
WITHIN_S = 2.5
LOST_S = 5.0
"""Seconds for which a member that refused a connection gets no requests, unless it is heard again."""
LEAST_CHANGE = 0.005
"""Smaller changes of a share are not applied."""
SESSION_TOKENS = 8192.0
"""Tokens of a waiting turn while no session is resident to compare it with."""


class Membership:
    """The members as last heard, and this member's shares. Between two exchanges `lost` is the only writer."""

    def __init__(
        self,
        me: Member,
        board: Board,
        trail: Trail,
        view: Callable[[], FleetView],
        apply_share: Callable[[ReplicaId, float], None],
        clock: Callable[[], float],
    ) -> None:
        """`apply_share`: called for each share of a replica that changed."""
        self.me = me
        self.trail = trail
        self.problem = ""
        """Why the last exchange failed; empty when it worked."""
        self.shares: dict[ReplicaId, float] = {}
        self._board = board
        self._view = view
        self._apply_share = apply_share
        self._clock = clock
        self._states: dict[Member, MemberState] = {}
        self._lost_at: dict[Member, float] = {}
        self._has_left = False
        self._due: Mapping[ReplicaId, float] = {}

    @property
    def members(self) -> list[Member]:
        """All members that take requests, this one first."""
        now, others = self._clock(), dict.fromkeys((*self._board.expected, *self._states))
        return [self.me, *(one for one in others if now - self._lost_at.get(one, -LOST_S) >= LOST_S)]

    def lost(self, member: Member) -> None:
        """Note that a member refused a connection."""
        self._lost_at[member] = self._clock()

    async def run(self) -> None:
        """Exchange states until this member leaves."""
        while not self._has_left:
            await self.exchange_once()
            await asyncio.sleep(INTERVAL_S)

    async def exchange_once(self) -> None:
        """Exchange states once. If that fails, members and shares stay as they are."""
        view = self._view()
        mine = MemberState(self.me, demand_of(view))
        try:
            async with asyncio.timeout(WITHIN_S):
                states = await self._board.exchange(mine, self.trail)
        except (BoardGone, TimeoutError, ValueError) as error:
            if not self.problem:
                LOG.warning("the other gateways cannot be heard, shares stay as they are: %s", error)
            self.problem = str(error) or "no answer in time"
            return
        if self.problem:
            LOG.info("the other gateways are heard again")
        self.problem = ""
        self._hear({state.member: state for state in states})
        demands: dict[str, dict[ReplicaId, float]] = {one.id: {} for one in self.members} | {
            one.member.id: one.demand for one in (mine, *states)
        }
        self._apply_shares(shares(self.me.id, demands, (replica.id for replica in view.replicas)), view)

    async def leave(self) -> None:
        """Make the others send no more requests. Requests that are under way still arrive."""
        self._has_left = True
        try:
            async with asyncio.timeout(WITHIN_S):
                await self._board.leave(self.me)
        except (BoardGone, TimeoutError):
            LOG.info("left without a word")

    def _hear(self, states: Mapping[Member, MemberState]) -> None:
        for member in states.keys() - self._states.keys():
            LOG.info("%s is here", member.id)
        for member in self._states.keys() - states.keys():
            LOG.warning("%s is gone", member.id)
        self._states = dict(states)
        self._lost_at = {member: at for member, at in self._lost_at.items() if member not in states}

    def _apply_shares(self, due: Mapping[ReplicaId, float], view: FleetView) -> None:
        """A share grows one exchange after it was due: by then the others have heard of it, and have less."""
        before, self._due = self._due, due
        for replica in view.replicas:
            share = min(due[replica.id], before.get(replica.id, 1.0))
            if replica.is_healthy and abs(share - self.shares.get(replica.id, 1.0)) >= LEAST_CHANGE:
                self.shares[replica.id] = share
                self._apply_share(replica.id, share)
