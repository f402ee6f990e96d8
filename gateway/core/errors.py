"""Failures by whose fault they are, and the one table from outcome to HTTP."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


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
    """What went wrong, in terms that every dialect can write."""

    status: int
    kind: str
    """OpenAI's `type`: invalid_request_error, authentication_error, not_found_error, rate_limit_error,
    server_error."""
    message: str
    """For the person at the keyboard: what is wrong and what to do."""
    param: str | None = None
    """The offending field."""
    code: str | None = None
    retry_after_s: float | None = None


class Refused(Exception):
    """Ends a request with a failure and an outcome; raised anywhere on the path, caught by the handler."""

    def __init__(self, outcome: Outcome, failure: Failure) -> None:
        super().__init__(failure.message)
        self.outcome = outcome
        self.failure = failure


class ConfigError(Exception):
    """The configuration is wrong; one line per fault, each with the place where it was written."""
