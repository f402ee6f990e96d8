"""Names of what engines do wrong: the label of the counter `turngate_engine_faults_total`."""

from __future__ import annotations

from enum import StrEnum

from gateway.core.sse import EventTooLong
from gateway.core.transport import UpstreamCut


class Fault(StrEnum):
    """One way in which an engine fails a call, or its watch."""

    REFUSED = "refused"  # no connection, or none in time
    RESET = "reset"  # the connection broke, before the first byte or after it
    SILENT = "silent"  # nothing came for too long
    FULL = "full"  # 429, 503 or 529
    STATUS = "status"  # 500, 502, 504 and the like
    ERROR = "error"  # an error in the place of an answer, or in the middle of one, under status 200
    NO_ANSWER = "no_answer"  # status 200, and something that is no answer
    NO_END = "no_end"  # a stream that ends cleanly without a finish
    TOO_LONG = "too_long"  # one event that does not fit into memory
    NO_MODEL = "no_model"  # it does not have the model that it listed
    KEY = "key"  # it refuses the gateway's key
    POLL = "poll"  # a poll that failed
    PAGE = "page"  # a page of it, such as its metrics, that was there before
    RESTARTED = "restarted"  # it came back with an empty cache between two polls
    MODELS = "models"  # it lists other models than before
    OPENED = "opened"  # it failed so often that its circuit was opened


OVERLOADS = frozenset((Fault.FULL,))
"""Faults that say nothing against an engine's health."""


class NoAnswer(Exception):
    """Status 200, and something that is no answer."""


def of_break(error: Exception) -> Fault:
    """The fault behind an answer that cannot be read on."""
    if isinstance(error, UpstreamCut):
        return Fault.SILENT if error.is_silent else Fault.RESET
    return Fault.TOO_LONG if isinstance(error, EventTooLong) else Fault.NO_ANSWER
