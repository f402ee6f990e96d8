"""The second driver of the Scheduler: virtual time, embedded engine models, no network."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from gateway.demo.workload import CHARS_PER_TOKEN, PlannedSession
from gateway.embedded.model import EngineModel, EngineSpec, ModelRequest
from policies.scheduler import Scheduler
from policies.types import (
    BLOCK_CHARS,
    Arrived,
    Decision,
    Dispatch,
    Ending,
    Fact,
    FirstByte,
    Left,
    ReplicaReported,
    Tick,
    Turn,
    TurnKind,
    Usage,
)


@dataclass(slots=True)
class SimulatedTurn:
    """What one turn went through, in virtual seconds."""

    session_id: str
    index: int
    wanted_at: float
    dispatched_at: float = 0.0
    first_token_at: float = 0.0
    done_at: float = 0.0
    prompt_tokens: int = 0
    cached_tokens: int = 0


@dataclass(slots=True)
class Result:
    turns: list[SimulatedTurn] = field(default_factory=list)
    session_s: list[float] = field(default_factory=list)
    """Completion time of each session since its arrival."""
    makespan_s: float = 0.0
    preemptions: int = 0
    max_wait_s: float = 0.0

    @property
    def uncached_tokens(self) -> int:
        return sum(turn.prompt_tokens - turn.cached_tokens for turn in self.turns)

    @property
    def mean_session_s(self) -> float:
        return sum(self.session_s) / len(self.session_s)


def chain(session: PlannedSession, num_tokens: int, block_tokens: int) -> list[int]:
    """Block ids of a prompt prefix: shared inside the family up to its shared tokens, private behind."""
    shared = session.shared_tokens // block_tokens
    return [
        hash((session.family_id if index < shared else session.id, index, block_tokens))
        for index in range(num_tokens // block_tokens)
    ]


class Simulation:
    """One fleet against replicas of one spec; `run` plays it to its end."""

    def __init__(self, scheduler: Scheduler, spec: EngineSpec, num_replicas: int = 1) -> None:
        self._scheduler = scheduler
        self._spec = spec
        self._models = {f"r{number}": EngineModel(spec) for number in range(num_replicas)}
        self._busy: dict[str, bool] = dict.fromkeys(self._models, False)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._sequence = itertools.count()
        self._now = 0.0
        self._wake_at: float | None = None
        self._open: dict[str, tuple[PlannedSession, SimulatedTurn]] = {}
        self._result = Result()

    def run(self, sessions: Sequence[PlannedSession]) -> Result:
        for replica_id in self._models:
            capacity_tokens = self._spec.num_blocks * self._spec.block_tokens
            self._tell(
                ReplicaReported(replica_id, None, capacity_tokens, self._spec.max_num_seqs, 0, 1 / CHARS_PER_TOKEN)
            )
        for session in sessions:
            self._at(session.arrives_at, lambda session=session: self._arrive(session, 0))  # type: ignore[misc]
        while self._events:
            self._now, _, event = heapq.heappop(self._events)
            event()
        if self._open:
            raise AssertionError(f"{len(self._open)} turns were never served")
        self._result.preemptions = sum(m.counters.preemptions for m in self._models.values())
        return self._result

    def _at(self, time: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (time, next(self._sequence), event))

    def _arrive(self, session: PlannedSession, index: int) -> None:
        planned = session.turns[index]
        simulated = SimulatedTurn(session.id, index, self._now, prompt_tokens=planned.prompt_tokens)
        turn_id = f"{session.id}.{index}"
        self._open[turn_id] = (session, simulated)
        turn = Turn(
            id=turn_id,
            session_id=session.id,
            family_id=session.family_id,
            tenant="t",
            model="m",
            arrived_at=self._now,
            blocks=chain(session, planned.prompt_tokens, BLOCK_CHARS // CHARS_PER_TOKEN),
            chars=planned.prompt_tokens * CHARS_PER_TOKEN,
            kind=TurnKind.AGENT if index else TurnKind.SINGLE,
            max_wait_s=float("inf"),
        )
        self._tell(Arrived(turn))

    def _tell(self, fact: Fact) -> None:
        decisions, wake_at = self._scheduler.tell(fact, self._now)
        for decision in decisions:
            self._carry_out(decision)
        if wake_at is not None and (self._wake_at is None or wake_at < self._wake_at) and self._open:
            self._wake_at = wake_at
            self._at(max(wake_at, self._now), self._tick)

    def _tick(self) -> None:
        self._wake_at = None
        self._tell(Tick())

    def _carry_out(self, decision: Decision) -> None:
        assert isinstance(decision, Dispatch), decision
        session, simulated = self._open[decision.turn_id]
        simulated.dispatched_at = self._now
        self._result.max_wait_s = max(self._result.max_wait_s, self._now - simulated.wanted_at)
        planned = session.turns[simulated.index]
        blocks = chain(session, planned.prompt_tokens, self._spec.block_tokens)
        request = ModelRequest(decision.turn_id, blocks, planned.prompt_tokens, planned.output_tokens)
        self._models[decision.replica_id].submit(request)
        if not self._busy[decision.replica_id]:
            self._busy[decision.replica_id] = True
            self._at(self._now, lambda: self._step(decision.replica_id))

    def _step(self, replica_id: str) -> None:
        step = self._models[replica_id].step()
        if step is None:
            self._busy[replica_id] = False
            return

        def end() -> None:
            for prefilled in step.prefilled:
                if prefilled.is_first:
                    simulated = self._open[prefilled.id][1]
                    simulated.first_token_at, simulated.cached_tokens = self._now, prefilled.cached_tokens
                    self._tell(FirstByte(prefilled.id))
            for turn_id in step.finished:
                self._finish(turn_id)
            self._step(replica_id)

        self._at(self._now + step.duration_s, end)

    def _finish(self, turn_id: str) -> None:
        session, simulated = self._open.pop(turn_id)
        planned = session.turns[simulated.index]
        simulated.done_at = self._now
        self._result.turns.append(simulated)
        if simulated.index + 1 < len(session.turns):
            self._at(self._now + planned.gap_s, lambda: self._arrive(session, simulated.index + 1))
        else:
            self._result.session_s.append(self._now - session.arrives_at)
            self._result.makespan_s = max(self._result.makespan_s, self._now)
        usage = Usage(planned.prompt_tokens, simulated.cached_tokens, planned.output_tokens)
        self._tell(Left(turn_id, Ending.COMPLETE, usage))
