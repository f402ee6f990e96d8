"""The second driver of the Scheduler: virtual time, embedded engine models, no network.

Results of a simulation are those of a model: `gateway/embedded/model.py` states it.
"""

from __future__ import annotations

import heapq
import itertools
import random
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Protocol

from benchmarks.simulation.router import ROUTED, KvRouter
from benchmarks.simulation.workloads import AgentRun, ModelCall
from gateway.embedded.model import EngineModel, EngineSpec, ModelRequest, Step
from gateway.request.gate import TURNED_AWAY_S
from policies.scheduler import Scheduler
from policies.types import (
    BLOCK_CHARS,
    Arrived,
    Decision,
    Ending,
    Fact,
    FamiliesRecalled,
    FirstByte,
    History,
    Left,
    PoolLessons,
    PromptHead,
    Reject,
    Release,
    ReplicaReported,
    SessionEnded,
    Switched,
    Tick,
    Turn,
    TurnKind,
    Usage,
)


class Decider(Protocol):
    """The Scheduler, or what a benchmark puts in its place."""

    def tell(self, fact: Fact, now: float) -> tuple[list[Decision], float | None]: ...


class CachedTokens(StrEnum):
    """How an engine reports the cached tokens of a prompt."""

    REPORTED = "reported"
    ABSENT = "absent"
    ZERO = "zero"


@dataclass(frozen=True, slots=True)
class World:
    """The engines, and what they and the clients say."""

    spec: EngineSpec = EngineSpec(2_500)
    """Of each replica."""
    num_replicas: int = 1
    chars_per_token: float = 4.0
    """Of the text that is really sent."""
    sample_chars_per_token: float | None = 4.0
    """What the probe at the start finds; None: there is no probe."""
    stated_capacity: float = 1.0
    """What the engine says of its KV pool, as a share of the truth."""
    cached_tokens: CachedTokens = CachedTokens.REPORTED
    rehits_outputs: bool = False
    """Whether generated tokens are found again in the next prompt; Dynamo's mocker never does."""
    declares_turns: bool = False
    """Whether clients announce how many turns are still to come."""
    declares_end: bool = False
    """Whether clients say when a session has ended."""
    max_wait_s: float = 1e9
    frontend_s: float = 0.0
    """Time in which the frontend of the engines reads one call; it reads them one after the other."""


DOWN_S = 1.0
"""Time in which a gateway that was killed is back."""
RETRIED_AFTER_S = 1.125, 1.5
"""When the official SDKs reach a gateway again that is back by then: their second try, 0.5 and 1 s after a reset
or a refused connection, each shortened by up to a quarter."""


@dataclass(frozen=True, slots=True)
class Restart:
    """Another gateway, without memory, takes the place of this one. The engines keep their caches.

    It is replaced as in a rolling update: the new one is up before; the old one ends the turns that run, and
    refuses those that wait. Or it is killed, and back after DOWN_S: all open calls die; the engine drops those
    that it has, as it does when a client leaves; each client sends its call again. Clients that want a call
    meanwhile try until the gateway is back.
    """

    at_s: float
    make: Callable[[], Decider]
    """The new Scheduler."""
    is_killed: bool = False
    keeps_lessons: bool = False
    """Whether the new one reads what the old one has learned (`learned_file`)."""


@dataclass(slots=True)
class SimulatedTurn:
    """What one call went through, in virtual seconds."""

    session_id: str
    index: int
    """-1: a side request."""
    wanted_at: float
    prompt_tokens: int
    output_tokens: int
    dispatched_at: float = 0.0
    first_token_at: float = 0.0
    done_at: float = 0.0
    cached_tokens: int = 0
    replica_id: str = ""

    @property
    def ttft_s(self) -> float:
        return self.first_token_at - self.wanted_at


@dataclass(slots=True)
class SimulatedSession:
    id: str
    label: str
    arrived_at: float
    done_at: float = 0.0
    is_child: bool = False

    @property
    def completion_s(self) -> float:
        return self.done_at - self.arrived_at


@dataclass(slots=True)
class SimulationResult:
    turns: list[SimulatedTurn] = field(default_factory=list)
    """In the order of their ends."""
    sessions: list[SimulatedSession] = field(default_factory=list)
    preemptions: int = 0
    rejections: int = 0
    num_facts: int = 0

    @property
    def makespan_s(self) -> float:
        return max(session.done_at for session in self.sessions)

    @property
    def uncached_tokens(self) -> int:
        return sum(turn.prompt_tokens - turn.cached_tokens for turn in self.turns)

    @property
    def session_s(self) -> list[float]:
        """Completion times of all sessions but sub-agents."""
        return [session.completion_s for session in self.sessions if not session.is_child]

    @property
    def mean_session_s(self) -> float:
        return sum(self.session_s) / len(self.session_s)

    @property
    def max_wait_s(self) -> float:
        """Longest time at the gate."""
        return max(turn.dispatched_at - turn.wanted_at for turn in self.turns)


@dataclass(slots=True)
class _OpenCall:
    """A call that was sent and has not ended."""

    run: AgentRun
    call: ModelCall
    turn: Turn
    simulated: SimulatedTurn


@dataclass(slots=True)
class _Progress:
    """A session that has begun."""

    session: SimulatedSession
    ended: Callable[[], None]
    """Tells its parent."""
    pending: int = 0
    """Tools and sub-agents that its next call waits for."""


class Simulation:
    """One fleet against replicas of one world; `run` plays it to its end. Single use."""

    def __init__(self, scheduler: Decider, world: World, restart: Restart | None = None) -> None:
        self._scheduler = scheduler
        self._world = world
        self._restart = restart
        self._is_down = False
        self._kept: dict[str, PoolLessons] = {}
        """Lessons of the gateway before, by replica."""
        self._served: set[str] = set()
        """Sessions that the gateway has seen since its start."""
        self._rng = random.Random(0)
        self._models = {f"r{number}": EngineModel(world.spec) for number in range(world.num_replicas)}
        self._router = KvRouter(self._models)
        self._busy: set[str] = set()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._sequence = itertools.count()
        self._unasked = itertools.count(0, 1 << 24)
        """Ids of blocks that no text has."""
        self._now = 0.0
        self._read_at = 0.0
        """When the frontend has read all calls."""
        self._wake_at: float | None = None
        self._open: dict[str, _OpenCall] = {}
        self._progress: dict[str, _Progress] = {}
        self._result = SimulationResult()

    def run(self, runs: Sequence[AgentRun], num_at_once: int | None = None) -> SimulationResult:
        """Open loop: each run begins at its own time; with `num_at_once` a closed loop: in their order, that many
        at the start and one more whenever one ends. Raises AssertionError when a turn is left unserved."""
        self._report()
        if self._restart is not None:
            self._at(self._restart.at_s, self._kill if self._restart.is_killed else self._replace)
        if num_at_once is None:
            for run in runs:
                self._at(run.arrives_at, lambda run=run: self._begin(run, _nothing))  # type: ignore[misc]
        else:
            following = iter(runs)

            def begin_next() -> None:
                if (run := next(following, None)) is not None:
                    self._begin(run, begin_next)

            for _ in range(num_at_once):
                self._at(0.0, begin_next)
        while self._events:
            self._now, _, event = heapq.heappop(self._events)
            event()
        assert not self._open, f"{len(self._open)} turns were never served"
        self._result.preemptions = sum(model.counters.preemptions for model in self._models.values())
        return self._result

    def _report(self) -> None:
        world = self._world
        sample = world.sample_chars_per_token
        capacity_tokens = round(world.spec.num_blocks * world.spec.block_tokens * world.stated_capacity)
        for replica_id in self._models:
            self._tell(
                ReplicaReported(
                    replica_id,
                    capacity_tokens=capacity_tokens,
                    slots=world.spec.max_num_seqs,
                    waiting=0,
                    tokens_per_char=None if sample is None else 1 / sample,
                    lessons=self._kept.get(replica_id),
                )
            )

    def _at(self, time: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (time, next(self._sequence), event))

    # ---- agents

    def _begin(self, run: AgentRun, ended: Callable[[], None]) -> None:
        session = SimulatedSession(run.id, run.label, self._now, is_child=run.parent_id is not None)
        self._result.sessions.append(session)
        self._progress[run.id] = _Progress(session, ended)
        for call in run.side:
            self._send(run, call, -1)
        self._send(run, run.calls[0], 0)

    def _send(self, run: AgentRun, call: ModelCall, index: int, wanted_at: float | None = None) -> None:
        """Send a call, which its client wants since `wanted_at`; None: since now."""
        wanted_at, world = self._now if wanted_at is None else wanted_at, self._world
        if self._is_down:
            assert self._restart is not None
            again_at = max(self._now, self._restart.at_s + self._rng.uniform(*RETRIED_AFTER_S))
            self._at(again_at, lambda: self._send(run, call, index, wanted_at))
            return
        first_kind = run.first_kind if index == 0 else TurnKind.AGENT
        chars = round(call.prompt_tokens * world.chars_per_token)
        turn = Turn(
            id=f"{run.id}.{index}.{next(self._sequence)}",
            session_id=run.id,
            family_id=run.family_id,
            tenant=run.tenant,
            model="m",
            arrived_at=self._now,
            blocks=call.text.chain(BLOCK_CHARS / world.chars_per_token)[: chars // BLOCK_CHARS],
            chars=chars,
            kind=TurnKind.SIDE if index < 0 else first_kind,
            parent_id=run.parent_id if run.names_parent else None,
            remaining_turns=len(run.calls) - index - 1 if world.declares_turns and index >= 0 else None,
            deadline_at=None if run.deadline_s is None else self._now + run.deadline_s,
            max_wait_s=world.max_wait_s,
            history=self._history(run, index),
            head=self._head(run, call) if index == 0 else None,
        )
        self._served.add(run.id)
        simulated = SimulatedTurn(run.id, index, wanted_at, call.prompt_tokens, call.output_tokens)
        self._open[turn.id] = _OpenCall(run, call, turn, simulated)
        self._tell(Arrived(turn))

    def _history(self, run: AgentRun, index: int) -> History | None:
        """Return what recognition reads from the prompt of a session that it sees for the first time."""
        if index < 1 or run.id in self._served:
            return None
        first, last = (
            round(call.prompt_tokens * self._world.chars_per_token)
            for call in (run.calls[0], run.calls[index - 1])
        )
        return History(index, first, last)

    def _head(self, run: AgentRun, call: ModelCall) -> PromptHead | None:
        """Return the shared prefix of a run's family, which its clients send as system text."""
        end, author = call.text.parts[0]
        if len(call.text.parts) < 2:
            return None
        return PromptHead(round(end * self._world.chars_per_token), hash(author))

    def _answered(self, turn_id: str) -> None:
        """An answer is complete: its tool and its sub-agents start, or its session ends. Nobody waits for the
        answer to a call that died."""
        sent = self._open.pop(turn_id, None)
        if sent is None:
            return
        run, call, simulated = sent.run, sent.call, sent.simulated
        simulated.done_at = self._now
        self._result.turns.append(simulated)
        self._tell(Left(turn_id, Ending.COMPLETE, self._usage(simulated)))
        if simulated.index < 0:
            return
        progress = self._progress[run.id]
        if simulated.index + 1 < len(run.calls):
            progress.pending = 1 + len(call.children)

            def returned() -> None:
                progress.pending -= 1
                if not progress.pending:
                    self._send(run, run.calls[simulated.index + 1], simulated.index + 1)

            self._at(self._now + call.gap_s, returned)
            for child in call.children:
                begin = lambda child=child: self._begin(child, returned)  # noqa: E731
                self._at(self._now + child.arrives_at, begin)
        else:
            progress.session.done_at = self._now
            del self._progress[run.id]
            if self._world.declares_end:
                self._tell(SessionEnded(run.id))
            progress.ended()

    def _usage(self, simulated: SimulatedTurn) -> Usage:
        reported = {
            CachedTokens.REPORTED: simulated.cached_tokens,
            CachedTokens.ABSENT: None,
            CachedTokens.ZERO: 0,
        }
        return Usage(simulated.prompt_tokens, reported[self._world.cached_tokens], simulated.output_tokens)

    # ---- the Scheduler

    def _tell(self, fact: Fact) -> None:
        self._result.num_facts += 1
        decisions, wake_at = self._scheduler.tell(fact, self._now)
        for decision in decisions:
            self._carry_out(decision)
        if wake_at != self._wake_at and self._open:
            self._wake_at = wake_at
            if wake_at is not None:
                self._at(max(wake_at, self._now), partial(self._tick, wake_at))

    def _tick(self, wake_at: float) -> None:
        if wake_at != self._wake_at or self._is_down:
            return  # another time took its place, as the Gate's timer does
        self._wake_at = None
        self._tell(Tick())

    def _carry_out(self, decision: Decision) -> None:
        if isinstance(decision, Release | Switched):
            return  # the model evicts by age alone
        sent = self._open[decision.turn_id]
        simulated = sent.simulated
        if isinstance(decision, Reject):
            del self._open[decision.turn_id]
            self._result.rejections += 1
            again = lambda: self._resend(sent)  # noqa: E731
            self._at(self._now + decision.retry_after_s, again)
            return
        simulated.dispatched_at, simulated.replica_id = self._now, decision.replica_id
        self._submit(decision.replica_id, decision.turn_id, sent.call, sent.call.output_tokens)

    def _submit(self, replica_id: str, name: str, call: ModelCall, output_tokens: int) -> None:
        """Send a call to the engines, whose frontend reads one call after the other."""
        self._read_at = max(self._now, self._read_at) + self._world.frontend_s
        if self._world.frontend_s:
            self._at(self._read_at, lambda: self._start(replica_id, name, call, output_tokens))
        else:
            self._start(replica_id, name, call, output_tokens)

    def _start(self, replica_id: str, name: str, call: ModelCall, output_tokens: int) -> None:
        if name not in self._open:
            return  # it died before the frontend read it
        block_tokens = self._world.spec.block_tokens
        num_prompt_blocks = call.prompt_tokens // block_tokens
        num_blocks = (call.prompt_tokens + output_tokens) // block_tokens
        blocks = call.text.chain(block_tokens)[:num_blocks]
        if not self._world.rehits_outputs:
            # The answer's blocks stay in the cache until they are evicted, and nothing asks for them again.
            first = next(self._unasked)
            blocks[num_prompt_blocks:] = array("Q", range(first, first + num_blocks - num_prompt_blocks))
        if replica_id == ROUTED:
            replica_id = self._router.place(name, blocks[:num_prompt_blocks], call.prompt_tokens)
            self._open[name].simulated.replica_id = replica_id
        self._models[replica_id].submit(ModelRequest(name, blocks, call.prompt_tokens, output_tokens))
        if replica_id not in self._busy:
            self._busy.add(replica_id)
            self._at(self._now, lambda: self._step(replica_id))

    def _resend(self, refused: _OpenCall) -> None:
        """A client tries a refused call again; its wait counts from the first time."""
        self._send(refused.run, refused.call, refused.simulated.index, refused.simulated.wanted_at)

    # ---- the gateway

    def _kill(self) -> None:
        assert self._restart is not None
        self._is_down = True
        died, self._open = self._open, {}
        for name, sent in died.items():
            if sent.simulated.replica_id:
                self._models[sent.simulated.replica_id].abort(name)
                self._router.ended(name)
        self._at(self._now + DOWN_S, self._come_back)
        for sent in died.values():
            self._resend(sent)

    def _replace(self) -> None:
        for name, sent in list(self._open.items()):
            if not sent.simulated.replica_id:
                del self._open[name]
                self._at(self._now + TURNED_AWAY_S, partial(self._resend, sent))
        self._come_back()

    def _come_back(self) -> None:
        assert self._restart is not None
        before = self._scheduler
        self._is_down, self._wake_at, self._scheduler = False, None, self._restart.make()
        self._served.clear()
        if self._restart.keeps_lessons and isinstance(before, Scheduler):
            self._kept = {lessons.replica_id: lessons for lessons in before.pool_lessons()}
            self._tell(FamiliesRecalled(tuple(before.family_lessons())))
        self._report()
        self._kept.clear()

    # ---- engines

    def _step(self, replica_id: str) -> None:
        step = self._models[replica_id].step(self._horizon_s())
        if step is None:
            self._busy.discard(replica_id)
        else:
            self._at(self._now + step.duration_s, lambda: self._stepped(replica_id, step))

    def _horizon_s(self) -> float:
        """Time for which nothing outside the engine can happen; until then it may run its iterations as one."""
        return self._events[0][0] - self._now if self._events else float("inf")

    def _stepped(self, replica_id: str, step: Step) -> None:
        for prefilled in step.prefilled:
            if prefilled.is_first and prefilled.id in self._open:
                simulated = self._open[prefilled.id].simulated
                simulated.first_token_at, simulated.cached_tokens = self._now, prefilled.cached_tokens
                self._router.prefilled(prefilled.id)
                self._tell(FirstByte(prefilled.id))
        for name in step.finished:
            self._router.ended(name)
            self._answered(name)
        self._step(replica_id)


def _nothing() -> None:
    """No parent waits for a session that is no sub-agent."""
