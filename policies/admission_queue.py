"""When first come, first served would have let each waiting turn in; the bound on waiting is stated against it."""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

from policies.shares import Flow, Shares, firsts, flow_of
from policies.types import FamilyId, Turn, TurnId


class Overtaking:
    """Counts admissions against places: a turn that found n others waiting would have been the n-th after it."""

    def __init__(self) -> None:
        self._places: dict[TurnId, int] = {}
        """How many admissions come before a turn, counted from the start."""
        self._num_admitted = 0
        self._times: list[float] = []
        """Of the last admissions."""

    def enter(self, turn_id: TurnId, place: int | None = None) -> None:
        """A turn begins to wait, at the end or in the place that its session kept."""
        self._places[turn_id] = self._num_admitted + len(self._places) if place is None else place

    def leave(self, turn_id: TurnId) -> int:
        """It waits no more; returns its place."""
        return self._places.pop(turn_id)

    def admitted(self, now: float) -> None:
        """Somebody was let in."""
        self._times.append(now)
        self._num_admitted += 1
        if len(self._times) > 64 + 2 * len(self._places):
            num_kept = self._num_admitted - min(self._places.values(), default=self._num_admitted) + 1
            del self._times[: max(0, len(self._times) - num_kept)]

    def due_at(self, turn_id: TurnId, since: float) -> float | None:
        """When, in the order of arrivals, a turn that waits since then was the next. None: it is not yet."""
        num_since = self._num_admitted - self._places[turn_id]
        if num_since < 0:
            return None
        before = self._times[-1 - num_since] if num_since < len(self._times) else since
        return max(since, before)


# ---- turns that wait at the gate, in the policy's order


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
Place: TypeAlias = tuple[float, int]
"""(Held since, sequence number)."""
NOBODY: tuple[Place, TurnId] = (math.inf, 0), ""
_Entry: TypeAlias = tuple[int, float, Place, int, Bucket]


class _Queue:
    """The buckets of one flow."""

    __slots__ = ("ages", "entries", "num_turns", "weight")

    def __init__(self, weight: float) -> None:
        self.weight = weight
        self.num_turns = 0
        self.entries: list[_Entry] = []
        self.ages: list[tuple[Place, TurnId]] = []


class HeldTurns:
    """In a flow returning before new, new before parked; the policy's rank, then age."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._turns: dict[TurnId, tuple[Turn, Bucket, Place]] = {}
        self._buckets: dict[Bucket, list[tuple[Place, TurnId]]] = {}
        self._of_family: dict[FamilyId, set[Bucket]] = {}
        self._entries: dict[Bucket, int] = {}
        """The number of the bucket's one valid entry in its flow's heap."""
        self.flows: dict[Flow, _Queue] = {}
        """Those that wait; nobody else changes them."""
        self._sequence = 0

    def __len__(self) -> int:
        return len(self._turns)

    def __contains__(self, turn_id: TurnId) -> bool:
        return turn_id in self._turns

    def __getitem__(self, turn_id: TurnId) -> Turn:
        return self._turns[turn_id][0]

    def since(self, turn_id: TurnId) -> float:
        """When its wait began; earlier than its arrival if its session kept a place."""
        return self._turns[turn_id][2][0]

    def bucket(self, turn_id: TurnId) -> Bucket:
        return self._turns[turn_id][1]

    def put(self, turn: Turn, bucket: Bucket, since: float) -> None:
        self._sequence += 1
        place = (since, self._sequence)
        self._turns[turn.id] = (turn, bucket, place)
        queue = self.flows.get(flow := (bucket.urgency, bucket.tenant))
        if queue is None:
            queue = self.flows[flow] = _Queue(turn.weight)
        queue.num_turns += 1
        members = self._buckets.setdefault(bucket, [])
        insort(members, (place, turn.id))
        if bucket.urgency >= 0:
            heapq.heappush(queue.ages, (place, turn.id))
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
        queue = self.flows[flow := (bucket.urgency, bucket.tenant)]
        queue.num_turns -= 1
        if not queue.num_turns:
            del self.flows[flow]
        return turn

    def rerank(self, family_id: FamilyId) -> None:
        """The family's statistics changed."""
        for bucket in self._of_family.get(family_id, ()):
            self._enter(bucket)

    def heads(self, most: int, flows: Sequence[Flow]) -> list[Turn]:
        """The first turn of each of the `most` best buckets, best first, the flows in their order; of several
        tenants none takes the part of another."""
        if len(flows) == 1:
            return self._best(flows[0], most)
        flows = flows[:most]
        left = dict.fromkeys((tenant for _, tenant in flows), 0)
        left = dict.fromkeys(left, most // len(left))
        heads: list[Turn] = []
        for flow in flows:
            best = self._best(flow, left[flow[1]])
            left[flow[1]] -= len(best)
            heads += best
        return heads

    def oldest(self, flow: Flow) -> tuple[Place, TurnId]:
        """The turn of the flow that has waited longest. Nobody of a class below 0: they wait while others come."""
        if flow[0] < 0:
            return NOBODY
        ages = self.flows[flow].ages
        turns = self._turns
        while (held := turns.get(ages[0][1])) is None or held[2] != ages[0][0]:
            heapq.heappop(ages)
        return ages[0]

    def num_of(self, tenant: str) -> int:
        """Turns of the tenant."""
        return sum(queue.num_turns for flow, queue in self.flows.items() if flow[1] == tenant)

    def num_before(self, flow: Flow, turn_id: TurnId | None = None) -> int:
        """At most so many turns go before this one, or before one of the flow that comes now: those of its bucket
        that wait longer, all of its tenant's other buckets, and of others as many as their share lets go."""
        num = self.num_of(flow[1])
        if turn_id is not None:
            _, bucket, place = self._turns[turn_id]
            members = self._buckets[bucket]
            num += bisect_left(members, (place, turn_id)) - len(members)
        return num + self._num_of_others(flow, num + 1)

    def turns(self) -> Iterator[Turn]:
        """All of them, in no order."""
        return (turn for turn, _, _ in self._turns.values())

    def _num_of_others(self, flow: Flow, num_own: int) -> int:
        """Turns of other tenants that go before so many of the flow."""
        own, num = self.flows.get(flow), 0
        for (urgency, tenant), queue in self.flows.items():
            if tenant == flow[1] or urgency < flow[0]:
                continue
            share = 1.0 if own is None else queue.weight / own.weight
            num += queue.num_turns if urgency > flow[0] else min(queue.num_turns, math.ceil(num_own * share))
        return num

    def _best(self, flow: Flow, most: int) -> list[Turn]:
        """The first turns of its best buckets; stale entries are dropped on the way."""
        heap, valid = self.flows[flow].entries, list[_Entry]()
        while heap and len(valid) < most:
            entry = heapq.heappop(heap)
            if self._entries.get(entry[-1]) == entry[-2]:
                valid.append(entry)
        for entry in valid:
            heapq.heappush(heap, entry)
        return [self[self._buckets[entry[-1]][0][1]] for entry in valid]

    def _enter(self, bucket: Bucket) -> None:
        heap = self.flows[bucket.urgency, bucket.tenant].entries
        if len(heap) > 64 + 4 * len(self._entries):
            heap[:] = [entry for entry in heap if self._entries.get(entry[-1]) == entry[-2]]
            heapq.heapify(heap)
        self._sequence += 1
        self._entries[bucket] = self._sequence
        place = self._buckets[bucket][0][0]
        standing = 2 if bucket.is_parked else not bucket.is_returning
        heapq.heappush(heap, (standing, self._rank(bucket), place, self._sequence, bucket))

    def _leave(self, bucket: Bucket) -> None:
        """Nobody is left in the bucket."""
        del self._buckets[bucket], self._entries[bucket]
        siblings = self._of_family[bucket.family_id]
        siblings.discard(bucket)
        if not siblings:
            del self._of_family[bucket.family_id]


# ---- the line of turns that wait for one model: their order, and how the wait goes

FEWEST_RECENT, MOST_RECENT = 5, 64
"""Admissions that a wait is estimated from."""
FAIR = 2.0
"""Nobody waits longer than this many times what it would have waited first come, first served."""


class Line:
    """One for each model, so that who waits for one never holds up who waits for another."""

    def __init__(self, rank: Rank) -> None:
        self.held = HeldTurns(rank)
        self.shares = Shares()
        """Of the tokens that are computed for this model."""
        self._overtaking = Overtaking()
        self._recent: deque[float] = deque(maxlen=MOST_RECENT)
        """Times of admissions since the line was last empty."""

    def put(self, turn: Turn, bucket: Bucket, since: float, place: int | None, now: float) -> None:
        """`place`: the one that its session kept; None: at the end."""
        flow = flow_of(turn)
        if flow not in self.held.flows:
            self.shares.joined(flow, self.held.flows, now)
        self.held.put(turn, bucket, since)
        self._overtaking.enter(turn.id, place)

    def take(self, turn_id: TurnId) -> tuple[Turn, int]:
        """A turn leaves, served or not; also its place."""
        turn = self.held.take(turn_id)
        if not self.held:
            self._recent.clear()
        return turn, self._overtaking.leave(turn_id)

    def admitted(self, now: float) -> None:
        """Who was taken last, or never had to wait, has been let in."""
        self._overtaking.admitted(now)
        if self.held:
            self._recent.append(now)

    def candidates(self, most: int, bound_s: float, now: float) -> tuple[list[Turn], bool]:
        """Who may go next, best first, and whether everybody makes way for it. Of several flows the next one has
        that right as soon as anybody waits too long, so that its admission brings that one nearer."""
        if not self.held:
            return [], False
        flows = self.shares.in_order(self.held.flows, now)
        next_at, any_at, turn_id = self._overdue_at(flows, bound_s)
        if next_at <= now:
            return [self.held[turn_id]], True
        if any_at <= now:
            return self.held.heads(1, flows[:1]), True
        return self.held.heads(most, flows), False

    def overdue_at(self, bound_s: float, now: float) -> float:
        """From when on somebody has waited too long who has not yet; infinite while nobody knows."""
        flows = self.held.flows
        if len(flows) == 1:
            at = self._after(*self.held.oldest(next(iter(flows))), bound_s)
            return at if at > now else math.inf
        if not flows:
            return math.inf
        next_at, any_at, _ = self._overdue_at(self.shares.in_order(flows, now), bound_s)
        return min((at for at in (next_at, any_at) if at > now), default=math.inf)

    def _overdue_at(self, flows: list[Flow], bound_s: float) -> tuple[float, float, TurnId]:
        """From when everybody makes way for who has waited longest of the flows that are next in each class, which
        is told; and of all. That is after the bound, and not before it has waited FAIR times as long as in the
        order of arrivals; until that order has come to it, all wait alike."""
        if len(flows) == 1:
            place, turn_id = self.held.oldest(flows[0])
            at = self._after(place, turn_id, bound_s)
            return at, at, turn_id
        place, turn_id = min(map(self.held.oldest, firsts(flows)))
        of_all = min(map(self.held.oldest, flows))
        return self._after(place, turn_id, bound_s), self._after(*of_all, bound_s), turn_id

    def _after(self, place: Place, turn_id: TurnId, bound_s: float) -> float:
        if not turn_id:
            return math.inf
        since = place[0]
        due_at = self._overtaking.due_at(turn_id, since)
        return math.inf if due_at is None else since + max(bound_s, FAIR * (due_at - since))

    def expected_wait_s(self, now: float, flow: Flow, turn_id: TurnId | None = None) -> float:
        """Further wait of a turn of the flow, or of one that comes now, at the pace of recent admissions; 0 before
        enough were seen: they come in bursts, and a client that is refused for nothing is worse off than one that
        waits."""
        if len(self._recent) < FEWEST_RECENT:
            return 0.0
        return (self.held.num_before(flow, turn_id) + 1) * (now - self._recent[0]) / len(self._recent)
