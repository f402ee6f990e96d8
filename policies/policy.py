"""The contract of a policy: pure answers about values. A policy never writes, waits or looks at a clock."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from policies.fleet import Pool
from policies.placement import Option
from policies.types import Family, FamilyId, Session, Turn


class Progress(Protocol):
    """How far a session had come when a turn of it arrived. A Session is one."""

    @property
    def num_begun(self) -> int:
        """Agent turns that have arrived, with the one in question."""
        ...

    @property
    def declared_turns(self) -> int | None:
        """Turns after it that the client announced. None: the client announced nothing."""
        ...


class Policy(Protocol):
    """What the Scheduler asks. One file per policy; the configuration names it by short name or import path."""

    name: str
    bounds_slots: bool
    """Whether a turn waits for a free slot of its replica."""
    gates_residency: bool
    """Whether a session waits until the cache of its replica has room for it."""
    ranks_turns: bool
    """Whether `rank` looks at the turn itself. False: it ranks all turns alike whose sessions are of one family
    and have come equally far, so the Scheduler ranks them once."""

    def rank(self, turn: Turn, session: Progress, family: Family) -> float:
        """Return the place of a waiting turn in the order of its tenant's turns: the lowest goes first, and age
        decides between equals. It must not depend on the time at which it is asked."""
        ...

    def forecast(self, family: Family, num_begun: int, declared: int | None) -> Sequence[float]:
        """Return the expected change of the tokens that a session holds after 0, 1, ... further turns. The result
        always has the same length. `declared`: turns to come, None where they are not known."""
        ...

    def fits(self, pool: Pool, session: Session, family: Family, new_tokens: float, num_waiting: int) -> bool:
        """Return whether a session may become resident that adds so many tokens to the pool, which has room for
        them now. `num_waiting`: sessions that wait for room, this one included. Asked where `gates_residency`."""
        ...

    def victim_rank(self, session: Session, family: Family) -> float:
        """Return the place of an idle resident among those of its class and tenant, of which the highest leaves
        first where the residents outgrow their pool."""
        ...

    def lease_s(self, session: Session, family: Family) -> float:
        """Return how long the session stays resident once it is idle."""
        ...

    def place(self, options: Sequence[Option], family_id: FamilyId, ordinal: int) -> Option:
        """Return the replica to run on. `options` is never empty; `ordinal` counts placements."""
        ...
