"""What members tell each other each second, and where: the board."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import orjson

from gateway.cluster.member import Member
from gateway.core import fields
from gateway.sessions.session_locations import Placed, Trail
from policies.types import ReplicaId


@dataclass(frozen=True, slots=True)
class State:
    """One member, as it was a moment ago."""

    member: Member
    demand: dict[ReplicaId, float] = field(default_factory=dict)
    """Tokens that are resident or wait, by replica."""

    def encode(self) -> bytes:
        member = self.member
        return orjson.dumps(
            {"gateway": member.gateway, "worker": member.worker, "url": member.url, "demand": self.demand}
        )


def decode(text: bytes) -> State:
    """Raises ValueError for what no member of this release writes."""
    try:
        told = orjson.loads(text)
        member = Member(str(told["gateway"]), int(told["worker"]), str(told["url"]))
        return State(member, {str(name): float(tokens) for name, tokens in fields.obj(told, "demand").items()})
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

    async def exchange(self, mine: State, trail: Trail) -> list[State]:
        """Tell what is mine, and return the other members that were here lately; placements go both ways.
        Raises BoardGone."""
        ...

    async def leave(self, me: Member) -> None:
        """Say that this member takes no more."""
        ...

    async def close(self) -> None: ...
