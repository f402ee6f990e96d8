"""Which replica holds the answer that a stateful request builds on."""

from __future__ import annotations

from collections import OrderedDict

from policies.types import ReplicaId


class Homes:
    """Stored answers (`/v1/responses`) by tenant and id; the oldest is forgotten first."""

    def __init__(self, max_kept: int = 100_000) -> None:
        self._max_kept = max_kept
        self._homes: OrderedDict[tuple[str, str], ReplicaId] = OrderedDict()

    def remember(self, tenant: str, answer_id: str, replica_id: ReplicaId) -> None:
        self._homes[tenant, answer_id] = replica_id
        if len(self._homes) > self._max_kept:
            self._homes.popitem(last=False)

    def home(self, tenant: str, answer_id: str) -> ReplicaId | None:
        """None: not known here, or another tenant's."""
        return self._homes.get((tenant, answer_id))
