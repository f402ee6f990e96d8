"""The record of one request, in parts: the request, its caller, decisions, the reply, and how it ended.

Each part is built by one stage of the path, and each field of the record is assigned in one file only. The stages
behind read it, and so do metrics, receipts and traces.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from gateway.access.keys import Caller
from gateway.access.limits import Allowance
from gateway.config.live_settings import RequestSettings
from gateway.core import response_ids
from gateway.core.errors import Failure, Outcome
from gateway.core.fields import Json, excerpt
from gateway.core.json_edit import Edit, edited, splice
from gateway.core.pieces import Cut, Member, RawParts
from gateway.core.reply import Reply
from gateway.core.slices import Reading
from gateway.core.transport import HeaderList, Request
from gateway.dialects.base import Dialect, Opening
from policies.engine_queue import EngineTime
from policies.recognition.prefix_breaks import Found
from policies.recognition.prompts import SystemChange
from policies.types import Blocks, Dispatch, History, PromptHead, Turn, TurnKind, Usage, Waited, value

if TYPE_CHECKING:
    from gateway.dialects.rounds import PublicAnswer, Round
    from tool_runtime.types import Call, Result

UNKNOWN = Caller(tenant="", may_prioritise=False)
"""The caller of a request whose key has not been read yet."""


@value
class Payload:
    """The body of a request, and its wishes for the answer."""

    raw: bytes = b""
    body: Json = field(default_factory=dict)
    """`raw`, parsed. Its messages may be those of other requests, too; shared, never changed."""
    requested_model: str = ""
    """The name that the client used."""
    engine_model: str = ""
    """The name that engines are sent."""
    wants_stream: bool = False
    wants_usage: bool = False
    """Whether the client itself asked for streamed usage."""
    places: Sequence[Member] = ()
    """Of the members of `raw`. Empty: they are not known."""

    def for_model(self, engine_model: str) -> Payload:
        """Return the payload for engines that know its model by this name."""
        return Payload(
            self.raw,
            self.body,
            self.requested_model,
            engine_model,
            self.wants_stream,
            self.wants_usage,
            self.places,
        )

    def with_keys(self, **changes: Any) -> Payload:
        """Return the payload with these top-level keys set."""
        return self.with_text(splice(self.raw, self.body, changes, (), self.places), self.body | changes)

    def with_items(self, key: str, edits: Sequence[Edit]) -> Payload:
        """Return the payload with the list under `key` edited."""
        raw, body = edited(self.raw, self.body, key, edits)
        return self.with_text(raw, body)

    def with_text(self, raw: bytes, body: Json) -> Payload:
        return replace(self, raw=raw, body=body, places=())


@value
class Recognition:
    """The session that sent a request, how that was found, and how sure it is."""

    session_id: str
    family_id: str
    parent_id: str | None
    turn_index: int
    """0 for the first agent turn of the session."""
    kind: TurnKind
    source: str
    """Name of the rule that decided: a header name, `prompt_cache_key`, `chain`, or `new`."""
    confidence: float
    """1.0: header and chain agree; lower when only one of them speaks."""
    is_retry: bool
    blocks: Blocks
    """The residency chain of the prompt; shared, never changed."""
    chars: int
    remaining_turns: int | None = None
    """Declared: model calls still to come after this one. None: not declared."""
    is_final: bool = False
    """The client says that its session ends with this answer."""
    agent: str = ""
    """Name of the client's program, one visible line. Empty: not known."""
    client_session: str | None = None
    """The client's own id of the session, one visible line. Only its tenant may see it. None: it gave none."""
    client_hash: str | None = None
    """A keyed hash of it, for logs and operators."""
    history: History | None = None
    """Earlier turns of a session that comes for the first time, as its prompt tells of them."""
    head: PromptHead | None = None
    """Tools and system text of a first prompt."""
    system_hash: int = 0
    """Of its system text, of this process alone; 0: it is a side request."""
    system_change: SystemChange | None = None
    """Of a later turn on the same model. None: its system text is that of the turn before."""


@value
class EngineAttempt:
    """One call of an engine."""

    engine_kind: str
    number: int
    """Among the attempts at the same model call, from 1."""
    dispatch: Dispatch | None = None
    """The Scheduler's decision. None: the request is no turn."""


@value
class RequestEnd:
    """How a request ended."""

    outcome: Outcome
    failure: Failure | None = None
    """What the client received instead of an answer."""


@dataclass(slots=True)
class Timings:
    """Monotonic seconds; None: not reached."""

    received_at: float
    recognised_at: float | None = None
    leased_at: float | None = None
    engine_asked_at: float | None = None
    first_byte_at: float | None = None
    finished_at: float | None = None


@dataclass(slots=True)
class TimeSplit:
    """Where the time of a request went, in seconds: sums over its model calls. The gateway's own time is the
    rest."""

    gate_s: float = 0.0
    queue_s: float = 0.0
    """In engines' queues, as far as can be inferred."""
    prefill_s: float = 0.0
    beside_s: float = 0.0
    """Part of the prefill that went to prompts of other calls."""
    queue_beside_s: float = 0.0
    """The same part of the queues."""
    queue_unclear_s: float = 0.0
    """By how much `queue_s` may be wrong."""
    decode_s: float = 0.0
    failed_s: float = 0.0
    """At replicas that failed before an answer began."""
    tools_s: float = 0.0
    """In tools of the gateway."""
    waited: Waited | None = None
    """The longest wait at the gate. None: it never waited."""

    def saw_gate(self, gate_s: float, waited: Waited | None) -> None:
        """Count the wait of a model call at the gate, or of one more attempt at it."""
        is_longest = gate_s > self.gate_s
        self.gate_s += gate_s
        if waited is not None and (is_longest or self.waited is None):
            self.waited = waited

    def saw_engine(self, spent: EngineTime) -> None:
        """Count a model call."""
        self.queue_s += spent.queue_s
        self.prefill_s += spent.prefill_s
        self.beside_s += spent.beside_s
        self.queue_beside_s += spent.queue_beside_s
        self.queue_unclear_s += spent.unclear_s
        self.decode_s += spent.decode_s

    def saw_failure(self, seconds: float) -> None:
        """Count a call that was not answered."""
        self.failed_s += seconds

    def saw_tools(self, seconds: float) -> None:
        """Count a wait for tools of the gateway."""
        self.tools_s += seconds


class Trace(Protocol):
    """The trace of one request. Synchronous but for `run_tool`; never fails the request that it is about."""

    id: str
    """As in `traceparent`."""

    def begin_call(self, exchange: Exchange, engine: str, base_url: str, headers: HeaderList) -> HeaderList:
        """Begin the span of a model call. Return its headers with this trace's context, not the client's."""
        ...

    def end_call(self, exchange: Exchange) -> None:
        """End the span of the model call; harmless where there is none."""
        ...

    async def run_tool(self, call: Call, running: Awaitable[Result]) -> Result:
        """Return the result of a tool that the gateway runs, under a span of its own."""
        ...

    def finished(self, exchange: Exchange) -> None:
        """End the trace; the request has its outcome."""
        ...


class AnswerRounds(Protocol):
    """The rounds of one answer in which tools of the gateway may be called."""

    answer: PublicAnswer
    client_body: Json
    """The request's body as its client sent it."""
    payload: Payload
    """What the next model call is sent."""

    async def __aenter__(self) -> Any: ...

    async def __aexit__(self, *ended: Any) -> None: ...

    def round(self) -> Round:
        """Begin the next model call."""
        ...

    async def goes_on(self) -> bool:
        """Run what the last model call called. Return whether the model is asked again."""
        ...

    def next_turn(self, turn: Turn) -> Turn:
        """Return the turn of the next model call."""
        ...

    def body(self, last: bytes) -> bytes:
        """Return the whole answer, where it is not streamed. `last`: the engine's body of the last model call."""
        ...

    def tool_s(self) -> float | None:
        """Return how long the called tools are expected to take. None: not known."""
        ...

    def answered(self, is_whole: bool) -> None:
        """End the answer."""
        ...


@dataclass(slots=True, eq=False, repr=False)
class Exchange:
    """One client request from the first byte to the last; owned by its handler task alone."""

    # The request.
    id: str
    request: Request
    dialect: Dialect
    timings: Timings
    settings: RequestSettings = RequestSettings()
    """The settings under which it began, to its end."""
    payload: Payload = Payload()
    reading: Reading | None = None
    """Of a large body. None: it is small, and read at once."""
    cut: Cut | None = None
    """The raw texts of its parts, until its session is recognised."""
    raw_parts: RawParts | None = None
    """Their fingerprints, likewise, where they are known from its parse."""

    # Its caller.
    caller: Caller = UNKNOWN
    allowance: Allowance | None = None
    """The amounts that it has taken of its key's limits. None: the key has no limits."""
    recognition: Recognition | None = None
    prefix_break: Found | None = None
    """Of a session's first prompt, once compared with its siblings'."""
    trace: Trace | None = None
    """None: it is not traced."""

    # Decisions.
    loop: AnswerRounds | None = None
    """None: the answer cannot call tools of the gateway, and is relayed as it comes."""
    attempt: EngineAttempt | None = None
    """The latest one."""
    notes: list[str] = field(default_factory=list)
    """What the gateway changed or dropped, for the receipt; never content."""

    # The reply, and the part of it that the client has.
    reply: Reply = field(default_factory=Reply)
    """Of the latest model call."""
    rounds: list[Json] = field(default_factory=list)
    """One row for each model call of an answer that may call tools of the gateway, for the receipt."""
    tools_at: list[float] = field(default_factory=list)
    """Begin and end of each wait for tools of the gateway, monotonic seconds; an odd number: they run now."""
    given_id: str = ""
    """The gateway's own id for the answer. Engines that take an id receive it; the client knows it once it was
    kept waiting."""
    bound_of: tuple[Json, int | None] | None = None
    """The body whose bound on the output was read last, and that bound."""
    opening: Opening | None = None
    """What the client was sent while it waited, in an answer without tools of the gateway. None: nothing."""
    spent: TimeSplit = field(default_factory=TimeSplit)
    recomputed_tokens: int = 0
    """Of the session's earlier prompt, which its engine no longer had."""
    charges: list[Usage] = field(default_factory=list)
    """What limits count of each model call before the latest."""
    is_delivered: bool = False
    """Whether the client was sent a stream up to the event that ends the answer. Some leave right after it."""

    # How it ended.
    end: RequestEnd | None = None

    def note(self, text: str) -> None:
        """Note a change for the receipt, once, however often it happens."""
        if text not in self.notes:
            self.notes.append(text)

    def give_id(self) -> str:
        """Return the gateway's own id for the answer, made once."""
        if not self.given_id:
            is_stored = self.dialect.stores_answers
            self.given_id = response_ids.new_id(self.caller.tenant) if is_stored else f"turngate-{self.id}"
        return self.given_id

    def mark_delivered(self) -> None:
        """Record that the client was sent the end of the answer."""
        self.is_delivered = True

    @property
    def dispatch(self) -> Dispatch | None:
        """The Scheduler's decision for the latest attempt."""
        return self.attempt.dispatch if self.attempt is not None else None

    @property
    def answer_id(self) -> str:
        """The id by which the client knows the answer."""
        if self.loop is not None:
            return self.loop.answer.id or self.reply.id
        return self.reply.id if self.opening is None else self.given_id

    @property
    def max_output_tokens(self) -> int | None:
        """The client's bound on the output. None: it sets none."""
        body, known = self.payload.body, self.bound_of
        if known is None or known[0] is not body:
            known = self.bound_of = body, self.dialect.max_tokens(body)
        return known[1]

    @property
    def logged_model(self) -> str:
        """The requested model as it is kept and logged."""
        return excerpt(self.payload.requested_model)

    @property
    def request_id(self) -> str | None:
        """The client's own id of the request, as it is kept, logged and sent on. None: the client gave none."""
        given = self.request.headers.get("x-request-id")
        return None if given is None else excerpt(given)

    @property
    def engine_request_id(self) -> str:
        """The id of the request for engines, which may mistake two requests with one id for each other."""
        given = self.request_id
        if given is None:
            return self.id
        return response_ids.scoped(given, self.caller.tenant) if self.caller.id else given

    @property
    def usage(self) -> Usage:
        """The usage of the whole answer: a sum over its model calls."""
        if len(self.rounds) <= 1:
            return self.reply.usage
        return Usage(*(_sum(self.rounds, key) for key in ("prompt_tokens", "cached_tokens", "output_tokens")))

    @property
    def charged(self) -> list[Usage]:
        """What limits count of each model call."""
        return self.charges if self.reply.is_charged else [*self.charges, self.reply.charge]

    @property
    def has_engine_worked(self) -> bool:
        """Whether an engine has spent time on it, as far as is known when it has ended."""
        if self.timings.first_byte_at is not None:
            return True
        is_possible = self.end is not None and self.end.outcome in (Outcome.ANSWERED, Outcome.CLIENT_GONE)
        return self.attempt is not None and is_possible


def _sum(rounds: Sequence[Json], key: str) -> int | None:
    known = [row[key] for row in rounds if row[key] is not None]
    return sum(known) if known else None
