"""Who serves together, and who of them is home to a session: all decide alike, without talking."""

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
from policies.policy import rendezvous_weight
from policies.types import Hold, ReplicaId

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
        return rendezvous_weight(member.gateway, origin.family), rendezvous_weight(member.id, origin.root)

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


# --- How much of each replica is whose: by demand, less a part that all have alike.

EQUAL = 0.1
"""Shared alike, so that whoever begins to have work can begin with it."""


def shares(
    me: str, demands: Mapping[str, Mapping[ReplicaId, float]], replicas: Iterable[ReplicaId]
) -> dict[ReplicaId, float]:
    """What `me` may fill of each replica, between 0 and 1. `demands`: by member, of all members, in tokens that
    are resident or wait. Members that know the same demands have shares that add up to 1."""
    return {replica: _share(me, demands, replica) for replica in replicas}


def _share(me: str, demands: Mapping[str, Mapping[ReplicaId, float]], replica: ReplicaId) -> float:
    equal = 1 / len(demands)
    total = sum(demand.get(replica, 0.0) for demand in demands.values())
    return EQUAL * equal + (1 - EQUAL) * (demands[me].get(replica, 0.0) / total if total else equal)


# ---- each second

LOG = logging.getLogger(__name__)

INTERVAL_S = 1.0
WITHIN_S = 2.5
LOST_S = 5.0
"""A member that refused a connection is not tried again for this long, unless it says something."""
LEAST_CHANGE = 0.005
"""Smaller changes of a share are not told."""
SESSION_TOKENS = 8192.0
"""Of a waiting turn, while nobody is resident to compare it with."""


class Peers:
    """Owns what is known of the other members. Between two exchanges `lost` is the only writer."""

    def __init__(
        self,
        me: Member,
        board: Board,
        trail: Trail,
        view: Callable[[], FleetView],
        give: Callable[[ReplicaId, float], None],
        clock: Callable[[], float],
    ) -> None:
        """`give` is told of each share of a replica that changed."""
        self.me = me
        self.trail = trail
        self.problem = ""
        """Why nothing was heard at the last exchange; empty when something was."""
        self.shares: dict[ReplicaId, float] = {}
        self._board = board
        self._view = view
        self._give = give
        self._clock = clock
        self._states: dict[Member, MemberState] = {}
        self._lost_at: dict[Member, float] = {}
        self._has_left = False
        self._due: Mapping[ReplicaId, float] = {}

    @property
    def members(self) -> list[Member]:
        """All that take requests, this one too."""
        now, others = self._clock(), dict.fromkeys((*self._board.expected, *self._states))
        return [self.me, *(one for one in others if now - self._lost_at.get(one, -LOST_S) >= LOST_S)]

    def lost(self, member: Member) -> None:
        """It refused a connection."""
        self._lost_at[member] = self._clock()

    async def run(self) -> None:
        """Exchange until this member leaves."""
        while not self._has_left:
            await self.once()
            await asyncio.sleep(INTERVAL_S)

    async def once(self) -> None:
        """One exchange. Where it fails, members and shares stay as they are."""
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
        self._heard({state.member: state for state in states})
        demands: dict[str, dict[ReplicaId, float]] = {one.id: {} for one in self.members} | {
            one.member.id: one.demand for one in (mine, *states)
        }
        self._take(shares(self.me.id, demands, (replica.id for replica in view.replicas)), view)

    async def leave(self) -> None:
        """Others send no more; what is on its way still comes."""
        self._has_left = True
        try:
            async with asyncio.timeout(WITHIN_S):
                await self._board.leave(self.me)
        except (BoardGone, TimeoutError):
            LOG.info("left without a word")

    def _heard(self, states: Mapping[Member, MemberState]) -> None:
        for member in states.keys() - self._states.keys():
            LOG.info("%s is here", member.id)
        for member in self._states.keys() - states.keys():
            LOG.warning("%s is gone", member.id)
        self._states = dict(states)
        self._lost_at = {member: at for member, at in self._lost_at.items() if member not in states}

    def _take(self, mine: Mapping[ReplicaId, float], view: FleetView) -> None:
        """A share grows one exchange after it was due: the others have heard of it then, and have less."""
        before, self._due = self._due, mine
        for replica in view.replicas:
            share = min(mine[replica.id], before.get(replica.id, 1.0))
            if replica.is_healthy and abs(share - self.shares.get(replica.id, 1.0)) >= LEAST_CHANGE:
                self.shares[replica.id] = share
                self._give(replica.id, share)


def demand_of(view: FleetView) -> dict[ReplicaId, float]:
    """Tokens that are resident, and of those turns that wait, by replica: they may go to any."""
    waiting = view.waiting.get(Hold.RESIDENCY, 0) / max(1, len(view.replicas))
    return {replica.id: replica.residency_tokens + waiting * _session_tokens(replica) for replica in view.replicas}


def _session_tokens(replica: ReplicaView) -> float:
    return replica.residency_tokens / replica.num_residents if replica.num_residents else SESSION_TOKENS
