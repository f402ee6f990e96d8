"""Laws that hold for every policy, whatever happens to the fleet."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import pytest

from benchmarks.simulation.placement import least_loaded, round_robin
from gateway.config import settings
from gateway.request.gate import POLICIES as NAMED
from gateway.request.gate import policy_of
from policies.admission import Limits
from policies.fifo import Fifo
from policies.fleet import Pool
from policies.placement import Option, by_prefix
from policies.policy import Policy, Progress
from policies.scheduler import Scheduler
from policies.turns import Turns
from policies.types import (
    Arrived,
    Decision,
    Dispatch,
    Ending,
    Fact,
    Family,
    Left,
    Reason,
    Refusal,
    Reject,
    ReplicaLost,
    ReplicaReported,
    Session,
    SessionEnded,
    Tick,
    Turn,
    TurnId,
    TurnKind,
    Usage,
)
from tests.policies.turns_of import TOKENS_PER_BLOCK, turn

UNBOUNDED = ("passthrough", "observe").__contains__
"""Whether a policy bounds no slots."""
MADE: dict[str, Callable[[], Policy]] = {
    **{
        name: partial(policy_of, settings.Policy(name=name)) for name in sorted(NAMED, key=UNBOUNDED, reverse=True)
    },
    "turns-load": lambda: Turns(least_loaded),
    "turns-robin": lambda: Turns(round_robin),
    "fifo-prefix": lambda: Fifo(by_prefix),
}
"""The policies that have a short name, the two that bound no slots first, and others with another placement."""
POLICIES, IDS = list(MADE.values()), list(MADE)
SLOTS, CAPACITY_TOKENS, HOLD_BOUND_S = 3, 60 * TOKENS_PER_BLOCK, 20.0


class Play:
    """A random but repeatable life of a fleet: facts in, decisions checked, replicas come and go."""

    def __init__(self, policy: Policy, seed: int, slots: int = SLOTS) -> None:
        self.limits = Limits(hold_bound_s=HOLD_BOUND_S)
        self.policy = policy
        self.scheduler = Scheduler(policy, self.limits)
        self.rng = random.Random(seed)
        self.now = 0.0
        self.slots = slots
        self.facts: list[tuple[float, Fact]] = []
        self.decisions: list[Decision] = []
        self.running: dict[TurnId, str] = {}
        self.waiting: set[TurnId] = set()
        self.decided: set[TurnId] = set()
        self.not_before: dict[TurnId, float] = {}
        self.num_turns = 0
        self.up = {"r0", "r1"}
        for replica_id in sorted(self.up):
            self.tell(self.report(replica_id))

    def report(self, replica_id: str) -> ReplicaReported:
        return ReplicaReported(replica_id, None, CAPACITY_TOKENS, self.slots, 0)

    def tell(self, fact: Fact) -> None:
        self.facts.append((self.now, fact))
        decisions, wake_at = self.scheduler.tell(fact, self.now)
        assert wake_at is None or wake_at > self.now - 1e-9
        self.decisions += decisions
        for decision in decisions:
            if not isinstance(decision, Dispatch | Reject):
                continue
            assert decision.turn_id in self.waiting, "decided without having arrived, or twice"
            assert decision.turn_id not in self.decided
            self.decided.add(decision.turn_id)
            self.waiting.discard(decision.turn_id)
            is_overdue = isinstance(decision, Reject) and decision.refusal is Refusal.DEADLINE
            assert is_overdue or self.now >= self.not_before.get(decision.turn_id, 0.0)
            if isinstance(decision, Dispatch):
                assert decision.replica_id in self.up
                self.running[decision.turn_id] = decision.replica_id
        if self.policy.bounds_slots:
            for replica_id in self.up:
                assert list(self.running.values()).count(replica_id) <= self.slots
        if self.policy.gates_residency:
            self.check_ceiling(decisions)

    def check_ceiling(self, decisions: Sequence[Decision]) -> None:
        admitted = {d.replica_id for d in decisions if isinstance(d, Dispatch) and d.reason in ADMISSIONS}
        for replica in self.scheduler.view().replicas:
            if replica.id in admitted and self.slots > 100:  # an admitted turn did not wait for a slot
                assert replica.ceiling_tokens is not None
                assert replica.residency_tokens <= replica.ceiling_tokens

    def step(self) -> None:
        self.now += self.rng.expovariate(1.0)
        action = self.rng.choices(
            ["arrive", "finish", "cancel", "tick", "lose", "return", "end"], [10, 8, 1, 2, 0.2, 2, 0.5]
        )[0]
        if action == "arrive":
            self.arrive()
        elif action in ("finish", "cancel"):
            self.leave(Ending.COMPLETE if action == "finish" else Ending.CANCELLED)
        elif action == "lose" and len(self.up) > 1:
            self.lose()
        elif action == "return":
            self.up = {"r0", "r1"}
            for replica_id in sorted(self.up):
                self.tell(self.report(replica_id))
        elif action == "end":
            self.tell(SessionEnded(f"s{self.rng.randrange(12)}"))
        else:
            self.tell(Tick())

    def arrive(self) -> None:
        session, self.num_turns = self.rng.randrange(12), self.num_turns + 1
        turn_id = f"t{self.num_turns}"
        self.waiting.add(turn_id)
        parts = ("shared", 10), (f"s{session}", self.rng.randrange(2, 25))
        kind = self.rng.choice([TurnKind.AGENT] * 8 + [TurnKind.SINGLE, TurnKind.SIDE])
        remaining = self.rng.choice([None, None, 0, 2, 40])
        arriving = turn(turn_id, *parts, session=f"s{session}", at=self.now, family=f"f{session % 3}", kind=kind,
                        remaining=remaining)  # fmt: skip
        if self.num_turns % 7 == 0:
            self.not_before[turn_id] = self.now + self.num_turns % 30
            arriving = replace(arriving, is_retry=True, not_before=self.not_before[turn_id])
        if self.policy.ranks_turns and self.num_turns % 3:
            arriving = replace(arriving, deadline_at=self.now + 10.0 * (self.num_turns % 11 + 1))
        self.tell(Arrived(arriving))

    def leave(self, ending: Ending) -> None:
        if not self.running or (ending is Ending.CANCELLED and self.waiting and self.rng.random() < 0.5):
            if self.waiting:
                turn_id = self.rng.choice(sorted(self.waiting))
                self.waiting.discard(turn_id)
                self.decided.add(turn_id)
                self.tell(Left(turn_id, Ending.CANCELLED))
            return
        turn_id = self.rng.choice(sorted(self.running))
        del self.running[turn_id]
        self.tell(Left(turn_id, ending, Usage(1_000, None, 100)))

    def lose(self) -> None:
        replica_id = self.rng.choice(sorted(self.up))
        self.up.discard(replica_id)
        self.tell(ReplicaLost(replica_id))
        for turn_id in [t for t, r in self.running.items() if r == replica_id]:
            del self.running[turn_id]
            self.tell(Left(turn_id, Ending.FAILED))

    def drain(self) -> float:
        """Finish what runs, again and again; returns the time that the last waiting turn took to be served."""
        began_at = self.now
        while self.waiting or self.running:
            assert self.now - began_at < 100 * HOLD_BOUND_S, f"{sorted(self.waiting)} starve"
            self.now += 1.0
            for turn_id in sorted(self.running):
                del self.running[turn_id]
                self.tell(Left(turn_id, Ending.COMPLETE, Usage(1_000, None, 100)))
            self.tell(Tick())
        return self.now - began_at


ADMISSIONS = {Reason.FREE, Reason.ADMITTED, Reason.YIELDED}


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("make", POLICIES, ids=IDS)
def test_each_turn_is_decided_once_slots_hold_and_nobody_starves(make: Callable[[], Policy], seed: int) -> None:
    play = Play(make(), seed)
    for _ in range(400):
        play.step()
    play.drain()
    view = play.scheduler.view()
    assert all(replica.slots_used == 0 for replica in view.replicas)
    assert sum(view.waiting.values()) == 0


@pytest.mark.parametrize("seed", range(24))
def test_no_session_is_admitted_into_a_pool_beyond_its_ceiling(seed: int) -> None:
    """A law of ADMISSIONS; cheap sessions and open gates say so."""
    play = Play(Turns(), seed, slots=1_000)
    for _ in range(400):
        play.step()
    assert any(isinstance(d, Dispatch) and d.reason in ADMISSIONS for d in play.decisions)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("make", POLICIES, ids=IDS)
def test_recorded_facts_replay_to_the_same_decisions(make: Callable[[], Policy], seed: int) -> None:
    play = Play(make(), seed)
    for _ in range(300):
        play.step()
    again = Scheduler(make(), play.limits)
    replayed = [decision for now, fact in play.facts for decision in again.tell(fact, now)[0]]
    assert replayed == play.decisions


class Watched:
    """A policy whose every answer is checked for side effects on its arguments."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.name, self.bounds_slots = policy.name, policy.bounds_slots
        self.gates_residency, self.ranks_turns = policy.gates_residency, policy.ranks_turns

    def rank(self, turn: Turn, session: Progress, family: Family) -> float:
        before = state(family), repr(turn), repr(session)
        value = self._policy.rank(turn, session, family)
        assert (state(family), repr(turn), repr(session)) == before
        return value

    def forecast(self, family: Family, num_begun: int, declared: int | None) -> Sequence[float]:
        before = state(family)
        values = self._policy.forecast(family, num_begun, declared)
        assert state(family) == before
        assert len(values) == len(self._policy.forecast(family, 0, 0))
        return values

    def fits(self, pool: Pool, session: Session, family: Family, new_tokens: float, num_waiting: int) -> bool:
        before = state(family), state(session), pool.resident_tokens, pool.held_tokens
        answer = self._policy.fits(pool, session, family, new_tokens, num_waiting)
        assert (state(family), state(session), pool.resident_tokens, pool.held_tokens) == before
        return answer

    def victim_rank(self, session: Session, family: Family) -> float:
        before = state(family), state(session)
        value = self._policy.victim_rank(session, family)
        assert (state(family), state(session)) == before
        return value

    def lease_s(self, session: Session, family: Family) -> float:
        before = state(family), state(session)
        value = self._policy.lease_s(session, family)
        assert (state(family), state(session)) == before
        return value

    def place(self, options: Sequence[Option], family_id: str, ordinal: int) -> Option:
        chosen = self._policy.place(tuple(options), family_id, ordinal)
        assert chosen in options
        return chosen


def state(of: Family | Session) -> dict[str, object]:
    """All fields but the family's cache of its own curve."""
    return {
        name: repr(getattr(of, name)) for name in of.__slots__ if name not in ("expected_remaining", "forecasts")
    }


@pytest.mark.parametrize("make", POLICIES, ids=IDS)
def test_a_policy_never_writes_what_it_is_shown(make: Callable[[], Policy]) -> None:
    play = Play(Watched(make()), seed=7)
    for _ in range(300):
        play.step()
    play.drain()


def test_refusals_come_with_a_time_to_come_back() -> None:
    play = Play(Turns(), seed=1)
    for _ in range(400):
        play.step()
    assert all(d.retry_after_s >= play.limits.min_retry_after_s for d in play.decisions if isinstance(d, Reject))
