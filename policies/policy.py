"""The contract of a policy: pure answers about values. It never writes, waits, or looks at a clock."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from policies.placement import Option
from policies.types import Family, FamilyId, Session


class Policy(Protocol):
    """What the Scheduler asks. One file per policy; configuration names it by short name or import path."""

    name: str
    bounds_slots: bool
    """Whether a turn waits for a free slot of its replica."""
    gates_residency: bool
    """Whether a session waits until its replica's cache has room for it."""

    def rank(self, family: Family, num_begun: int, declared: int | None) -> float:
        """Place in the order of those who may go, lowest first; age decides between equals.

        `num_begun` counts the turn that is being ranked; `declared` are the turns after it that the client
        announced, None when it did not.
        """
        ...

    def forecast(self, family: Family, num_begun: int, declared: int | None) -> Sequence[float]:
        """Expected change of the tokens that a session holds after 0, 1, ... further turns; always as long."""
        ...

    def lease_s(self, session: Session, family: Family) -> float:
        """How long the session stays resident once it is idle."""
        ...

    def place(self, options: Sequence[Option], family_id: FamilyId, ordinal: int) -> Option:
        """The replica to run on; `options` is never empty, `ordinal` counts placements."""
        ...
