"""The vocabulary of tools: a tool, its limits, a call, its result. Plain values only.

Durations are seconds, sizes are bytes of UTF-8.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeAlias

from pydantic_core import PydanticSerializationError, to_json

Json: TypeAlias = dict[str, Any]


class Effect(StrEnum):
    """What a call does to the world. It decides whether calls may be shared, cached and repeated."""

    READ_ONLY = "read_only"  # coalesced, and cached if it has a TTL
    IDEMPOTENT = "idempotent"  # a write that can be repeated: coalesced while in flight, never cached
    DESTRUCTIVE = "destructive"  # each call runs exactly once; an undeclared tool counts as destructive


class Scope(StrEnum):
    """The callers that may share one execution and its cached result."""

    SESSION = "session"
    TENANT = "tenant"
    GLOBAL = "global"  # for tools whose results are public and the same for every caller


NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
NEVER = "never"
ALWAYS = "always"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of one tool."""

    timeout_s: float = 30.0
    """Longest time that a caller waits for an execution that has started."""
    queue_s: float = 300.0
    """Longest time that a caller waits for a place and for the rate limit."""
    concurrency: int | None = None
    """Executions at once, shared fairly between tenants. A group of calls is one execution. None: no limit."""
    rate_per_s: float | None = None
    """Executions started per second, shared likewise. A burst is one second's worth. None: no limit."""
    max_result_bytes: int = 65_536
    ttl_s: float = 0.0
    """How long a result is served again, for read-only tools. 0: it is not cached."""
    negative_ttl_s: float = 0.0
    """How long an error is served again."""
    scope: Scope = Scope.TENANT
    approval: str = NEVER
    """`never`: a call runs at once. `always`, or the URL of a callback: it runs once it is approved."""

    def __post_init__(self) -> None:
        for name in ("timeout_s", "queue_s", "concurrency", "rate_per_s", "max_result_bytes"):
            if (value := getattr(self, name)) is not None and value <= 0:
                raise ValueError(f"{name} is {value}, and has to be more than 0")
        if self.approval not in (NEVER, ALWAYS) and not self.approval.startswith(("http://", "https://")):
            raise ValueError(f"approval is {NEVER!r}, {ALWAYS!r} or the URL of a callback, not {self.approval!r}")


@dataclass(frozen=True, slots=True)
class Context:
    """The caller of a tool. A shared execution gets only as much of it as its scope allows."""

    tenant: str
    session_id: str = ""
    """Empty: unknown. Such a call shares nothing that is scoped to a session."""
    turn_id: str = ""
    key_id: str = ""
    history: tuple[str, ...] | None = None
    """Arguments of the session's earlier calls of a stateful tool, oldest first, read from its transcript, since a
    record in this process would be lost with it. None: not known, and the call is not shared."""
    weight: float = 1.0
    """The tenant's weight where tenants share the places of a tool."""


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call as the model wrote it."""

    id: str
    name: str
    arguments: str
    """Raw JSON text."""


Run: TypeAlias = Callable[[Json, Context], Awaitable[object]]
"""Executes one call. A string is the result's text; any other value becomes JSON."""
RunMany: TypeAlias = Callable[[list[Json], Context], Awaitable[Sequence[object]]]
"""Executes several calls at once. Results stand by position, with an exception for a call that failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """Something that a model can call. It has `run`, or `run_many` where calls can be grouped."""

    name: str
    description: str
    parameters: Json
    """JSON Schema of the arguments, which are an object."""
    run: Run | None = None
    run_many: RunMany | None = None
    """Takes precedence over `run`."""
    effect: Effect = Effect.DESTRUCTIVE
    limits: Limits = field(default_factory=Limits)
    batch_window_s: float = 0.0
    """How long the first call of a group waits for further calls."""
    max_batch: int = 64
    is_stateful: bool = False
    """Whether its result depends on `context.history` beside the arguments."""
    key: Callable[[Json], str] | None = None
    """Text that is equal for calls with the same result. None: calls with equal arguments have the same result."""
    source: str = "python"
    """Origin of the tool: `python`, `builtin`, `mcp:NAME`."""
    close: Callable[[], Awaitable[object]] | None = None
    """Ends the state that the tool keeps between calls, such as processes. A later call starts it again. The
    runtime calls it when it closes."""

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name):
            raise ValueError(f"a tool cannot be named {self.name!r}: engines take 1 to 64 of A-Z a-z 0-9 _ -")
        if self.run is None and self.run_many is None:
            raise ValueError(f"tool {self.name!r} has neither `run` nor `run_many`")
        if self.max_batch < 1:
            raise ValueError(
                f"tool {self.name!r}: max_batch is {self.max_batch}, and a group has at least one call"
            )
        if self.effect is not Effect.READ_ONLY and (self.limits.ttl_s or self.limits.negative_ttl_s):
            raise ValueError(
                f"tool {self.name!r} is {self.effect}: only results of a read-only tool can be cached, "
                "since a repeated write has to reach its system again"
            )


class ToolError(Exception):
    """The call failed, and the model reads this text: a tool's own way to fail."""


class Refused(ToolError):
    """The call asks for something that the tool may not do, such as a host that is not allowed. It did nothing."""


class OutcomeUnknown(ToolError):
    """The call was sent, and the tool was lost before it answered: a crash, a cut connection."""


class Status(StrEnum):
    """How a call ended."""

    OK = "ok"
    ERROR = "error"
    TIMEOUT = "timeout"  # no result in time; a destructive call was not started
    REFUSED = "refused"  # no such tool, invalid arguments, or no approval; it was not started
    UNKNOWN = "unknown"  # a destructive call was started and its outcome is lost; it never runs again
    CANCELLED = "cancelled"  # the last caller left; executions have it, results never


class Origin(StrEnum):
    """The source of a result."""

    EXECUTED = "executed"
    COALESCED = "coalesced"  # from an execution that another call started
    CACHED = "cached"
    NONE = "none"  # nothing ran for this call


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of one call."""

    call: Call
    status: Status
    text: str
    """The text that the model reads, for errors too."""
    seconds: float = 0.0
    """Time that the caller waited."""
    origin: Origin = Origin.NONE
    saved_s: float = 0.0
    """Duration of the execution that this call did not need."""
    is_truncated: bool = False
    shared_by: int = 1
    """Number of calls that the same execution has served so far."""

    @property
    def is_ok(self) -> bool:
        return self.status is Status.OK


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """The audit record of one execution, or of one refused call. It holds no content."""

    tool: str
    """The name as the model wrote it where there is no such tool."""
    source: str
    call_id: str
    context: Context
    """Context of the call that started the execution."""
    arguments_sha256: str
    started_at: float
    """Seconds of the runtime's clock."""
    seconds: float
    status: Status
    shared_by: int
    error: str = ""
    """Class of the exception that the tool raised; never its text."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a call may run."""

    is_approved: bool
    reason: str = ""
    """Why it may not; the model reads it."""


Approve: TypeAlias = Callable[[Tool, Json, Context], Awaitable[Verdict]]
"""Asked before each call of a tool whose `limits.approval` is not `never`."""
Tools: TypeAlias = Mapping[str, Tool]


# ---- how an execution ended, as the text that the model reads: a tool's value, an error, a time-out


def text_of(value: object) -> str:
    """Return a string as it is, and any other value as JSON: dataclasses, models, dates, enums and sets too.

    Raises ToolError for a value that has no JSON form.
    """
    if isinstance(value, str):
        return value
    try:
        return to_json(value, inf_nan_mode="strings").decode()
    except (PydanticSerializationError, ValueError, RecursionError) as error:
        raise ToolError(f"The tool returned a {type(value).__name__} that is not JSON: {error}") from None


def capped(text: str, max_bytes: int) -> tuple[str, bool]:
    """Return the text, cut and marked if its UTF-8 exceeds `max_bytes`, and whether it was cut.

    Lone surrogates cannot be sent and become question marks.
    """
    if text.isascii() and len(text) <= max_bytes:
        return text, False
    data = text.encode("utf-8", "replace")
    if len(data) <= max_bytes:
        return data.decode(), False
    kept = data[:max_bytes].decode("utf-8", "ignore")
    return f"{kept}\n[truncated: the first {len(kept.encode())} of {len(data)} bytes]", True


LOST = (OutcomeUnknown, TimeoutError, ConnectionError)
"""Errors that leave open whether the call took effect."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one execution, equal for all calls that wait for it."""

    status: Status
    text: str
    is_truncated: bool = False
    seconds: float = 0.0
    error: str = ""
    """Class of the exception that the tool raised."""


def outcome_of(tool: Tool, value: object, seconds: float) -> Outcome:
    """Return the outcome for the value that a tool returned, or for the exception that it raised."""
    if not isinstance(value, BaseException):
        try:
            text, is_truncated = capped(text_of(value), tool.limits.max_result_bytes)
            return Outcome(Status.OK, text, is_truncated, seconds)
        except ToolError as error:
            value = error
    error_class = type(value).__name__
    reason = str(value) if isinstance(value, ToolError) else f"{error_class}: {value}"
    status = Status.REFUSED if isinstance(value, Refused) else Status.ERROR
    if isinstance(value, LOST) and tool.effect is Effect.DESTRUCTIVE:
        status, reason = Status.UNKNOWN, f"{reason}\n{not_known(tool)}"
    text, is_truncated = capped(f"Error: {reason}", tool.limits.max_result_bytes)
    return Outcome(status, text, is_truncated, seconds, error_class)


def not_started(tool: Tool, waited_s: float) -> Outcome:
    """Return the outcome for a caller whose time ended while the call waited for a place."""
    return Outcome(
        Status.TIMEOUT, f"Error: {tool.name} could not be started within {waited_s:.3g} s; it was not run."
    )


def given_up(tool: Tool, waited_s: float) -> Outcome:
    """Return the outcome for a caller whose time ended while the call ran."""
    return _lost(tool, f"Error: {tool.name} gave no result within {waited_s:.3g} s.", Status.TIMEOUT)


def stopped(tool: Tool, has_begun: bool) -> Outcome:
    """Return the outcome for callers that still wait when the runtime closes, or when its process was lost."""
    return _lost(tool, f"Error: {tool.name} was stopped before it gave a result.", Status.ERROR, has_begun)


def _lost(tool: Tool, text: str, otherwise: Status, has_begun: bool = True) -> Outcome:
    if has_begun and tool.effect is Effect.DESTRUCTIVE:
        return Outcome(Status.UNKNOWN, f"{text}\n{not_known(tool)}")
    return Outcome(otherwise, text)


def not_known(tool: Tool) -> str:
    """Return the sentence that keeps a model from repeating a call that may have taken effect."""
    return (
        f"The outcome of this call is unknown: {tool.name} may have run, may have taken effect, "
        "and was not run again. Check before you repeat it."
    )
