"""The queue of one replica: turns that may run as soon as a slot is free. Tenants go by their shares; of a tenant
the best turn goes first, and none is overtaken for ever."""

from __future__ import annotations

import heapq
from typing import TypeAlias

from policies.admission_queue import FAIR, most_overtaking
from policies.shares import Flow, Rates, Shares, firsts, flow_of
from policies.types import Turn, TurnId

SlotKey: TypeAlias = tuple[float, ...]


class _SlotQueue:
    """The turns of one flow, as heaps. Stale entries stay until they come to the top."""

    __slots__ = ("best", "num_dispatched", "num_waiting", "oldest")

    def __init__(self) -> None:
        self.num_waiting = self.num_dispatched = 0
        self.best: list[tuple[SlotKey, int, TurnId]] = []
        self.oldest: list[tuple[float, int, int, TurnId]] = []
        """Each with the number of dispatches, and of those of its flow, after which FAIR times as many went before
        it as in the order of arrivals."""


class DispatchQueue:
    """Holds the turns of a flow in the order of the keys that they came with. A turn of a class below 0 waits for
    as long as others come."""

    def __init__(self) -> None:
        self.shares = Shares()
        """Of the tokens that its replica computes."""
        self.rates = Rates()
        self._turns: dict[TurnId, Turn] = {}
        self._lone: tuple[Turn, SlotKey] | None = None
        """The only turn, with its key: it is in no heap before another one comes."""
        self._queues: dict[Flow, _SlotQueue] = {}
        self._num_put = 0
        self._num_dispatched = 0

    def __len__(self) -> int:
        return len(self._turns)

    def __contains__(self, turn_id: TurnId) -> bool:
        return turn_id in self._turns

    def num_of(self, flow: Flow) -> int:
        """Return the number of turns of the flow."""
        queue = self._queues.get(flow)
        return 0 if queue is None else queue.num_waiting

    def put(self, turn: Turn, key: SlotKey, now: float) -> None:
        queue = self._queues.get(flow := (turn.priority_class, turn.tenant))
        if queue is None:
            queue = self._queues[flow] = _SlotQueue()
        if not queue.num_waiting and len(self._queues) > 1:
            self.shares.joined(flow, self._waiting(), now)
        if self._lone is not None:
            self._rank(*self._lone)
            self._lone = None
        self._turns[turn.id] = turn
        queue.num_waiting += 1
        if len(self._turns) == 1:
            self._lone = turn, key
        else:
            self._rank(turn, key)

    def _rank(self, turn: Turn, key: SlotKey) -> None:
        """Put a turn into the heaps of its flow."""
        queue = self._queues[turn.priority_class, turn.tenant]
        self._num_put += 1
        heapq.heappush(queue.best, (key, self._num_put, turn.id))
        if turn.priority_class >= 0:
            due = self._num_dispatched + FAIR * len(self._turns)
            own_due = queue.num_dispatched + most_overtaking(queue.num_waiting)
            heapq.heappush(queue.oldest, (turn.arrived_at, int(due), own_due, turn.id))
        if len(queue.best) + len(queue.oldest) > 128 + 4 * queue.num_waiting:  # most have left from the middle
            queue.best = [entry for entry in queue.best if entry[2] in self._turns]
            queue.oldest = [entry for entry in queue.oldest if entry[3] in self._turns]
            heapq.heapify(queue.best)
            heapq.heapify(queue.oldest)

    def pop(self, arrived_at: float, now: float) -> Turn:
        """Remove the best turn of the flow that is next; but the oldest one, where it arrived by then and was
        overtaken too often. Of several flows the oldest turn goes as soon as it was overtaken too often by turns
        of its own: their part of the slots may make each wait short. The queue must not be empty."""
        self._num_dispatched += 1
        turns = self._turns
        if len(turns) == 1:
            _, turn = turns.popitem()
            self._lone = None
            queue = self._queues[turn.priority_class, turn.tenant]
            queue.num_waiting, queue.num_dispatched = queue.num_waiting - 1, queue.num_dispatched + 1
            return turn
        queue, oldest_queue = self._next(now)
        if oldest_queue is not None:
            arrived, due, _, turn_id = oldest_queue.oldest[0]
            if arrived <= arrived_at and due <= self._num_dispatched:
                return self._take(oldest_queue, turn_id)
        if queue.oldest and self.is_shared and queue.oldest[0][2] <= queue.num_dispatched + 1:
            return self._take(queue, queue.oldest[0][3])
        while (turn_id := heapq.heappop(queue.best)[2]) not in turns:
            pass
        return self._take(queue, turn_id)

    @property
    def is_shared(self) -> bool:
        """Whether turns of several tenants came here."""
        return any(tenant != next(iter(self._queues))[1] for _, tenant in self._queues)

    def _take(self, queue: _SlotQueue, turn_id: TurnId) -> Turn:
        queue.num_waiting, queue.num_dispatched = queue.num_waiting - 1, queue.num_dispatched + 1
        return self._turns.pop(turn_id)

    def remove(self, turn_id: TurnId) -> Turn:
        turn = self._turns.pop(turn_id)
        self._lone = None
        self._queues[flow_of(turn)].num_waiting -= 1
        return turn

    def is_behind(self, turn: Turn, now: float) -> bool:
        """Whether turns of other flows that wait go before those of this one, since they got less."""
        flows = self._waiting() if len(self._queues) > 1 else []
        return len(flows) > 1 and self.shares.in_order(flows, now)[0] != flow_of(turn)

    def is_ahead(self, now: float) -> bool:
        """Whether the turn that is next is of a flow that got more than one of no lower class that has turns
        running and none waiting. The queue must not be empty."""
        return self.shares.is_ahead(self.shares.in_order(self._waiting(), now)[0], now)

    def drain(self) -> list[Turn]:
        """Remove all turns; return them in the order in which they came."""
        turns = list(self._turns.values())
        self._turns.clear()
        self._lone = None
        self._queues.clear()
        return turns

    def _waiting(self) -> list[Flow]:
        return [flow for flow, queue in self._queues.items() if queue.num_waiting]

    def _next(self, now: float) -> tuple[_SlotQueue, _SlotQueue | None]:
        """Return the queue of the next flow; and of the flows that are next in their classes the one with the
        oldest turn."""
        if len(self._queues) == 1:
            [queue] = nexts = list(self._queues.values())
        else:
            nexts = [self._queues[flow] for flow in firsts(self.shares.in_order(self._waiting(), now))]
            queue = nexts[0]
        for one in nexts:
            while one.oldest and one.oldest[0][3] not in self._turns:
                heapq.heappop(one.oldest)
        with_oldest = [one for one in nexts if one.oldest]
        return queue, min(with_oldest, key=lambda one: one.oldest[0], default=None)
