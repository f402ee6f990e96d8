"""The ways in which a request can end, the failures that clients see, and the faults of engines."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from gateway.core.sse import EventTooLong
from gateway.core.transport import UpstreamCut


class Outcome(StrEnum):
    """Every way a request can end: metric label and log field. `STATUS` maps the failures to HTTP."""

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


ANSWERED = Outcome.ANSWERED
"""A global, since before Python 3.12 a member is found far slower."""

STATUS = {
    Outcome.BAD_REQUEST: 400,
    Outcome.UNAUTHORISED: 401,
    Outcome.FORBIDDEN: 403,
    Outcome.NOT_FOUND: 404,
    Outcome.REJECTED_LIMIT: 429,
    Outcome.REJECTED_WAIT: 429,
    Outcome.REJECTED_DEADLINE: 429,
    Outcome.REJECTED_QUEUE_FULL: 429,
    Outcome.REJECTED_NO_ENGINE: 503,
    Outcome.REJECTED_STOPPING: 503,
    Outcome.ENGINE_REFUSED: 503,
    Outcome.ENGINE_FAILED: 502,
    Outcome.ENGINE_CUT: 502,
    Outcome.GATEWAY_ERROR: 500,
}


@dataclass(frozen=True, slots=True)
class Failure:
    """A failure in terms that every dialect can write."""

    status: int
    kind: str
    """OpenAI's `type`: invalid_request_error, authentication_error, not_found_error, rate_limit_error,
    server_error."""
    message: str
    """Text for a person: the fault, and the remedy."""
    param: str | None = None
    """The offending field."""
    code: str | None = None
    retry_after_s: float | None = None


class Refused(Exception):
    """Ends a request with a failure and an outcome. Raised anywhere on the path, and caught by the handler."""

    def __init__(self, outcome: Outcome, failure: Failure) -> None:
        super().__init__(failure.message)
        self.outcome = outcome
        self.failure = failure


class ConfigError(Exception):
    """The configuration is wrong; one line per fault, each with the place where it was written."""


# ---- faults of engines: the label of the counter `turngate_engine_faults_total`


class EngineFault(StrEnum):
    """One way in which an engine fails a call or a poll."""

    REFUSED = "refused"  # no connection, or none in time
    RESET = "reset"  # the connection broke, before the first byte or after it
    SILENT = "silent"  # nothing came for too long
    FULL = "full"  # 429, 503 or 529
    STATUS = "status"  # 500, 502, 504 and the like
    ERROR = "error"  # an error in the place of an answer, or in the middle of one, under status 200
    NO_ANSWER = "no_answer"  # status 200, and a body that is no answer
    NO_END = "no_end"  # a stream that ends cleanly without a finish
    TOO_LONG = "too_long"  # one event that does not fit into memory
    NO_MODEL = "no_model"  # it does not have the model that it listed
    KEY = "key"  # it refuses the gateway's key
    POLL = "poll"  # a poll that failed
    PAGE = "page"  # a page of it, such as its metrics, that was there before
    RESTARTED = "restarted"  # it came back with an empty cache between two polls
    MODELS = "models"  # it lists other models than before
    OPENED = "opened"  # it failed so often that its circuit was opened


OVERLOADS = frozenset((EngineFault.FULL,))
"""Faults that a healthy engine shows too."""


class NoAnswer(Exception):
    """Status 200, and a body that is no answer."""


def of_break(error: Exception) -> EngineFault:
    """Return the fault behind an answer that broke off."""
    if isinstance(error, UpstreamCut):
        return EngineFault.SILENT if error.is_silent else EngineFault.RESET
    return EngineFault.TOO_LONG if isinstance(error, EventTooLong) else EngineFault.NO_ANSWER
