"""Which replica has a session's prefix, also of others' sessions: whoever takes one over goes on there."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable
from typing import TypeAlias

from gateway.exchange import Exchange
from gateway.sessions.origin import origin_of
from policies.types import ReplicaId

Placed: TypeAlias = list[tuple[str, ReplicaId]]
"""(root of a session, replica), oldest first."""

MAX_KEPT = 100_000
MAX_NEWS = 20_000
"""Placements of this process that others may not have asked for yet."""


class Trail:
    """Written by the path and by the exchange between members. The least recently placed is forgotten first."""

    def __init__(self, max_kept: int = MAX_KEPT) -> None:
        self._max_kept = max_kept
        self._replicas: OrderedDict[str, ReplicaId] = OrderedDict()
        self._open: dict[str, str] = {}
        """Roots of turns that run, by exchange."""
        self._news: deque[tuple[str, ReplicaId]] = deque(maxlen=MAX_NEWS)
        self.num_news = 0
        """Placements by this process since it began."""

    def found(self, exchange: Exchange) -> ReplicaId | None:
        """Where the session of a turn that begins was; of one that only begins, nowhere. Tell `ran` in the end."""
        origin = origin_of(exchange.tenant, exchange.request.headers, exchange.body)
        self._open[exchange.id] = origin.root
        return self._replicas.get(origin.root) if origin.has_history else None

    def ran(self, exchange: Exchange) -> None:
        """A turn is over."""
        root = self._open.pop(exchange.id, None)
        if root is not None and exchange.dispatch is not None:
            self.placed(root, exchange.dispatch.replica_id)

    def placed(self, root: str, replica_id: ReplicaId) -> None:
        """A turn of the session ran there."""
        if self._replicas.get(root) != replica_id:
            self._news.append((root, replica_id))
            self.num_news += 1
        self._keep(root, replica_id)

    def news(self, since: int) -> Placed:
        """Placements by this process after the first `since`, as far back as they are kept."""
        num_wanted = min(self.num_news - since, len(self._news))
        return list(self._news)[len(self._news) - num_wanted :] if num_wanted > 0 else []

    def known(self) -> Placed:
        """All, also those of others, for one that knows nothing yet."""
        return list(self._replicas.items())

    def learn(self, placed: Iterable[tuple[str, ReplicaId]]) -> None:
        """What another member said; not passed on as news."""
        for root, replica_id in placed:
            self._keep(root, replica_id)

    def _keep(self, root: str, replica_id: ReplicaId) -> None:
        self._replicas[root] = replica_id
        self._replicas.move_to_end(root)
        if len(self._replicas) > self._max_kept:
            self._replicas.popitem(last=False)
