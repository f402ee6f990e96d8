"""The vocabulary of scheduling: turns, sessions, families and replicas; facts in, decisions out.

Plain values only. The Scheduler alone writes Session, Family and Replica; a policy reads them. Times are seconds
of the driver's monotonic clock, sizes are tokens unless a name says otherwise.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias, TypeVar, dataclass_transform

SessionId: TypeAlias = str
FamilyId: TypeAlias = str
TurnId: TypeAlias = str
ReplicaId: TypeAlias = str
Blocks: TypeAlias = Sequence[int]
"""A residency chain: one 64-bit id per 512-character block of the rendered prompt. An id covers its whole
prefix, so two chains that agree at index i agree everywhere before it."""

BLOCK_CHARS = 512

_Value = TypeVar("_Value")


@dataclass_transform(frozen_default=True)
def value(cls: type[_Value]) -> type[_Value]:
    """Make a dataclass that must not be changed, which mypy checks. The interpreter's own `frozen` makes it four
    times as slow to create, and each model call creates eight of them."""
    return dataclass(slots=True, unsafe_hash=True)(cls)


class TurnKind(StrEnum):
    """The role of a model call in its session. Only AGENT turns enter turn statistics."""

    AGENT = "agent"
    SIDE = "side"  # titles, compaction: a class of its own, low and cheap
    SINGLE = "single"  # a tool-less chain that nothing has extended yet


SIDE = TurnKind.SIDE
"""Compared with some fifteen times per turn: before Python 3.12 a member is found far slower than a global."""


@value
class History:
    """Earlier turns of a session, as the prompt tells of them with which it comes for the first time."""

    num_turns: int
    """Answers of the model in it; at least 1."""
    first_chars: int
    """Length of the prompt of the first of these turns."""
    last_chars: int
    """Of the latest."""


@value
class PromptHead:
    """The part of a prompt before its messages: tools and system text."""

    chars: int
    hash: int
    """Heads are equal where these are; of this process alone."""


@value
class Turn:
    """One model call that wants a slot."""

    id: TurnId
    session_id: SessionId
    family_id: FamilyId
    tenant: str
    model: str
    arrived_at: float
    blocks: Blocks
    """Residency chain of the prompt."""
    chars: int
    """Length of the rendered prompt in characters; tokens follow from the model's learned ratio."""
    max_output_tokens: int | None = None
    kind: TurnKind = TurnKind.AGENT
    parent_id: SessionId | None = None
    remaining_turns: int | None = None
    """Declared by the client: model calls still to come after this one. None: not declared."""
    is_retry: bool = False
    priority_class: int = 0
    """Set by the operator or by an entitled client; higher classes go first, and the default is 0. Turns of a
    class below 0, such as batches, wait while any other turn does: their wait has no bound."""
    weight: float = 1.0
    """Weight of its tenant in the fair share."""
    deadline_at: float | None = None
    """When it must have begun; later it is refused. None: no deadline."""
    max_wait_s: float = 300.0
    """Longest wait that its client survives. A turn that would wait longer is refused on arrival."""
    cached_at: ReplicaId | None = None
    """Where another gateway last ran a turn of its session. None: not known."""
    history: History | None = None
    """Of a session that begins with one: another gateway served it, or this one before it was restarted. None: it
    begins with its task, or was seen before."""
    pinned_to: ReplicaId | None = None
    """The only replica that can serve it (a stateful response lives there). None: any."""
    excluded: frozenset[ReplicaId] = frozenset()
    """Replicas that already failed this call."""
    not_before: float = 0.0
    """Earliest time at which it may go: the replicas that could serve it have refused it."""
    unranked: frozenset[ReplicaId] = frozenset()
    """Replicas whose own queue does not use its rank."""
    head: PromptHead | None = None
    """Of a first prompt. None: it has none, or the turn is not the first of its session."""
    streams: bool = True
    """Whether its first byte comes when its answer begins. False: its answer comes whole."""


class SessionState(StrEnum):
    """State of a session; each has exactly one."""

    WAITING = "waiting"  # a turn of it is held at the gate
    RUNNING = "running"  # a turn of it holds a slot
    IDLE = "idle"  # between turns: a tool runs, or it has ended without a word


@dataclass(slots=True, eq=False)
class Session:
    """One agent run, as far as its turns have shown."""

    id: SessionId
    family_id: FamilyId
    tenant: str
    parent_id: SessionId | None = None
    kind: TurnKind = TurnKind.AGENT
    num_begun: int = 0
    """Agent turns that have arrived, without retries; with `num_earlier`."""
    num_earlier: int = 0
    """Turns that are known from the history alone with which it came."""
    presumed_blocks: int = 0
    """Until its first answer: blocks of that history that count as cached, though no turn here has shown it."""
    declared_turns: int | None = None
    """Turns still to come, as its client said last. They count for its order among the turns of its tenant."""
    remaining_turns: int | None = None
    """The same where it is believed, which is while no other tenant sends turns. None: learned from the family."""
    num_waiting: int = 0
    num_running: int = 0
    replica_id: ReplicaId | None = None
    """Where its prefix was last computed. None: nowhere yet."""
    is_resident: bool = False
    """Whether it is meant to stay cached on `replica_id`. Then its blocks are in the ledger of that replica."""
    blocks: Blocks = ()
    held_blocks: int = 0
    """Blocks that count as its tenant's part of the replica; 0 while it is not resident."""
    prompt_tokens: int = 0
    """Size of its last prompt, as reported, else estimated."""
    kept_tokens: int | None = None
    """How much of that its engine still has, as the engine said itself. None: it reported no loss."""
    is_followed: bool = False
    """Whether its engine reports its losses there."""
    decode_s: float = 0.0
    """Time from the first byte of its last complete answer to the end."""
    tools: str = ""
    """Names of the tools that its last answer called; empty: none."""
    tool_s: float | None = None
    """How long they take, where the gateway runs them itself. None: not known."""
    found_prefix: bool = False
    """Whether the prompt before its last one was still cached."""
    priority_class: int = 0
    """Class of its last turn. A resident yields to no turn of a lower class."""
    idle_since: float = 0.0
    lease_until: float = 0.0
    """While idle: when its lease ends."""
    is_expired: bool = False
    """While idle: its first lease ran out."""
    is_presumed_ended: bool = False
    """It counts as ended until it comes back: its lease ran out, or its client ended it."""
    is_recalled: bool = False
    """An earlier gateway held it, and nothing is known here but its size. It keeps the room until a session with
    such a history comes, which takes its place, or until its lease ends."""

    @property
    def is_presumed(self) -> bool:
        """Whether its history alone says that it has begun: its first turn here is its latest."""
        return 0 < self.num_earlier == self.num_begun - 1

    @property
    def state(self) -> SessionState:
        if self.num_running:
            return SessionState.RUNNING
        return SessionState.WAITING if self.num_waiting else SessionState.IDLE


@dataclass(slots=True, eq=False)
class Family:
    """Sessions that share a prompt prefix, and the lessons of them. Written by the Scheduler through
    `learning`."""

    id: FamilyId
    num_sessions: int = 0
    """Sessions that the Scheduler still remembers."""
    ended: list[int] = field(default_factory=list)
    """ended[k]: sessions that ended after k turns."""
    continued: list[int] = field(default_factory=list)
    """continued[k]: sessions that began a further turn after k turns."""
    append_tokens: float | None = None
    """Mean growth of the prompt from one turn to the next. None: not seen yet."""
    first_blocks: Blocks = ()
    """Of the first prompt that arrived last."""
    first_chars: int = 0
    """Length of that prompt."""
    first_head: PromptHead | None = None
    """Of the same prompt."""
    edge_chars: int = 0
    """Of the block in which the prefix that its first prompts share ends: the part that belongs to the prefix.
    Each of their chains has this block as one of its own."""
    private_chars: float | None = None
    """Mean length of a first prompt behind the prefix that the one before has, too. None: no sibling yet."""
    tokens_per_char: float = 0.25
    """Of its model, as last known."""
    output_tokens: float | None = None
    """Mean length of an answer."""
    most_output_tokens: int | None = None
    """Largest bound that a turn put on its answer. None: no turn had one."""
    gaps_s: dict[str, IdleTimes] = field(default_factory=dict)
    """Idle times between two turns of a session, by the tools that were called; under "" those after any tool."""
    calls_tools: bool = False
    """Whether an answer called a tool. Then an answer without a call is likely the last of its session."""
    num_closed: int = 0
    """Sessions that ended after an answer without tool calls."""
    num_reopened: int = 0
    """Sessions that went on after one."""
    expected_remaining: list[float] = field(default_factory=list)
    """Cache of `forecast.curve`; emptied by `learning.is_news`."""
    forecasts: dict[tuple[int, int | None], Sequence[float]] = field(default_factory=dict)
    """Cache of the policy's forecast, by the stage of a session; emptied by `learning.is_news`."""
    found_share: float | None = None
    """Share of the returns that found the prompt before in the cache. None: not seen yet."""
    num_unfound: int = 0
    """Histories with which sessions came that were not cached, less those that were."""
    num_lessons: int = 0
    next_lesson: int = 1
    """Number of the lesson that empties the caches."""


@dataclass(slots=True, eq=False)
class Replica:
    """One KV pool: an engine process, or one worker behind a Dynamo frontend."""

    id: ReplicaId
    models: frozenset[str] = frozenset()
    """Models that it serves; empty: any."""
    is_healthy: bool = True
    slots: int | None = None
    """Model calls that it may run at once (its `max_num_seqs`), as stated or learned. None: no bound."""
    share: float = 1.0
    """Part of it that this gateway may use; several gateways may share it."""
    is_on_trial: bool = False
    """It failed too often, and gets one call at a time."""
    own_slots: float = field(init=False)
    running: dict[TurnId, int] = field(default_factory=dict)
    """Turns that hold a slot, with their prompt tokens still to be prefilled; 0 after the first byte."""
    queued_prefill_tokens: int = 0
    """Sum over the running turns."""

    def __post_init__(self) -> None:
        self.resize(self.slots, self.share)

    def resize(self, slots: int | None, share: float, is_on_trial: bool = False) -> None:
        self.slots, self.share, self.is_on_trial = slots, share, is_on_trial
        self.own_slots = math.inf if slots is None else max(1, round(share * slots))
        if is_on_trial:
            self.own_slots = 1

    @property
    def free_slots(self) -> float:
        return max(0, self.own_slots - len(self.running))

    def occupy_slot(self, turn_id: TurnId, prefill_tokens: int) -> None:
        """Give a turn a slot."""
        self.queued_prefill_tokens += prefill_tokens - self.running.get(turn_id, 0)
        self.running[turn_id] = prefill_tokens

    def end_prefill(self, turn_id: TurnId) -> None:
        """Count the prefill of a turn as over: the first byte of its answer came."""
        self.queued_prefill_tokens -= self.running[turn_id]
        self.running[turn_id] = 0

    def free_slot(self, turn_id: TurnId) -> None:
        """Take the slot of a turn back, if it has one."""
        self.queued_prefill_tokens -= self.running.pop(turn_id, 0)


@value
class Usage:
    """Tokens of one call, as the engine reported them. None: not reported."""

    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None


class Ending(StrEnum):
    """How a turn ended."""

    COMPLETE = "complete"
    CANCELLED = "cancelled"  # the client left
    FAILED = "failed"  # the engine failed it
    REFUSED = "refused"  # the engine said 429, 503 or 529: it is full, not broken


COMPLETE = Ending.COMPLETE
"""As `SIDE`."""


# ---- what was learned, as it is kept over a restart: numbers and names of tools; no content


@value
class PaceLessons:
    """Of `learning.Pace`."""

    prefill_base_s: float
    prefill_token_s: float
    prefills: tuple[float, ...]
    """The sums of a `learning.Line`, as are `decodes`."""
    decodes: tuple[float, ...]
    output_tokens: float | None
    cycle_s: float
    gap_s: float | None
    gaps_s: tuple[float, ...]
    returns: tuple[float, float, float]
    counts_cached: bool


@value
class ResidentLessons:
    """Of one resident: the marks of its return, and its size; no content."""

    family_id: FamilyId
    num_begun: int
    chars: int
    """Of its last prompt."""
    own_blocks: int
    """Of that prompt, which no other resident shares."""
    is_running: bool


@value
class PoolLessons:
    """Of one replica."""

    replica_id: ReplicaId
    models: frozenset[str]
    ratio: tuple[float, float]
    """Tokens and characters of answered prompts."""
    pace: PaceLessons
    grain_tokens: int
    kept_answers: float | None
    stated_tokens: int | None
    capacity_tokens: float | None
    """Of the whole pool, as it was believed."""
    shown: tuple[tuple[float, float | None], ...]
    """Bounds of that size. None: infinite."""
    slots: int | None
    residents: tuple[ResidentLessons, ...] = ()


@value
class FamilyLessons:
    """Of one family; the names are those of `Family`."""

    id: FamilyId
    ended: tuple[int, ...]
    continued: tuple[int, ...]
    append_tokens: float | None
    private_chars: float | None
    tokens_per_char: float
    output_tokens: float | None
    most_output_tokens: int | None
    gaps_s: tuple[tuple[str, tuple[float, ...]], ...]
    calls_tools: bool
    num_closed: int
    num_reopened: int
    found_share: float | None
    num_unfound: int
    num_lessons: int


@value
class QueueLimits:
    """Beyond what an engine refuses calls instead of queueing them. None: no limit is known."""

    calls: int | None = None
    """Under way at once, those that wait included."""
    waiting: int | None = None
    """In its queue at once."""
    prompt_tokens: int | None = None
    """Of all prompts without a first byte: as many, and it takes no further call."""
    prefill_tokens: int | None = None
    """The same, of the tokens that are not cached."""
    is_full: bool = False
    """It refuses calls now."""


NO_LIMITS = QueueLimits()


# ---- facts: events, in the past tense


@value
class Arrived:
    turn: Turn


@value
class FirstByte:
    """The engine sent the first byte of an answer: the prefill is over."""

    turn_id: TurnId


@value
class Left:
    """A turn gave back its slot, or left the queue. The last fact of its id."""

    turn_id: TurnId
    ending: Ending
    usage: Usage = Usage()
    tool_names: tuple[str, ...] = ()
    """Tools that the answer called, in order; empty when it called none."""
    keep_place_s: float = 60.0
    """How long the session of a turn that leaves the queue unserved keeps its place."""
    tool_s: float | None = None
    """How long those tools take, where the gateway runs them itself. None: not known."""


@value
class ReplicaReported:
    """A replica answered a poll. A field that is None was not reported and keeps its value."""

    replica_id: ReplicaId
    models: frozenset[str] | None = None
    capacity_tokens: int | None = None
    slots: int | None = None
    waiting: int | None = None  # in its own queue
    tokens_per_char: float | None = None  # of a sample prompt; holds until answers show better
    share: float | None = None  # of it that is this gateway's own
    has_strangers: bool | None = None  # whether other gateways may send it turns of other tenants
    running: int | None = None
    is_on_trial: bool | None = None  # whether it gets one call at a time, since too many failed
    lessons: PoolLessons | None = None  # of an earlier gateway, where nothing has been learned here
    limits: QueueLimits | None = None  # of its own queue


@value
class ReplicaLost:
    """It stopped answering. Its cache counts as lost. Turns that run there end by their own facts."""

    replica_id: ReplicaId


@value
class CacheLost:
    """It reported evictions: the prefix tokens that it still has of each session named. None: it lost
    everything. A session is also named when it is first stored: from then on its losses are reported."""

    replica_id: ReplicaId
    kept_tokens: Mapping[SessionId, int] | None


@value
class SessionEnded:
    """The client said that the session has ended. The Scheduler never relies on it."""

    session_id: SessionId


@value
class SessionForgotten:
    """The gateway has dropped the session: no fact will name it again. Ignored while it has turns."""

    session_id: SessionId


@value
class FamiliesRecalled:
    """The lessons of an earlier gateway, told before any turn."""

    families: tuple[FamilyLessons, ...]


@value
class Tick:
    """The time has come that `Scheduler.tell` returned last."""


Fact: TypeAlias = (
    Arrived
    | FirstByte
    | Left
    | ReplicaReported
    | ReplicaLost
    | CacheLost
    | SessionEnded
    | SessionForgotten
    | FamiliesRecalled
    | Tick
)


class Reason(StrEnum):
    """Why a turn went when it did. A metric label, receipt field and response header."""

    FREE = "free"  # nothing was short
    RESIDENT = "resident"
    ADMITTED = "admitted"  # waited for residency, then fitted
    ALONE = "alone"  # larger than the ceiling: it gets the pool alone
    YIELDED = "yielded"  # waited past the bound; idle residents yielded
    SIDE = "side"  # side requests are not gated
    CHEAP = "cheap"  # its session costs the others less than holding it
    OPEN = "open"  # holding sessions does not pay in its pool


class Refusal(StrEnum):
    """Why a turn was refused."""

    TOO_LONG = "wait_too_long"
    DEADLINE = "deadline"
    NO_REPLICA = "no_replica"
    QUEUE_FULL = "queue_full"


class Hold(StrEnum):
    """What a waiting turn waits for."""

    SLOT = "slot"
    RESIDENCY = "residency"
    REPLICA = "replica"


@value
class Hints:
    """Knowledge of the gateway that an engine may use. Each engine file maps it to its own fields."""

    urgency: int = 0
    """At most 100, which goes first. Below 0: after all calls without a rank. Engine files own polarity and
    range."""
    remaining_turns: float | None = None
    """None: not known, or kept from engines."""
    expected_output_tokens: int | None = None
    prefills_next: bool = False
    """Whether the engine should prefill the session's next prompt as soon as this answer is complete."""
    session_id: SessionId = ""
    parent_id: SessionId | None = None


class WaitCause(StrEnum):
    """Why a turn waited at the gate."""

    ROOM = "room"  # the cache of no replica had room for its session
    SLOT = "slot"
    SHARE = "share"  # other tenants went first, which had got less
    REPLICA = "replica"  # those that could serve it had refused it


@value
class Waited:
    """The wait of a turn at the gate."""

    cause: WaitCause
    """Of its longest part."""
    room_s: float
    slot_s: float
    replica_s: float
    behind: tuple[tuple[SessionId, str], ...] = ()
    """Some of the sessions that held the room or the slot when it arrived, with their tenants."""
    num_before: int = 0
    """Turns that waited then."""
    estimate_s: float = 0.0
    """The wait that was expected then. 0: not enough was known."""


@value
class Dispatch:
    turn_id: TurnId
    replica_id: ReplicaId
    reason: Reason
    expected_cached_tokens: int
    hints: Hints = Hints()
    waited: Waited | None = field(default=None, compare=False)
    """None: it went at once. A record, which no decision rests on."""


@value
class Reject:
    turn_id: TurnId
    refusal: Refusal
    retry_after_s: float


@value
class Release:
    """A replica need not keep an idle session in its cache any longer."""

    session_id: SessionId
    replica_id: ReplicaId


@value
class Switched:
    """The gate of a replica opened, since holding sessions does not pay there, or closed again. For the record: it
    asks for nothing."""

    replica_id: ReplicaId
    is_open: bool
    net_s: float
    """Seconds of sessions that the gate saved so far, less those that it cost."""


Decision: TypeAlias = Dispatch | Reject | Release | Switched


# ---- idle times, kept in order, since each turn asks for quantiles and ranks

MAX_IDLE_TIMES = 64


class IdleTimes:
    """Seconds between two turns of a session; the newest MOST of them count."""

    def __init__(self, seen_s: Iterable[float] = ()) -> None:
        self._recent: deque[float] = deque()
        self._ordered: list[float] = []
        for gap_s in seen_s:
            self.add(gap_s)

    def __len__(self) -> int:
        return len(self._ordered)

    def __repr__(self) -> str:
        return f"Gaps({list(self._recent)})"

    def add(self, gap_s: float) -> None:
        if len(self._recent) == MAX_IDLE_TIMES:
            del self._ordered[bisect_left(self._ordered, self._recent.popleft())]
        self._recent.append(gap_s)
        insort(self._ordered, gap_s)

    @property
    def recent(self) -> tuple[float, ...]:
        """The oldest first."""
        return tuple(self._recent)

    @property
    def ordered(self) -> Sequence[float]:
        """The shortest first; read-only."""
        return self._ordered

    def num_longer(self, idle_s: float) -> int:
        return len(self._ordered) - bisect_right(self._ordered, idle_s)

    def quantile(self, share: float) -> float:
        """The caller knows that there is one."""
        return self._ordered[min(len(self._ordered) - 1, int(share * len(self._ordered)))]
