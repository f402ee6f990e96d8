"""Which replica holds the answer that a stateful request builds on."""

from __future__ import annotations

from collections import OrderedDict

from policies.types import ReplicaId


class Homes:
    """Stored answers (`/v1/responses`) by id; the oldest is forgotten first. A tenant sees its own only."""

    def __init__(self, max_kept: int = 100_000) -> None:
        self._max_kept = max_kept
        self._homes: OrderedDict[str, tuple[str, ReplicaId]] = OrderedDict()

    def remember(self, tenant: str, answer_id: str, replica_id: ReplicaId) -> None:
        self._homes[answer_id] = (tenant, replica_id)
        if len(self._homes) > self._max_kept:
            self._homes.popitem(last=False)

    def home(self, tenant: str, answer_id: str) -> ReplicaId | None:
        """None: not known here, or another tenant's."""
        owner, replica_id = self._homes.get(answer_id, ("", None))
        return replica_id if owner == tenant else None

    def is_known(self, answer_id: str) -> bool:
        """Whether it was stored through this process."""
        return answer_id in self._homes

    def is_anothers(self, tenant: str, answer_id: str) -> bool:
        """Whether it is known to be another tenant's, which engines cannot tell."""
        return answer_id in self._homes and self._homes[answer_id][0] != tenant
