"""What a simulation is given and what it gives back: the world, and every turn and session in virtual seconds."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from gateway.embedded.model import EngineSpec
from policies.types import Decision, Fact


class Decider(Protocol):
    """The Scheduler, or what a benchmark puts in its place."""

    def tell(self, fact: Fact, now: float) -> tuple[list[Decision], float | None]: ...


class CachedTokens(StrEnum):
    """How an engine reports the cached tokens of a prompt."""

    TOLD = "told"
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
    cached_tokens: CachedTokens = CachedTokens.TOLD
    rehits_outputs: bool = False
    """Whether generated tokens are found again in the next prompt; Dynamo's mocker never does."""
    declares_turns: bool = False
    """Whether clients announce how many turns are still to come."""
    declares_end: bool = False
    """Whether clients say when a session has ended."""
    max_wait_s: float = 1e9


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
class Result:
    turns: list[SimulatedTurn] = field(default_factory=list)
    """In the order of their ends."""
    sessions: list[SimulatedSession] = field(default_factory=list)
    preemptions: int = 0
    warm_ups: int = 0
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
        """Completion times of the sessions that are nobody's sub-agent."""
        return [session.completion_s for session in self.sessions if not session.is_child]

    @property
    def mean_session_s(self) -> float:
        return sum(self.session_s) / len(self.session_s)

    @property
    def max_wait_s(self) -> float:
        """Longest time at the gate."""
        return max(turn.dispatched_at - turn.wanted_at for turn in self.turns)
