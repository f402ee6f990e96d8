"""Turns that wait at the gate, in the policy's order: buckets of equals, a heap per tenant over their heads.

Turns of one family at one stage rank alike, so only age orders them; a family's new statistics re-rank a few
buckets, not every turn. Between tenants the least served goes first, which changes with every answer and so is
asked for, not kept.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeAlias

from policies.types import FamilyId, Turn, TurnId


class Bucket(NamedTuple):
    urgency: int
    is_returning: bool
    """Its session had residency, or is a sub-agent of one that has: others wait for it, or it has lost much."""
    tenant: str
    family_id: FamilyId
    num_begun: int
    declared: int | None
    is_parked: bool = False
    """Its session made way for shorter ones."""


Rank: TypeAlias = Callable[[Bucket], float]
Attained: TypeAlias = Callable[[str], float]
_Place: TypeAlias = tuple[float, int]  # held since, sequence number
_Entry: TypeAlias = tuple[int, int, float, _Place, int, Bucket]


class HeldTurns:
    """Ordered by urgency; returning before new, new before parked; the tenant's attained share, the policy's rank,
    then age."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._turns: dict[TurnId, tuple[Turn, Bucket, _Place]] = {}
        self._buckets: dict[Bucket, list[tuple[_Place, TurnId]]] = {}
        self._of_family: dict[FamilyId, set[Bucket]] = {}
        self._entries: dict[Bucket, int] = {}
        """The number of the bucket's one valid entry in its tenant's heap."""
        self._heaps: dict[str, list[_Entry]] = {}
        self._num_buckets: Counter[str] = Counter()
        """By tenant."""
        self._ages: list[tuple[_Place, TurnId]] = []
        self._sequence = 0

    def __len__(self) -> int:
        return len(self._turns)

    def __contains__(self, turn_id: TurnId) -> bool:
        return turn_id in self._turns

    def __getitem__(self, turn_id: TurnId) -> Turn:
        return self._turns[turn_id][0]

    @property
    def tenants(self) -> Iterator[str]:
        """Those who wait."""
        return iter(self._heaps)

    def since(self, turn_id: TurnId) -> float:
        """When its wait began; earlier than its arrival if its session kept a place."""
        return self._turns[turn_id][2][0]

    def is_returning(self, turn_id: TurnId) -> bool:
        return self._turns[turn_id][1].is_returning

    def put(self, turn: Turn, bucket: Bucket, since: float) -> None:
        self._sequence += 1
        place = (since, self._sequence)
        self._turns[turn.id] = (turn, bucket, place)
        if bucket not in self._buckets:
            self._num_buckets[bucket.tenant] += 1
        members = self._buckets.setdefault(bucket, [])
        insort(members, (place, turn.id))
        if bucket.urgency >= 0:
            heapq.heappush(self._ages, (place, turn.id))
        self._of_family.setdefault(bucket.family_id, set()).add(bucket)
        if members[0][1] == turn.id:
            self._enter(bucket)

    def take(self, turn_id: TurnId) -> Turn:
        """Remove a turn, wherever it stands."""
        turn, bucket, place = self._turns.pop(turn_id)
        members = self._buckets[bucket]
        index = bisect_left(members, (place, turn_id))
        del members[index]
        if not members:
            self._leave(bucket)
        elif index == 0:
            self._enter(bucket)
        return turn

    def rerank(self, family_id: FamilyId) -> None:
        """The family's statistics changed."""
        for bucket in self._of_family.get(family_id, ()):
            self._enter(bucket)

    def heads(self, most: int, attained: Attained) -> list[Turn]:
        """The first turn of each of the `most` best buckets, best first."""
        if not self._turns:
            return []
        popped: list[_Entry] = []
        if len(self._heaps) == 1:
            [entries] = [self._popping(tenant, 0.0, popped) for tenant in self._heaps]
        else:
            entries = heapq.merge(
                *(self._popping(tenant, attained(tenant), popped) for tenant in list(self._heaps))
            )
        heads = [self[self._buckets[entry[-1][-1]][0][1]] for entry, _ in zip(entries, range(most), strict=False)]
        for entry in popped:
            heapq.heappush(self._heaps[entry[-1].tenant], entry)
        return heads

    def oldest(self) -> Turn | None:
        """The turn that has waited longest, but for those of a class below 0: they wait while others come."""
        while self._ages and self._is_stale(*self._ages[0]):
            heapq.heappop(self._ages)
        return self[self._ages[0][1]] if self._ages else None

    def num_older(self, turn_id: TurnId) -> int:
        """Turns of its bucket that wait longer, and all of other buckets: an upper bound of those ahead."""
        _, bucket, place = self._turns[turn_id]
        members = self._buckets[bucket]
        return len(self._turns) - len(members) + bisect_left(members, (place, turn_id))

    def turns(self) -> Iterator[Turn]:
        """All of them, in no order."""
        return (turn for turn, _, _ in self._turns.values())

    def _popping(
        self, tenant: str, attained: float, popped: list[_Entry]
    ) -> Iterator[tuple[int, int, float, _Entry]]:
        """A tenant's valid entries in their order, each taken out of its heap and noted in `popped`."""
        heap = self._heaps[tenant]
        while heap:
            entry = heapq.heappop(heap)
            if self._entries.get(entry[-1]) == entry[-2]:
                popped.append(entry)
                yield entry[0], entry[1], attained, entry

    def _is_stale(self, place: _Place, turn_id: TurnId) -> bool:
        held = self._turns.get(turn_id)
        return held is None or held[2] != place

    def _enter(self, bucket: Bucket) -> None:
        heap = self._heaps.setdefault(bucket.tenant, [])
        if len(heap) > 64 + 4 * len(self._entries):
            heap[:] = [entry for entry in heap if self._entries.get(entry[-1]) == entry[-2]]
            heapq.heapify(heap)
        self._sequence += 1
        self._entries[bucket] = self._sequence
        place = self._buckets[bucket][0][0]
        standing = 2 if bucket.is_parked else not bucket.is_returning
        entry = -bucket.urgency, standing, self._rank(bucket), place, self._sequence, bucket
        heapq.heappush(heap, entry)

    def _leave(self, bucket: Bucket) -> None:
        """Nobody is left in the bucket."""
        del self._buckets[bucket], self._entries[bucket]
        siblings = self._of_family[bucket.family_id]
        siblings.discard(bucket)
        if not siblings:
            del self._of_family[bucket.family_id]
        self._num_buckets[bucket.tenant] -= 1
        if not self._num_buckets[bucket.tenant]:
            del self._num_buckets[bucket.tenant], self._heaps[bucket.tenant]
