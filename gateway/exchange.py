"""The record of one request: what was asked, who asks, what was decided, what came back, and how it ended.

Parts of it come from folders that stand above this module: it knows them by what it needs of them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from gateway.config.live_settings import RequestSettings
from gateway.core import response_ids
from gateway.core.errors import Failure, Outcome
from gateway.core.fields import Json, excerpt
from gateway.core.reply import Reply
from gateway.core.transport import HeaderList, Request
from gateway.dialects.base import Dialect, Opening
from policies.recognition.prefix_breaks import Found
from policies.types import Blocks, Dispatch, Turn, TurnKind, Usage, value

if TYPE_CHECKING:
    from gateway.dialects.rounds import PublicAnswer, Round
    from tool_runtime.types import Call, Result


class Trace(Protocol):
    """Of one request. Synchronous but for `tool`, and never fails the request that it is about."""

    id: str
    """As `traceparent` has it."""

    def asks(self, exchange: Exchange, engine: str, base_url: str, headers: HeaderList) -> HeaderList:
        """A model call goes out: its headers, with this trace's context in the place of the client's."""
        ...

    def asked(self, exchange: Exchange) -> None:
        """The model call is over; harmless when there was none."""
        ...

    async def tool(self, call: Call, running: Awaitable[Result]) -> Result:
        """The result of a tool that the gateway runs."""
        ...

    def finished(self, exchange: Exchange) -> None:
        """The request has its outcome."""
        ...


class RequestAllowance(Protocol):
    """What one request has taken of its key's limits."""

    def enter(self) -> None:
        """Take one request and a place among those at once. Raises Refused."""
        ...

    def reserve(self, exchange: Exchange) -> None:
        """Take tokens by estimate. Raises Refused."""
        ...

    def settle(self, exchange: Exchange) -> None:
        """Give back what was not used."""
        ...

    def headers(self) -> list[tuple[str, str]]:
        """What is left, for the client."""
        ...


class AnswerRounds(Protocol):
    """The rounds of one answer in which tools of the gateway may be called."""

    answer: PublicAnswer
    asked: Json
    """The request's body as its client sent it."""

    async def __aenter__(self) -> Any: ...

    async def __aexit__(self, *ended: Any) -> None: ...

    def round(self) -> Round:
        """The next model call begins."""
        ...

    async def goes_on(self) -> bool:
        """The model call is over: run what it called. Whether the model is asked again."""
        ...

    def next_turn(self, turn: Turn) -> Turn:
        """The turn of the next model call."""
        ...

    def body(self, last: bytes) -> bytes:
        """The whole answer, where it is not streamed. `last`: the engine's body of the last model call."""
        ...

    def tool_s(self) -> float | None:
        """How long the tools that were called are expected to take. None: not known."""
        ...

    def answered(self, is_whole: bool) -> None:
        """The answer is over."""
        ...


@value
class Recognition:
    """Who sent this request, how that was found, and how sure it is."""

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


@dataclass(slots=True)
class Timings:
    """Monotonic seconds; None: not reached."""

    received_at: float
    recognised_at: float | None = None
    leased_at: float | None = None
    engine_asked_at: float | None = None
    first_byte_at: float | None = None
    finished_at: float | None = None


@dataclass(slots=True, eq=False, repr=False)
class Exchange:
    """One client request from the first byte to the last; owned by its handler task alone."""

    id: str
    request: Request
    dialect: Dialect
    tenant: str
    timings: Timings
    raw: bytes = b""
    body: Json = field(default_factory=dict)
    asked_model: str = ""
    """The name the client used."""
    engine_model: str = ""
    wants_stream: bool = False
    wants_usage: bool = False
    """Whether the client asked for streamed usage itself."""
    may_prioritise: bool = False
    """Whether the client's key lets it set its own priority and worker pin."""
    urgency: int = 0
    """Class of its turns, higher first: 0 is every client's, lines of batches are below."""
    weight: float = 1.0
    """Of its tenant, in the fair share."""
    cache_salt: str = ""
    """Keeps its tenant's prompts apart in engines' caches. Empty: tenants share them."""
    key_id: str = ""
    """Name of the client's key, for audits."""
    allowance: RequestAllowance | None = None
    """What it has taken of its key's limits. None: nothing is limited."""
    loop: AnswerRounds | None = None
    """None: no tool of ours can be called in the answer, which is relayed as it comes."""
    rounds: list[Json] = field(default_factory=list)
    """Model calls of an answer that may call our tools, for the receipt."""
    tools_at: list[float] = field(default_factory=list)
    """Begin and end of each wait for our tools, monotonic seconds; odd: they run now."""
    trace: Trace | None = None
    """None: it is not traced."""
    recognition: Recognition | None = None
    prefix_break: Found | None = None
    """Of a session's first prompt, once compared with its siblings'."""
    dispatch: Dispatch | None = None
    engine_kind: str = ""
    num_attempts: int = 0
    notes: list[str] = field(default_factory=list)
    """What the gateway changed or dropped, for the receipt; never content."""
    given_id: str = ""
    """Made by the gateway for its answer. Engines that take an id are told it; its client knows it once it was
    kept waiting."""
    opening: Opening | None = None
    """What its client was sent while it waited, in an answer that cannot call our tools. None: nothing."""
    reply: Reply = field(default_factory=Reply)
    settings: RequestSettings = RequestSettings()
    """Those that it began under, to its end."""
    is_delivered: bool = False
    """Whether its client was sent a stream up to the event that ends the answer. Some leave right after it."""
    outcome: Outcome | None = None
    failure: Failure | None = None
    """What its client was told instead of an answer."""

    def give_id(self) -> str:
        """Make an id for its answer, once."""
        if not self.given_id:
            is_stored = self.dialect.stores_answers
            self.given_id = response_ids.new_id(self.tenant) if is_stored else f"turngate-{self.id}"
        return self.given_id

    @property
    def answer_id(self) -> str:
        """By which its client knows the answer."""
        if self.loop is not None:
            return self.loop.answer.id or self.reply.id
        return self.reply.id if self.opening is None else self.given_id

    @property
    def told_model(self) -> str:
        """`asked_model` as it is kept and logged."""
        return excerpt(self.asked_model)

    @property
    def told_id(self) -> str | None:
        """The client's own id of the request, likewise, and as engines and the client are told it. None: it gave
        none."""
        given = self.request.headers.get("x-request-id")
        return None if given is None else excerpt(given)


def whole_usage(exchange: Exchange) -> Usage:
    """Of all model calls of an answer; those of the last alone while nothing of ours was called."""
    if len(exchange.rounds) <= 1:
        return exchange.reply.usage
    return Usage(*(_sum(exchange.rounds, key) for key in ("prompt_tokens", "cached_tokens", "output_tokens")))


def _sum(rounds: Sequence[Json], key: str) -> int | None:
    known = [row[key] for row in rounds if row[key] is not None]
    return sum(known) if known else None
