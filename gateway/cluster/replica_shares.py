"""How much of each replica is whose: by demand, less a part that all have alike."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping

from gateway.cluster.membership import Board, BoardGone, Member, MemberState
from gateway.sessions.session_locations import Trail
from policies.types import Hold, ReplicaId
from policies.view import FleetView, ReplicaView

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
