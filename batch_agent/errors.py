"""Why agents fail. The names of the classes are what `AgentError.type` says."""

from __future__ import annotations

from batch_agent.results import AgentError


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
        """When to come back. None: not told."""


class ConnectError(AgentFailed, ConnectionError):
    """There was no whole answer: refused, reset, cut."""

    retryable = True

    def __init__(self, message: str, was_sent: bool = True) -> None:
        super().__init__(message)
        self.was_sent = was_sent
        """Whether the gateway may have begun to answer."""


class OutageError(AgentFailed, ConnectionError):
    """The gateway did not answer, for longer than is waited."""

    retryable = True


class BadAnswer(AgentFailed):
    """What was answered is no chat completion."""


class AnswerFailed(AgentFailed):
    """What the model wrote leads nowhere: a further try begins anew, also where finished turns are kept."""


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


def told(error: Exception) -> AgentError:
    """An exception as data."""
    retryable = error.retryable if isinstance(error, AgentFailed) else isinstance(error, TimeoutError)
    return AgentError(type(error).__name__, str(error) or type(error).__name__, retryable)
