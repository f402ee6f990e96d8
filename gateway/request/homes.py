"""Which replica holds the answer that a stateful request builds on."""

from __future__ import annotations

from collections import OrderedDict

from policies.types import ReplicaId, value


@value
class Home:
    """Where a stored answer is."""

    replica_id: ReplicaId
    engine_id: str
    """By which the engine there knows it."""


class Homes:
    """Stored answers (`/v1/responses`) by id; the oldest is forgotten first. A tenant sees its own only."""

    def __init__(self, max_kept: int = 100_000) -> None:
        self._max_kept = max_kept
        self._homes: OrderedDict[str, tuple[str, Home]] = OrderedDict()

    def remember(self, tenant: str, answer_id: str, home: Home) -> None:
        """`answer_id`: by which its client knows it."""
        self._homes[answer_id] = (tenant, home)
        if len(self._homes) > self._max_kept:
            self._homes.popitem(last=False)

    def home(self, tenant: str, answer_id: str) -> Home | None:
        """None: not known here, or another tenant's."""
        owner, home = self._homes.get(answer_id, ("", None))
        return home if owner == tenant else None

    def is_known(self, answer_id: str) -> bool:
        """Whether it was stored through this process."""
        return answer_id in self._homes

    def is_anothers(self, tenant: str, answer_id: str) -> bool:
        """Whether it is known to be another tenant's, which engines cannot tell."""
        return answer_id in self._homes and self._homes[answer_id][0] != tenant
