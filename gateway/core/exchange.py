"""The vocabulary of the path: one Exchange per request, one Reply per model call, one Outcome at the end."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeAlias

from gateway.config.live_settings import RequestSettings
from gateway.core import response_ids
from gateway.core.excerpt import excerpt
from gateway.core.text_buffer import TextBuffer
from policies.recognition.prefix_breaks import Found
from policies.types import Blocks, Dispatch, TurnKind, Usage, value

if TYPE_CHECKING:
    from gateway.access.allowance import Allowance
    from gateway.core.errors import Failure
    from gateway.core.transport import Request
    from gateway.dialects.base import Dialect, Opening
    from gateway.telemetry.tracing import Trace
    from gateway.tools.loop import ToolLoop

Json: TypeAlias = dict[str, Any]
"""A parsed JSON object of unknown shape; read it through the accessors of `gateway.core.fields`."""


class Outcome(StrEnum):
    """Every way a request can end: metric label and log field. `errors.STATUS` maps the failures to HTTP."""

    ANSWERED = "answered"
    BAD_REQUEST = "bad_request"
    UNAUTHORISED = "unauthorised"
    FORBIDDEN = "forbidden"
    NOT_FOUND = "not_found"
    REJECTED_LIMIT = "rejected_limit"
    REJECTED_WAIT = "rejected_wait"
    REJECTED_DEADLINE = "rejected_deadline"
    REJECTED_NO_ENGINE = "rejected_no_engine"
    REJECTED_QUEUE_FULL = "rejected_queue_full"
    REJECTED_STOPPING = "rejected_stopping"
    CLIENT_GONE = "client_gone"
    ENGINE_REFUSED = "engine_refused"
    ENGINE_FAILED = "engine_failed"
    ENGINE_CUT = "engine_cut"
    GATEWAY_ERROR = "gateway_error"


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


class ToolCall:
    """A call that the model wrote. Its arguments may still come."""

    __slots__ = ("id", "name", "written")

    def __init__(self, id_: str, name: str, arguments: str = "") -> None:
        self.id = id_
        self.name = name
        self.written = TextBuffer(arguments)

    @property
    def arguments(self) -> str:
        return str(self.written)

    def __repr__(self) -> str:
        return f"ToolCall({self.id!r}, {self.name!r}, {self.arguments!r})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ToolCall):
            return NotImplemented
        return (self.id, self.name, self.written) == (other.id, other.name, other.written)

    __hash__ = None  # type: ignore[assignment]


@dataclass(slots=True)
class Reply:
    """What one model call answered, as read from a copy of its bytes."""

    status: int = 0
    id: str = ""
    """The engine's id of a stored answer (`/v1/responses`)."""
    served_by: str | None = None
    """Name of the KV pool that computed it, where the engine says so."""
    model: str = ""
    written: TextBuffer = field(default_factory=TextBuffer)
    """Its text."""
    tool_calls: list[ToolCall] = field(default_factory=list)
    finish_reason: str | None = None
    usage: Usage = Usage()
    is_complete: bool = False
    """Whether the engine ended the answer itself."""

    @property
    def text(self) -> str:
        return str(self.written)


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
    allowance: Allowance | None = None
    """What it has taken of its key's limits. None: nothing is limited."""
    loop: ToolLoop | None = None
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
            is_response = self.dialect.name == "responses"
            self.given_id = response_ids.new_id(self.tenant) if is_response else f"turngate-{self.id}"
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
