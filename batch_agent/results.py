"""The result of each agent: its output or its error, its cost, and the exceptions that become errors."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from pydantic import BaseModel


@dataclass(frozen=True)
class AgentError:
    """The reason why an agent has no output."""

    type: str
    """The name of a class, such as `TimeoutError`, `HTTPStatusError`, `OutputValidationError`; or `OVERSIZED`."""
    message: str
    retryable: bool = False
    """Whether the same agent may succeed when it is run again."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens as the engine counted them, over all model calls. Of a list of prompts: a part of the sum."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Part of `prompt_tokens` that the engine found in its cache; 0 where it does not say."""
    completion_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.prompt_tokens + other.prompt_tokens,
            self.cached_tokens + other.cached_tokens,
            self.completion_tokens + other.completion_tokens,
        )


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds of one agent."""

    started_s: float = 0.0
    """Since the start of the batch."""
    total_s: float = 0.0
    model_s: float = 0.0
    """In model calls, their waiting included."""
    queued_s: float = 0.0
    """Part of `model_s` that the gateway held them back."""
    tools_s: float = 0.0


@dataclass(frozen=True)
class AgentResult:
    """One agent's result."""

    job_id: str
    index: int
    """Position of its input."""
    output: Any
    """A pydantic model if the schema is one, a dict for a JSON schema, else text."""
    error: AgentError | None = None
    attempts: int = 1
    """1, plus the model calls that were sent again. 0: none was sent, or all were by an earlier run, whose figures
    these are."""
    turns: int = 0
    """Model calls that were answered."""
    usage: Usage = field(default_factory=Usage)
    timings: Timings = field(default_factory=Timings)
    finish_reason: str = ""
    """Of the last answer; `length`: it was cut."""
    session: str = ""
    """Its session, by the name that the gateway shows as `client_session`; `turngate why NAME` explains it."""
    receipt: str = ""
    """Id of its last answer's receipt at the gateway."""
    tool_calls: int = 0
    """Of tools of the batch."""
    tool_calls_saved: int = 0
    """Those of them that shared a running execution or a stored result."""
    transcript: list[dict[str, Any]] | None = None
    """Its messages, where they were asked for."""
    workspace: str = ""
    """Where a command-line agent worked, if that was kept."""
    patch: str = ""
    """What a command-line agent changed in its copy of the files, as a diff."""

    @property
    def ok(self) -> bool:
        return self.error is None


def jsonable(value: Any) -> Any:
    """A pydantic model as plain JSON values; anything else as it is."""
    return value.model_dump(mode="json") if isinstance(value, BaseModel) else value


def as_json(result: AgentResult) -> dict[str, Any]:
    """One line of the command's output."""
    line = {
        "job_id": result.job_id,
        "index": result.index,
        "ok": result.ok,
        "output": jsonable(result.output),
        "error": None if result.error is None else asdict(result.error),
        "attempts": result.attempts,
        "turns": result.turns,
        "usage": asdict(result.usage),
        "timings": {name: round(seconds, 3) for name, seconds in asdict(result.timings).items()},
        "finish_reason": result.finish_reason,
        "session": result.session,
        "receipt": result.receipt,
        "tool_calls": result.tool_calls,
        "tool_calls_saved": result.tool_calls_saved,
    }
    optional = {"transcript": result.transcript, "workspace": result.workspace, "patch": result.patch}
    return line | {key: value for key, value in optional.items() if value}


# ---- failures of agents. `AgentError.type` is the name of the class


class AgentFailed(Exception):
    """An agent cannot go on."""

    retryable = False


class HTTPStatusError(AgentFailed):
    """The gateway or the engine answered with an error."""

    def __init__(
        self, status: int, message: str, retryable: bool = False, retry_after_s: float | None = None
    ) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status
        self.retryable = retryable
        self.retry_after_s = retry_after_s
        """Seconds until the call may be repeated. None: the answer does not say."""


class ConnectError(AgentFailed, ConnectionError):
    """There was no whole answer: the connection was refused, reset or cut."""

    retryable = True

    def __init__(self, message: str, was_sent: bool = True) -> None:
        super().__init__(message)
        self.was_sent = was_sent
        """Whether the gateway may have begun to answer."""


class OutageError(AgentFailed, ConnectionError):
    """The gateway did not answer for longer than `outage_s`."""

    retryable = True


class BadAnswer(AgentFailed):
    """The answer is no chat completion."""


class AnswerFailed(AgentFailed):
    """The answers of the model lead nowhere. A further attempt starts over, even where finished turns are kept."""


class OutputValidationError(AnswerFailed, ValueError):
    """The answer does not fit the output schema."""


class OutputTruncated(AnswerFailed):
    """The answer was cut before its schema was complete."""


class MaxTurnsError(AnswerFailed):
    """The model still called tools in its last turn."""


class BudgetError(AgentFailed):
    """The budget of the batch is used up."""

    retryable = True


class WorkerError(AgentFailed):
    """A command-line agent ended badly."""


def error_of(error: Exception) -> AgentError:
    """Make data of an exception."""
    retryable = error.retryable if isinstance(error, AgentFailed) else isinstance(error, TimeoutError)
    return AgentError(type(error).__name__, str(error) or type(error).__name__, retryable)
