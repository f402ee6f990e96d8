"""What a scheduler could do at best: arms that know the future, and bounds that no schedule beats."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import TypeAlias

from benchmarks.simulation.simulator import Decider, World
from benchmarks.simulation.workloads import AgentRun, everyone
from policies.admission import Limits
from policies.admission_queue import FAIR, Overtaking
from policies.types import Arrived, Decision, Dispatch, Fact, Left, Reason, ReplicaReported, Turn, TurnKind

Key: TypeAlias = Callable[[AgentRun], float]
Waiting: TypeAlias = tuple[float, str, Turn]
"""(key, turn's id, turn)."""
Size: TypeAlias = Callable[[AgentRun, bool], float]
"""(run, whether a sibling is resident there) -> the room that it takes of a replica."""


def work_s(run: AgentRun, world: World, batch: float = 16.0) -> float:
    """Engine seconds that a run costs when nothing of it is evicted, beside `batch` - 1 others."""
    timing = world.spec.timing
    total_s, known_tokens = 0.0, run.calls[0].text.parts[0][0]
    for call in run.calls:
        total_s += timing.prefill_token_s * max(0, call.prompt_tokens - known_tokens)
        token_s = timing.decode_base_s / batch + timing.decode_sequence_s
        total_s += call.output_tokens * (token_s + timing.decode_kv_token_s * call.prompt_tokens)
        known_tokens = call.prompt_tokens
    return total_s


@dataclass(slots=True)
class _Pool:
    replica_id: str
    running: dict[str, AgentRun] = field(default_factory=dict)
    families: Counter[str] = field(default_factory=Counter)
    used: float = 0.0


def peaks(run: AgentRun, has_sibling: bool) -> float:
    """Tokens of its largest context, without the prefix that a resident sibling has brought."""
    return run.peak_tokens - (run.calls[0].text.parts[0][0] if has_sibling else 0)


def one(_run: AgentRun, _has_sibling: bool) -> float:
    """Sessions are counted, whatever their size."""
    return 1.0


class Clairvoyant:
    """Admits sessions that fit until their real end, and never asks again: known sizes and ends, no lease, no
    estimate. Of those that wait the smallest `key` goes first, and none overtakes it. Without sub-agents."""

    def __init__(self, runs: Sequence[AgentRun], key: Key, room: float, size: Size = peaks) -> None:
        """`room`: what the sizes of the residents of one replica may add up to."""
        self._runs = {run.id: run for run in runs}
        self._key, self._room, self._size = key, room, size
        self._pools: list[_Pool] = []
        self._homes: dict[str, _Pool] = {}
        self._turns: dict[str, Turn] = {}
        self._num_left: Counter[str] = Counter()
        self._waiting: list[Waiting] = []

    def tell(self, fact: Fact, _now: float) -> tuple[list[Decision], float | None]:
        decisions: list[Decision] = []
        match fact:
            case ReplicaReported(replica_id):
                self._pools.append(_Pool(replica_id))
            case Arrived(turn):
                self._turns[turn.id] = turn
                home = self._homes.get(turn.session_id)
                if home is None and turn.kind is not TurnKind.SIDE:
                    heapq.heappush(self._waiting, (self._key(self._runs[turn.session_id]), turn.id, turn))
                else:
                    decisions.append(Dispatch(turn.id, (home or self._pools[0]).replica_id, Reason.RESIDENT, 0))
            case Left(turn_id):
                self._left(self._turns.pop(turn_id))
        self._admit(decisions)
        return decisions, None

    def _left(self, turn: Turn) -> None:
        if turn.kind is TurnKind.SIDE:
            return
        run = self._runs[turn.session_id]
        self._num_left[run.id] += 1
        if self._num_left[run.id] == len(run.calls):
            pool = self._homes.pop(run.id)
            pool.families[run.family_id] -= 1
            pool.used -= self._need(run, pool)
            del pool.running[run.id]

    def _admit(self, decisions: list[Decision]) -> None:
        while self._waiting:
            entry = self._next()
            turn = entry[2]
            run = self._runs[turn.session_id]
            pool = min(self._pools, key=lambda pool: pool.used)
            need = self._need(run, pool)
            if pool.running and pool.used + need > self._room:
                return
            self._waiting.remove(entry)
            heapq.heapify(self._waiting)
            pool.used += need
            pool.families[run.family_id] += 1
            pool.running[run.id] = run
            self._homes[run.id] = pool
            decisions.append(Dispatch(turn.id, pool.replica_id, Reason.ADMITTED, 0))

    def _next(self) -> Waiting:
        """The one that goes before all others that wait."""
        return self._waiting[0]

    def _need(self, run: AgentRun, pool: _Pool) -> float:
        return self._size(run, pool.families[run.family_id] > 0)


class Punctual(Clairvoyant):
    """The same, but a session that has waited past the bound of the policy goes first."""

    def __init__(self, runs: Sequence[AgentRun], key: Key, room: float, size: Size = peaks) -> None:
        super().__init__(runs, key, room, size)
        self._now, self._overtaking = 0.0, Overtaking()

    def tell(self, fact: Fact, now: float) -> tuple[list[Decision], float | None]:
        self._now = now
        if isinstance(fact, Arrived) and fact.turn.session_id not in self._homes:
            self._overtaking.enter(fact.turn.id)
        decided = super().tell(fact, now)
        for decision in decided[0]:
            if isinstance(decision, Dispatch) and decision.reason is Reason.ADMITTED:
                self._overtaking.leave(decision.turn_id)
                self._overtaking.admitted(now)
        return decided

    def _next(self) -> Waiting:
        oldest = min(self._waiting, key=lambda entry: entry[2].arrived_at)
        since = oldest[2].arrived_at
        due_at = self._overtaking.due_at(oldest[2].id, since)
        if due_at is None or self._now < since + max(Limits().hold_bound_s, FAIR * (due_at - since)):
            return super()._next()
        return oldest


def shortest_first(runs: Sequence[AgentRun], world: World, budget: float) -> Clairvoyant:
    """Fits real peaks into `budget` of the cache, least real work first."""
    room = budget * world.spec.num_blocks * world.spec.block_tokens
    return Clairvoyant(runs, lambda run: work_s(run, world), room)


def shortest_in_bounds(runs: Sequence[AgentRun], world: World, budget: float) -> Clairvoyant:
    """The same, but a session that has waited past the bound goes first."""
    room = budget * world.spec.num_blocks * world.spec.block_tokens
    return Punctual(runs, lambda run: work_s(run, world), room)


def session_cap(runs: Sequence[AgentRun], _world: World, num_sessions: int) -> Clairvoyant:
    """At most that many sessions per replica, first come first served; it knows when a session has ended."""
    places = {run.id: float(place) for place, run in enumerate(runs)}
    return Clairvoyant(runs, lambda run: places[run.id], num_sessions, one)


class RequestCap:
    """The Scheduler behind engines that seem to have fewer slots."""

    def __init__(self, scheduler: Decider, num_requests: int) -> None:
        self._scheduler, self._num_requests = scheduler, num_requests

    def tell(self, fact: Fact, now: float) -> tuple[list[Decision], float | None]:
        if isinstance(fact, ReplicaReported):
            fact = replace(fact, slots=self._num_requests)
        return self._scheduler.tell(fact, now)


class SumLedger:
    """The Scheduler with a ledger that counts each session whole, as the published gates do: no two sessions
    seem to share anything."""

    def __init__(self, scheduler: Decider) -> None:
        self._scheduler = scheduler

    def tell(self, fact: Fact, now: float) -> tuple[list[Decision], float | None]:
        if isinstance(fact, Arrived):
            turn = fact.turn
            salt = int.from_bytes(blake2b(turn.session_id.encode(), digest_size=8).digest())
            fact = Arrived(replace(turn, blocks=[block ^ salt for block in turn.blocks]))
        return self._scheduler.tell(fact, now)


def floor_tokens(runs: Sequence[AgentRun], rehits_outputs: bool = False) -> int:
    """Prompt tokens that even an infinite cache must compute; blocks taken as one token."""
    seen: set[str] = set()
    total = 0
    for run in sorted(everyone(runs), key=lambda run: run.parent_id is not None):
        known_tokens, first = 0, run.calls[0]
        for end, author in first.text.parts:
            known_tokens = min(end, first.prompt_tokens) if author in seen else known_tokens
        for call in run.calls:
            total += max(0, call.prompt_tokens - known_tokens)
            known_tokens = call.prompt_tokens + (call.output_tokens if rehits_outputs else 0)
            seen.update(author for end, author in call.text.parts)
    return total


def makespan_bound_s(runs: Sequence[AgentRun], world: World, at_peaks: bool = False) -> float:
    """Least makespan by engine work (facts, fleet anchors): floor tokens and output tokens at their cost, in
    batches as large as the cache holds at mean footprints, or at peaks. Without ramp, tail and tool waits, so it
    is not reachable; nor can the fleet end before its last arrival.
    """
    timing = world.spec.timing
    calls = [call for run in everyone(runs) for call in run.calls]
    shared_tokens = min(run.calls[0].text.parts[0][0] for run in runs)
    footprints = [call.prompt_tokens + call.output_tokens / 2 - shared_tokens for call in calls]
    if at_peaks:
        footprints = [float(run.peak_tokens - shared_tokens) for run in runs]
    capacity_tokens = world.spec.num_blocks * world.spec.block_tokens - shared_tokens
    batch = min(float(len(runs)), max(1.0, capacity_tokens * len(footprints) / sum(footprints)))
    prefill_s = floor_tokens(runs, world.rehits_outputs) * timing.prefill_token_s
    decode_s = sum(
        call.output_tokens
        * (
            timing.decode_base_s / min(batch, world.spec.max_num_seqs)
            + timing.decode_kv_token_s * (call.prompt_tokens + call.output_tokens / 2)
            + timing.decode_sequence_s
        )
        for call in calls
    )
    return max(runs[-1].arrives_at, (prefill_s + decode_s) / world.num_replicas)
