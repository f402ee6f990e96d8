"""Who serves together, and who of them is home to a session: all decide alike, without talking."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gateway.sessions.origin import Origin
from policies.placement import weight


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
