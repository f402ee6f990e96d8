"""The vocabulary of tools: what a tool is, who calls it, and what comes of a call. Plain values only.

Durations are seconds, sizes are bytes of UTF-8.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeAlias

Json: TypeAlias = dict[str, Any]


class Effect(StrEnum):
    """What calling a tool does to the world; decides what may be shared, cached and repeated."""

    READ_ONLY = "read_only"  # coalesced, and cached if it has a TTL
    IDEMPOTENT = "idempotent"  # a write that can be repeated: coalesced while in flight, never cached
    DESTRUCTIVE = "destructive"  # each call runs exactly once; also what is assumed of an undeclared tool


class Scope(StrEnum):
    """Who may share one execution and its cached result."""

    SESSION = "session"
    TENANT = "tenant"
    GLOBAL = "global"  # for tools whose results are the same for everybody and known to be public


NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
NEVER = "never"
ALWAYS = "always"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one tool may use."""

    timeout_s: float = 30.0
    """Longest time that a caller waits for an execution that has started."""
    queue_s: float = 300.0
    """Longest time that a caller waits for it to start: for a place, for the rate limit."""
    concurrency: int | None = None
    """Executions at once, a group of calls being one, shared fairly between tenants. None: no limit."""
    rate_per_s: float | None = None
    """Executions started per second, with bursts of one second's worth; shared likewise. None: no limit."""
    max_result_bytes: int = 65_536
    ttl_s: float = 0.0
    """How long a result is served again. 0: not cached. Read-only tools only."""
    negative_ttl_s: float = 0.0
    """The same for errors."""
    scope: Scope = Scope.TENANT
    approval: str = NEVER
    """`never`: runs at once. `always`, or the URL of a callback: runs when that approves."""

    def __post_init__(self) -> None:
        for name in ("timeout_s", "queue_s", "concurrency", "rate_per_s", "max_result_bytes"):
            if (value := getattr(self, name)) is not None and value <= 0:
                raise ValueError(f"{name} is {value}, and has to be more than 0")
        if self.approval not in (NEVER, ALWAYS) and not self.approval.startswith(("http://", "https://")):
            raise ValueError(f"approval is {NEVER!r}, {ALWAYS!r} or the URL of a callback, not {self.approval!r}")


@dataclass(frozen=True, slots=True)
class Context:
    """On whose behalf a call runs. A shared execution is told no more than its scope."""

    tenant: str
    session_id: str = ""
    """Empty: unknown; such a call shares nothing that is scoped to a session."""
    turn_id: str = ""
    key_id: str = ""
    history: tuple[str, ...] | None = None
    """Arguments of the session's earlier calls of a stateful tool, oldest first, as its transcript shows them: a
    record of our own would be lost with the process. None: not known, and the call is shared with nobody."""
    weight: float = 1.0
    """Of the tenant, where tenants share a tool's places."""


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
"""Executes several calls at once; results by position, an exception in the place of one that failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """Something that a model can call. `run`, or `run_many` if calls can be grouped into one."""

    name: str
    description: str
    parameters: Json
    """JSON Schema of the arguments, an object."""
    run: Run | None = None
    run_many: RunMany | None = None
    """Takes precedence over `run`."""
    effect: Effect = Effect.DESTRUCTIVE
    limits: Limits = field(default_factory=Limits)
    batch_window_s: float = 0.0
    """How long the first call of a group waits for others."""
    max_batch: int = 64
    is_stateful: bool = False
    """Its result is a function of `context.history` and the arguments."""
    key: Callable[[Json], str] | None = None
    """What makes two calls the same. None: equal arguments."""
    source: str = "python"
    """Where it comes from: `python`, `builtin`, `mcp:NAME`."""
    close: Callable[[], Awaitable[object]] | None = None
    """Ends what the tool keeps between calls, such as processes; a later call starts them again. For the runtime
    that has run it, when it closes."""

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
    """The call failed, and this is what the model is to be told: a tool's own way to fail."""


class Refused(ToolError):
    """The call asks for what this tool may not do, such as a host that is not allowed; nothing was done."""


class OutcomeUnknown(ToolError):
    """The call was sent, and the tool was lost before it answered: a crash, a cut connection."""


class Status(StrEnum):
    """How a call ended."""

    OK = "ok"
    ERROR = "error"
    TIMEOUT = "timeout"  # no result in time; of a destructive call: it was not started
    REFUSED = "refused"  # no such tool, arguments that it does not take, not approved; not started
    UNKNOWN = "unknown"  # started, not idempotent, outcome not known; never run again
    CANCELLED = "cancelled"  # nobody waited any more: of executions, never of results


class Origin(StrEnum):
    """Where a result comes from."""

    EXECUTED = "executed"
    COALESCED = "coalesced"  # from an execution that another call started
    CACHED = "cached"
    NONE = "none"  # nothing ran for this call


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What one call gave."""

    call: Call
    status: Status
    text: str
    """What the model reads; of errors too."""
    seconds: float = 0.0
    """Time that the caller waited."""
    origin: Origin = Origin.NONE
    saved_s: float = 0.0
    """Duration of the execution that it did not need."""
    is_truncated: bool = False
    shared_by: int = 1
    """Calls that the same execution has served so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """The audit record of one execution, or of one call that was refused. Holds no content."""

    tool: str
    """As the model wrote it where there is no such tool."""
    source: str
    call_id: str
    context: Context
    """Of the call that started it."""
    arguments_sha256: str
    started_at: float
    """Seconds of the runtime's clock."""
    seconds: float
    status: Status
    shared_by: int
    error: str = ""
    """Class of what the tool raised; never its text."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a call may run, and if not, what the model is told."""

    is_approved: bool
    reason: str = ""


Approve: TypeAlias = Callable[[Tool, Json, Context], Awaitable[Verdict]]
"""Asked before each call of a tool whose `limits.approval` is not `never`."""
Tools: TypeAlias = Mapping[str, Tool]
