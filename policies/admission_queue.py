"""The queue at the gate: turns that wait until the cache of a replica has room for their session.

Its order is by tenant, then by policy, then by age. How long others may overtake a turn is bounded against the
order of arrivals: the queue knows when first come, first served would have admitted each turn.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

from policies.shares import Flow, Shares, firsts, flow_of
from policies.types import FamilyId, Turn, TurnId


class Overtaking:
    """Counts admissions against places. The place of a turn is the number of admissions that come before it in the
    order of arrivals."""

    def __init__(self) -> None:
        self._places: dict[TurnId, int] = {}
        """Counted from the start."""
        self._num_admitted = 0
        self._times: list[float] = []
        """Of the last admissions."""

    def enter(self, turn_id: TurnId, place: int | None = None) -> None:
        """Count a turn as waiting, at the end or in the place that its session kept."""
        self._places[turn_id] = self._num_admitted + len(self._places) if place is None else place

    def leave(self, turn_id: TurnId) -> int:
        """Stop counting a turn, and return its place."""
        return self._places.pop(turn_id)

    def admitted(self, now: float) -> None:
        """Count an admission."""
        self._times.append(now)
        self._num_admitted += 1
        if len(self._times) > 64 + 2 * len(self._places):
            num_kept = self._num_admitted - min(self._places.values(), default=self._num_admitted) + 1
            del self._times[: max(0, len(self._times) - num_kept)]

    def due_at(self, turn_id: TurnId, since: float) -> float | None:
        """Return when a turn that waits since then became the next one in the order of arrivals. None: it has not
        yet."""
        num_since = self._num_admitted - self._places[turn_id]
        if num_since < 0:
            return None
        before = self._times[-1 - num_since] if num_since < len(self._times) else since
        return max(since, before)


# ---- turns that wait, in the policy's order

FAIR = 2.0
"""No turn is overtaken once it has waited this many times as long as first come, first served would have taken."""
LEAST_OVERTAKEN = 4
"""Turns of its flow that may always go before one."""


def most_overtaking(num_waiting: int) -> int:
    """Return how many turns of its flow go before one at most that is the last of so many. The part of its tenant
    may make each wait short, so a bound in seconds does not do for that."""
    return int(max(LEAST_OVERTAKEN, FAIR * num_waiting))


class Bucket(NamedTuple):
    """Waiting turns that the policy ranks alike; the oldest one stands for all. It is the Progress of their
    sessions, as of their arrival."""

    priority_class: int
    is_returning: bool
    """The session was resident before, or is a sub-agent of one that waits for it."""
    tenant: str
    family_id: FamilyId
    num_begun: int
    declared_turns: int | None
    turn_id: TurnId = ""
    """Of its only turn, where the policy ranks each turn by itself."""


Rank: TypeAlias = Callable[[Turn, Bucket], float]
Age: TypeAlias = tuple[float, int]
"""(Held since, sequence number)."""
Key: TypeAlias = tuple[bool, float, Age]
"""Place of a bucket in the order of its flow: (is new, rank, age)."""
NO_TURN: tuple[Age, TurnId] = (math.inf, 0), ""
_Entry: TypeAlias = tuple[bool, float, Age, int, Bucket]
"""A key, a sequence number, and the bucket."""


class _FlowQueue:
    """The buckets of one flow, as heaps. Stale entries stay until they come to the top."""

    __slots__ = ("ages", "entries", "num_left", "num_turns", "weight")

    def __init__(self, weight: float) -> None:
        self.weight = weight
        self.num_turns = self.num_left = 0
        self.entries: list[_Entry] = []
        self.ages: list[tuple[Age, TurnId, int]] = []
        """Each with the number of turns that have left after which too many of the flow went before it."""


class HeldTurns:
    """Holds turns by flow. In a flow returning sessions go before new ones; then the policy's rank decides, then
    age. A bucket is ranked again whenever another turn becomes its oldest."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._turns: dict[TurnId, tuple[Turn, Bucket, Age]] = {}
        self._buckets: dict[Bucket, list[tuple[Age, TurnId]]] = {}
        self._entries: dict[Bucket, _Entry] = {}
        """The one valid entry of each bucket."""
        self.flows: dict[Flow, _FlowQueue] = {}
        """Flows with turns; read-only for others."""
        self._sequence = 0

    def __len__(self) -> int:
        return len(self._turns)

    def __contains__(self, turn_id: TurnId) -> bool:
        return turn_id in self._turns

    def __getitem__(self, turn_id: TurnId) -> Turn:
        return self._turns[turn_id][0]

    def since(self, turn_id: TurnId) -> float:
        """Return when its wait began; earlier than its arrival where its session kept a place."""
        return self._turns[turn_id][2][0]

    def bucket(self, turn_id: TurnId) -> Bucket:
        return self._turns[turn_id][1]

    def put(self, turn: Turn, bucket: Bucket, since: float) -> None:
        self._sequence += 1
        age = (since, self._sequence)
        self._turns[turn.id] = (turn, bucket, age)
        queue = self.flows.get(flow := (bucket.priority_class, bucket.tenant))
        if queue is None:
            queue = self.flows[flow] = _FlowQueue(turn.weight)
        queue.num_turns += 1
        members = self._buckets.setdefault(bucket, [])
        insort(members, (age, turn.id))
        if bucket.priority_class >= 0:
            heapq.heappush(queue.ages, (age, turn.id, queue.num_left + most_overtaking(queue.num_turns)))
        if members[0][1] == turn.id:
            self._enter(bucket)

    def remove(self, turn_id: TurnId) -> Turn:
        """Remove a turn, wherever it stands."""
        turn, bucket, age = self._turns.pop(turn_id)
        members = self._buckets[bucket]
        index = bisect_left(members, (age, turn_id))
        del members[index]
        if not members:
            del self._buckets[bucket], self._entries[bucket]
        elif index == 0:
            self._enter(bucket)
        queue = self.flows[flow := (bucket.priority_class, bucket.tenant)]
        queue.num_turns, queue.num_left = queue.num_turns - 1, queue.num_left + 1
        if not queue.num_turns:
            del self.flows[flow]
        return turn

    def heads(self, most: int, flows: Sequence[Flow], is_shared: bool = False) -> list[Turn]:
        """Return the first turn of each of the `most` best buckets, best first. The flows keep their order, and
        each of several tenants has an equal part of the number. `is_shared`: turns of several tenants come here;
        then the oldest turn of a flow goes before those of its standing once too many of the flow overtook it."""
        if len(flows) == 1 and not is_shared:
            return self._best(flows[0], most)
        flows = flows[:most]
        left = dict.fromkeys((tenant for _, tenant in flows), 0)
        left = dict.fromkeys(left, most // len(left))
        heads: list[Turn] = []
        for flow in flows:
            best = self._best(flow, left[flow[1]])
            left[flow[1]] -= len(best)
            if is_shared and best and (overtaken := self._overtaken(flow, best[0])) is not None:
                best = [overtaken, *(turn for turn in best if turn is not overtaken)][: len(best)]
            heads += best
        return heads

    def oldest(self, flow: Flow) -> tuple[Age, TurnId]:
        """Return the turn of the flow that has waited longest; NO_TURN for a class below 0, whose waits have no
        bound."""
        if flow[0] < 0:
            return NO_TURN
        ages = self.flows[flow].ages
        turns = self._turns
        while (held := turns.get(ages[0][1])) is None or held[2] != ages[0][0]:
            heapq.heappop(ages)
        return ages[0][:2]

    def num_of(self, tenant: str) -> int:
        """Return the number of the tenant's turns."""
        return sum(queue.num_turns for flow, queue in self.flows.items() if flow[1] == tenant)

    def key(self, turn: Turn, bucket: Bucket, since: float) -> Key:
        """Return the place that a turn would have."""
        return not bucket.is_returning, self._rank(turn, bucket), (since, self._sequence + 1)

    def num_before(self, flow: Flow, turn_id: TurnId | None = None, key: Key | None = None) -> int:
        """Return how many turns at most go before one of the flow: a waiting one, or one that arrives now.

        Counted are the older turns of its bucket, all other buckets of its tenant, and as many turns of other
        tenants as their shares allow. `key`: place of a turn that the policy ranks by itself; then only what is
        better counts of its flow.
        """
        num = self.num_of(flow[1])
        if turn_id is not None:
            _, bucket, age = self._turns[turn_id]
            members = self._buckets[bucket]
            num += bisect_left(members, (age, turn_id)) - len(members)
            key = self._entries[bucket][:3] if bucket.turn_id else None
        if key is not None:
            of_flow = (entry for entry in self._entries.values() if (entry[-1][0], entry[-1].tenant) == flow)
            num = sum(entry[:3] < key for entry in of_flow)
        return num + self._num_of_others(flow, num + 1)

    def counts(self) -> Iterator[tuple[Bucket, int]]:
        """Return the number of turns of each bucket."""
        return ((bucket, len(turns)) for bucket, turns in self._buckets.items())

    def turns(self) -> Iterator[Turn]:
        """Return all turns, in no order."""
        return (turn for turn, _, _ in self._turns.values())

    def _num_of_others(self, flow: Flow, num_own: int) -> int:
        """Return the number of turns of other tenants that go before so many of the flow."""
        own, num = self.flows.get(flow), 0
        for (priority_class, tenant), queue in self.flows.items():
            if tenant == flow[1] or priority_class < flow[0]:
                continue
            share = 1.0 if own is None else queue.weight / own.weight
            is_higher = priority_class > flow[0]
            num += queue.num_turns if is_higher else min(queue.num_turns, math.ceil(num_own * share))
        return num

    def _overtaken(self, flow: Flow, best: Turn) -> Turn | None:
        """Return the oldest turn of the flow if too many of the flow went before it. A new session does not take
        the room of one in mid-run for that: it would be computed again."""
        _, turn_id = self.oldest(flow)
        queue = self.flows[flow]
        if not turn_id or queue.ages[0][2] > queue.num_left + 1:
            return None
        is_kept = self.bucket(turn_id).is_returning >= self.bucket(best.id).is_returning
        return self[turn_id] if is_kept else None

    def _best(self, flow: Flow, most: int) -> list[Turn]:
        """Return the first turns of the flow's best buckets, and drop stale entries on the way."""
        heap, valid = self.flows[flow].entries, list[_Entry]()
        while heap and len(valid) < most:
            entry = heapq.heappop(heap)
            if self._entries.get(entry[-1]) is entry:
                valid.append(entry)
        for entry in valid:
            heapq.heappush(heap, entry)
        return [self[self._buckets[entry[-1]][0][1]] for entry in valid]

    def _enter(self, bucket: Bucket) -> None:
        """Give the bucket a new entry, in the place of its earlier one."""
        heap = self.flows[bucket.priority_class, bucket.tenant].entries
        if len(heap) > 64 + 4 * len(self._entries):
            heap[:] = [entry for entry in heap if self._entries.get(entry[-1]) is entry]
            heapq.heapify(heap)
        self._sequence += 1
        age, turn_id = self._buckets[bucket][0]
        rank = self._rank(self[turn_id], bucket)
        entry = self._entries[bucket] = (not bucket.is_returning, rank, age, self._sequence, bucket)
        heapq.heappush(heap, entry)


# ---- the queue of one model

FEWEST_RECENT, MOST_RECENT = 5, 64
"""Admissions that a wait is estimated from."""


class AdmissionQueue:
    """The turns that wait for one model. Each model has its own queue, so turns for one model never hold up those
    for another."""

    def __init__(self, rank: Rank) -> None:
        self.held = HeldTurns(rank)
        self.shares = Shares()
        """Of the tokens that are computed for this model."""
        self._overtaking = Overtaking()
        self._recent: deque[float] = deque(maxlen=MOST_RECENT)
        """Times of admissions since the queue was last empty."""

    def put(self, turn: Turn, bucket: Bucket, since: float, place: int | None, now: float) -> None:
        """Queue a turn. `place`: the one that its session kept; None: at the end."""
        flow = flow_of(turn)
        if flow not in self.held.flows:
            self.shares.joined(flow, self.held.flows, now)
        self.held.put(turn, bucket, since)
        self._overtaking.enter(turn.id, place)

    def remove(self, turn_id: TurnId) -> tuple[Turn, int]:
        """Remove a turn, served or not; return it and its place."""
        turn = self.held.remove(turn_id)
        if not self.held:
            self._recent.clear()
        return turn, self._overtaking.leave(turn_id)

    def admitted(self, now: float) -> None:
        """Count the admission of the turn that was removed last, or that never had to wait."""
        self._overtaking.admitted(now)
        if self.held:
            self._recent.append(now)

    def is_behind(self, turn: Turn, now: float) -> bool:
        """Whether turns of other flows go before those of this one, since they got less."""
        flows = self.held.flows
        return len(flows) > 1 and self.shares.in_order(flows, now)[0] != flow_of(turn)

    def behind_tokens(self, flow: Flow, flows: Iterable[Flow], now: float) -> float:
        """Return by how much the flow got less than each other of its class among these; 0 where there is none."""
        got = self.shares.got(flow, now)
        others = (self.shares.got(other, now) for other in flows if other[0] == flow[0] and other != flow)
        return min(others, default=got) - got

    def candidates(
        self, flows: Sequence[Flow], most: int, bound_s: float, now: float, is_shared: bool = False
    ) -> tuple[list[Turn], bool]:
        """Return the turns of these flows that may go next, best first, and whether idle residents have to yield
        to them. Of several flows the next one has that right as soon as any turn waits too long: its admission
        brings that turn nearer. `is_shared`: see `HeldTurns.heads`."""
        if not flows:
            return [], False
        flows = self.shares.in_order(flows, now)
        next_at, any_at, turn_id = self._overdue_at(flows, bound_s)
        if next_at <= now:
            return [self.held[turn_id]], True
        if any_at <= now:
            return self.held.heads(1, flows[:1], is_shared), True
        return self.held.heads(most, flows, is_shared), False

    def overdue_at(self, bound_s: float, now: float) -> float:
        """Return when the next turn will have waited too long; infinite while none is due to."""
        flows = self.held.flows
        if len(flows) == 1:
            at = self._after(*self.held.oldest(next(iter(flows))), bound_s)
            return at if at > now else math.inf
        if not flows:
            return math.inf
        next_at, any_at, _ = self._overdue_at(self.shares.in_order(flows, now), bound_s)
        return min((at for at in (next_at, any_at) if at > now), default=math.inf)

    def _overdue_at(self, flows: list[Flow], bound_s: float) -> tuple[float, float, TurnId]:
        """Return from when the oldest turn of the flows that are next in their classes has waited too long, from
        when the oldest of all has, and the former's id.

        A wait is too long after the bound, and after FAIR times the wait in the order of arrivals. Before that
        order has come to a turn, all wait alike.
        """
        if len(self.held.flows) == 1:
            age, turn_id = self.held.oldest(flows[0])
            at = self._after(age, turn_id, bound_s)
            return at, at, turn_id
        age, turn_id = min(map(self.held.oldest, firsts(flows)))
        of_all = min(map(self.held.oldest, self.held.flows))
        return self._after(age, turn_id, bound_s), self._after(*of_all, bound_s), turn_id

    def _after(self, age: Age, turn_id: TurnId, bound_s: float) -> float:
        if not turn_id:
            return math.inf
        since = age[0]
        due_at = self._overtaking.due_at(turn_id, since)
        return math.inf if due_at is None else since + max(bound_s, FAIR * (due_at - since))

    def expected_wait_s(
        self, now: float, flow: Flow, turn_id: TurnId | None = None, key: Key | None = None
    ) -> float:
        """Estimate the further wait of a turn at the rate of recent admissions; see `HeldTurns.num_before`.

        Returns 0 before enough admissions were seen. They come in bursts, and a client that is refused for nothing
        is worse off than one that waits.
        """
        if len(self._recent) < FEWEST_RECENT:
            return 0.0
        return (self.held.num_before(flow, turn_id, key) + 1) * (now - self._recent[0]) / len(self._recent)
