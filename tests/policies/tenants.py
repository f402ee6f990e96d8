"""Several tenants before one engine model, in virtual time: what each gets, whatever one of them declares."""

from __future__ import annotations

import heapq
import itertools
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from benchmarks.simulation.workloads import Text
from gateway.embedded.model import EngineModel, EngineSpec, ModelRequest, Step
from policies.admission import Limits
from policies.policy import Policy
from policies.scheduler import Scheduler
from policies.types import (
    BLOCK_CHARS,
    Arrived,
    Decision,
    Dispatch,
    Ending,
    Fact,
    FirstByte,
    History,
    Left,
    Reason,
    Reject,
    ReplicaReported,
    SessionEnded,
    Tick,
    Turn,
    TurnKind,
    Usage,
)

CHARS_PER_TOKEN = 4
BLOCK_TOKENS = BLOCK_CHARS // CHARS_PER_TOKEN


@dataclass(frozen=True, slots=True)
class Declared:
    """What a client says on every call, as recognition passes it on. The defaults: nothing."""

    remaining: int | None = None
    keeps_session: bool = False
    """One session id for all calls of a lane, whatever their prompts."""
    names_parent: bool = False
    """Each session is a sub-agent of another one of the tenant."""
    is_side: bool = False
    """A schema whose agents have tools, and none offered."""
    deadline_s: float | None = None
    says_retry: bool = False
    is_final: bool = False
    max_output_tokens: int | None = None
    tells_history: bool = False
    """Each session begins as if another gateway had served nine turns of it."""


@dataclass(frozen=True, slots=True)
class Agents:
    """Lanes of one tenant, each with one call at a time."""

    tenant: str
    num_lanes: int
    num_turns: int = 1
    """Of a session; then the lane begins another one."""
    prompt_tokens: int = 600
    append_tokens: int = 200
    output_tokens: int = 40
    gap_s: float = 0.0
    begins_at: float = 0.0
    ends_at: float = 1e9
    weight: float = 1.0
    priority_class: int = 0
    are_strangers: bool = False
    """Its sessions share no prefix, differ a little in length, and are each of a family of its own."""
    max_wait_s: float = 1e9
    declared: Declared = Declared()


@dataclass(slots=True)
class _Lane:
    agents: Agents
    number: int
    num_sessions: int = 0
    num_begun: int = 0
    """Turns of its session."""


@dataclass(slots=True)
class _Open:
    lane: _Lane
    turn: Turn
    text: Text
    prompt_tokens: int
    wanted_at: float
    begun_at: float | None = None
    cached_tokens: int = 0


@dataclass
class Tenants:
    """Play it once, then look at what was done."""

    policy: Policy
    agents: list[Agents]
    slots: int = 8
    states_slots: bool = True
    capacity_tokens: int = 200_000
    limits: Limits = field(default_factory=Limits)
    done: Counter[str] = field(default_factory=Counter)
    """Turns that were answered, by tenant."""
    done_at: list[tuple[float, str]] = field(default_factory=list)
    """The same in their order."""
    warm_s: float = 0.0
    """What is measured counts from then on."""
    waited_s: dict[str, list[float]] = field(default_factory=dict)
    """At the gate, by tenant."""
    begun_s: dict[str, list[float]] = field(default_factory=dict)
    """Until the engine took them from its own queue, by tenant."""
    computed_tokens: Counter[str] = field(default_factory=Counter)
    """Tokens that the engine computed, by tenant: of prompts that it did not find, and of answers."""
    waiting_s: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    """How long a turn of it waited at the gate or in the engine's queue while the engine worked, by tenant."""
    worked_s: float = 0.0
    """How long the engine worked."""
    refused: Counter[str] = field(default_factory=Counter)
    open_at: list[float] = field(default_factory=list)
    """When turns passed an open gate."""

    def __post_init__(self) -> None:
        spec = EngineSpec(self.capacity_tokens // 16, max_num_seqs=self.slots, priority_scheduling=True)
        self._model = EngineModel(spec)
        self._scheduler = Scheduler(self.policy, self.limits)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._sequence = itertools.count()
        self._now = 0.0
        self._is_busy = False
        self._wake_at: float | None = None
        self._open: dict[str, _Open] = {}
        self._num_unbegun: Counter[str] = Counter()

    def play(self, seconds: float) -> Counter[str]:
        slots = self.slots if self.states_slots else None
        self._tell(ReplicaReported("r", None, self.capacity_tokens, slots, 0, 1 / CHARS_PER_TOKEN))
        for agents in self.agents:
            for number in range(agents.num_lanes):
                lane = _Lane(agents, number)
                self._at(agents.begins_at + number * 1e-3, partial(self._send, lane))
        while self._events and self._events[0][0] <= seconds:
            self._now, _, event = heapq.heappop(self._events)
            event()
        return self.done

    def num_done(self, tenant: str, since: float, until: float) -> int:
        return sum(one == tenant and since <= at < until for at, one in self.done_at)

    def _at(self, time: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (time, next(self._sequence), event))

    def _send(self, lane: _Lane) -> None:
        agents = lane.agents
        if self._now >= agents.ends_at:
            return
        name = f"{agents.tenant}{lane.number}"
        prompt_tokens = agents.prompt_tokens + lane.num_begun * (agents.append_tokens + agents.output_tokens)
        text = Text(
            *(() if agents.are_strangers else ((256, agents.tenant),)),
            (prompt_tokens + agents.output_tokens, f"{name}.{agents.begins_at}.{lane.num_sessions}"),
        )
        lane.num_begun += 1
        turn = self._turn(lane, name, text, prompt_tokens)
        self._open[turn.id] = _Open(lane, turn, text, prompt_tokens, self._now)
        self._num_unbegun[turn.tenant] += 1
        self._tell(Arrived(turn))

    def _turn(self, lane: _Lane, name: str, text: Text, prompt_tokens: int) -> Turn:
        agents, declared = lane.agents, lane.agents.declared
        chars = prompt_tokens * CHARS_PER_TOKEN - agents.are_strangers * (lane.number + lane.num_sessions) % 9
        return Turn(
            id=f"{name}.{next(self._sequence)}",
            session_id=name if declared.keeps_session else f"{name}.{lane.num_sessions}",
            family_id=f"{name}.{lane.num_sessions}" if agents.are_strangers else agents.tenant,
            tenant=agents.tenant,
            model="m",
            arrived_at=self._now,
            blocks=text.chain(BLOCK_TOKENS)[: chars // BLOCK_CHARS],
            chars=chars,
            max_output_tokens=declared.max_output_tokens,
            kind=TurnKind.SIDE if declared.is_side else TurnKind.AGENT,
            parent_id=f"{agents.tenant}0.0" if declared.names_parent else None,
            remaining_turns=declared.remaining,
            is_retry=declared.says_retry,
            priority_class=agents.priority_class,
            weight=agents.weight,
            deadline_at=None if declared.deadline_s is None else self._now + declared.deadline_s,
            max_wait_s=agents.max_wait_s,
            history=History(9, chars // 10, chars * 9 // 10) if declared.tells_history else None,
        )

    def _next(self, lane: _Lane) -> None:
        agents = lane.agents
        if lane.num_begun >= agents.num_turns:
            lane.num_begun, lane.num_sessions = 0, lane.num_sessions + 1
        self._at(self._now + agents.gap_s, partial(self._send, lane))

    def _tell(self, fact: Fact) -> None:
        decisions, wake_at = self._scheduler.tell(fact, self._now)
        for decision in decisions:
            self._carry_out(decision)
        if wake_at is not None and (self._wake_at is None or wake_at < self._wake_at):
            self._wake_at = wake_at
            self._at(max(wake_at, self._now), self._tick)

    def _tick(self) -> None:
        self._wake_at = None
        self._tell(Tick())

    def _carry_out(self, decision: Decision) -> None:
        if isinstance(decision, Reject):
            sent = self._open.pop(decision.turn_id)
            self.refused[sent.turn.tenant] += 1
            self._num_unbegun[sent.turn.tenant] -= 1
            self._at(self._now + decision.retry_after_s, partial(self._next, sent.lane))
        elif isinstance(decision, Dispatch):
            sent = self._open[decision.turn_id]
            if self._now >= self.warm_s:
                self.waited_s.setdefault(sent.turn.tenant, []).append(self._now - sent.wanted_at)
            if decision.reason is Reason.OPEN:
                self.open_at.append(self._now)
            tokens, priority = sent.lane.agents.output_tokens, -decision.hints.urgency
            request = ModelRequest(sent.turn.id, sent.text.chain(16), sent.prompt_tokens, tokens, priority)
            self._model.submit(request)
            if not self._is_busy:
                self._is_busy = True
                self._at(self._now, self._step)

    def _step(self) -> None:
        step = self._model.step(self._events[0][0] - self._now if self._events else 0.0)
        self._is_busy = step is not None
        if step is not None:
            self._measure(step)
            self._at(self._now + step.duration_s, partial(self._stepped, step))

    def _measure(self, step: Step) -> None:
        for turn_id in step.admitted:
            sent = self._open[turn_id]
            if sent.begun_at is None:
                sent.begun_at = self._now
                self._num_unbegun[sent.turn.tenant] -= 1
                if self._now >= self.warm_s:
                    self.begun_s.setdefault(sent.turn.tenant, []).append(self._now - sent.wanted_at)
        if self._now < self.warm_s:
            return
        self.worked_s += step.duration_s
        for tenant, num in self._num_unbegun.items():
            if num:
                self.waiting_s[tenant] += step.duration_s
        for prefilled in step.prefilled:
            if prefilled.is_first:
                sent = self._open[prefilled.id]
                self.computed_tokens[sent.turn.tenant] += 1 + sent.prompt_tokens - prefilled.cached_tokens
        for turn_id in step.decoded:
            self.computed_tokens[self._open[turn_id].turn.tenant] += step.num_iterations

    def _stepped(self, step: Step) -> None:
        for prefilled in step.prefilled:
            if prefilled.is_first:
                self._open[prefilled.id].cached_tokens = prefilled.cached_tokens
                self._tell(FirstByte(prefilled.id))
        for turn_id in step.finished:
            sent = self._open.pop(turn_id)
            self.done[sent.turn.tenant] += 1
            self.done_at.append((self._now, sent.turn.tenant))
            usage = Usage(sent.prompt_tokens, sent.cached_tokens, sent.lane.agents.output_tokens)
            self._tell(Left(turn_id, Ending.COMPLETE, usage))
            if sent.lane.agents.declared.is_final:
                self._tell(SessionEnded(sent.turn.session_id))
            self._next(sent.lane)
        self._step()
