"""What an engine's failure means: its cause, whether and when to ask again, and the error for the client."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import orjson

from gateway.core import fields
from gateway.core.errors import EngineFault, Failure, NoAnswer, Outcome, Refused, of_break
from gateway.core.sse import EventTooLong
from gateway.core.transport import UpstreamCut, UpstreamReply
from gateway.dialects.base import Dialect, kind_of
from gateway.exchange import Exchange
from policies.types import Ending, ReplicaId, Turn

FULL = frozenset((429, 503, 529))
"""Statuses of an engine that is full, not broken."""
BROKEN = frozenset((500, 502, 504))
OVERLOADED = 529
"""Anthropic's status, which Dynamo also uses; clients of the OpenAI formats do not know that it may be retried."""
RETRY_AFTER_S = 5.0
"""For engines that are full and do not say for how long: none of them does."""
LONGEST_PAUSE_S = 86_400.0
"""Of what an engine may ask for: a day, the longest window of a provider's limits."""
_MOST_MESSAGE_CHARS = 2_000
_PASSING = frozenset(
    (
        EngineFault.FULL,
        EngineFault.REFUSED,
        EngineFault.RESET,
        EngineFault.SILENT,
        EngineFault.STATUS,
        EngineFault.ERROR,
        EngineFault.NO_ANSWER,
    )
)
_NO_QUOTA = "insufficient_quota"
"""Code of OpenAI's 429 for an empty account."""
_NO_ROUTE = {"detail": "Not Found"}
"""FastAPI's answer where it has no such path."""


class EngineFailed(Refused):
    """An engine gave no answer, and nothing of one has reached the client."""

    def __init__(
        self,
        outcome: Outcome,
        failure: Failure,
        ending: Ending,
        try_another: bool,
        fault: EngineFault | None = None,
    ) -> None:
        super().__init__(outcome, failure)
        self.ending = ending
        self.try_another = try_another
        """Whether another replica may do better."""
        self.fault = fault
        """None: the engine did nothing wrong."""
        self.retry_after_s: float | None = None
        """How long the engine wants no call. None: it does not say."""
        self.is_queue_full = False
        """Whether the engine's queue had no place for the call, so that the gateway's queue keeps it."""
        self.body: bytes | None = None
        """The engine's own body, when it is an error in the client's dialect: relayed as it came."""

    @property
    def may_pass(self) -> bool:
        """Whether the same replica may do better later."""
        return self.fault in _PASSING and self.failure.code != _NO_QUOTA


def unreachable(engine_name: str) -> EngineFailed:
    failure = Failure(
        503, "server_error", f"Engine {engine_name} does not accept connections.", retry_after_s=RETRY_AFTER_S
    )
    return EngineFailed(Outcome.ENGINE_REFUSED, failure, Ending.FAILED, True, EngineFault.REFUSED)


def cut(engine_name: str, error: UpstreamCut | EventTooLong | NoAnswer) -> EngineFailed:
    text = f"Engine {engine_name} broke off before its answer began: {error}."
    failure = Failure(502, "server_error", text)
    return EngineFailed(Outcome.ENGINE_CUT, failure, Ending.FAILED, True, of_break(error))


def head_fault(reply: UpstreamReply) -> str | None:
    """Return why status and headers of an engine are those of no answer, or None. No redirect is followed, and
    `identity` was the only coding that it was asked for."""
    status = reply.status
    if not (200 <= status < 300 or 400 <= status < 600):
        return f"its status is {status}"
    if status < 400 and reply.headers.get("content-encoding", "identity").lower() != "identity":
        return "its answer is packed"
    return None


def lacks_path(engine_name: str, path: str) -> EngineFailed:
    """Return the failure of an engine without this path: 404, not 501, since SDKs retry after a 5xx."""
    text = f"Engine {engine_name} does not serve {path}: `turngate doctor` lists the paths that it serves."
    failure = Failure(404, "not_found_error", text, code="unsupported_path")
    return EngineFailed(Outcome.NOT_FOUND, failure, Ending.FAILED, try_another=True)


def in_stream(dialect: Dialect, failure: Failure) -> EngineFailed:
    """Return the failure that an event reports: vLLM refuses streams with status 200 and an error as first
    event."""
    failed = _failed(dialect, failure)
    if failed.fault is EngineFault.STATUS:
        failed.fault = EngineFault.ERROR
    return failed


def answered(exchange: Exchange, engine_name: str, reply: UpstreamReply, body: bytes) -> EngineFailed:
    """Return the failure that an answer with a status of 400 or more reports."""
    dialect, status = exchange.dialect, reply.status
    parsed = _parsed(body)
    if status == 404 and (not body or parsed == _NO_ROUTE):
        return lacks_path(engine_name, exchange.request.path)
    message, code, param = _said(parsed, body)
    retry_after_s = _seconds(reply.headers.get("retry-after", ""))
    failed = _failed(dialect, Failure(status, kind_of(status), message, param, code, retry_after_s))
    if status == 404 and "model" in f"{param} {message}".lower():
        # Engines get calls for listed models only. So the engine serves another model since its last poll.
        failed.try_another, failed.fault = True, EngineFault.NO_MODEL
    if failed.failure.status == status and _is_in(dialect, parsed):
        failed.body = body
    return failed


def message_of(body: bytes) -> str:
    """Return the message of an error answer, in any envelope."""
    return _said(_parsed(body), body)[0]


def _failed(dialect: Dialect, failure: Failure) -> EngineFailed:
    """Return one of four kinds: the engine is full, it is broken, the gateway's key is wrong, or the request
    is."""
    status = failure.status
    if status in FULL:
        shown = 503 if status == OVERLOADED and not dialect.knows_overload else status
        patient = replace(failure, status=shown, retry_after_s=failure.retry_after_s or RETRY_AFTER_S)
        failed = EngineFailed(Outcome.ENGINE_REFUSED, patient, Ending.REFUSED, True, EngineFault.FULL)
        failed.retry_after_s = failure.retry_after_s
        return failed
    if status in BROKEN or status > 504:
        return EngineFailed(Outcome.ENGINE_FAILED, failure, Ending.FAILED, True, EngineFault.STATUS)
    if status in (401, 403):
        text = f"The engine refuses the gateway's key ({status}): check `api_key` of this engine."
        failure = Failure(502, "server_error", text)
        return EngineFailed(Outcome.ENGINE_FAILED, failure, Ending.FAILED, True, EngineFault.KEY)
    outcome = Outcome.NOT_FOUND if status == 404 else Outcome.BAD_REQUEST
    return EngineFailed(outcome, failure, Ending.FAILED, try_another=False)


def _parsed(body: bytes) -> Any:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        return None


def _said(parsed: Any, body: bytes) -> tuple[str, str | None, str | None]:
    """Return message, code and param of OpenAI's envelope, Dynamo's bare object, FastAPI's `detail` or plain
    text."""
    if not isinstance(parsed, dict):
        return body[:_MOST_MESSAGE_CHARS].decode(errors="replace") or "The engine gave no reason.", None, None
    error = fields.obj(parsed, "error") or parsed
    message = fields.text(error, "message") or fields.text(parsed, "detail") or fields.text(parsed, "error")
    text = message or body[:_MOST_MESSAGE_CHARS].decode(errors="replace")
    return text, fields.text(error, "code"), fields.text(error, "param")


def _is_in(dialect: Dialect, parsed: Any) -> bool:
    """Return whether an error body has the envelope that clients of this dialect read."""
    return isinstance(parsed, dict) and dialect.is_error_body(parsed)


def _seconds(retry_after: str) -> float | None:
    try:
        seconds = float(retry_after)
    except ValueError:
        return None
    return min(LONGEST_PAUSE_S, seconds) if math.isfinite(seconds) and seconds > 0 else None


# ---- where and when a model call that failed before its first byte is asked again. Pure

FIRST_S, LONGEST_S = 0.5, 10.0
"""First and longest pause; each is twice the one before. SDKs pause for 0.5 to 8 s."""
_NOT_BEGUN = frozenset((EngineFault.FULL, EngineFault.REFUSED))
"""Faults of an engine that has not worked on the call."""


class Attempts:
    """The attempts at one model call. At first each replica that may do better is asked at once. When none is
    left, a call whose client cannot ask again itself goes back to the queue, with its old arrival."""

    def __init__(self, turn: Turn, most: int, chance: Callable[[], float]) -> None:
        """`most`: bound on replicas asked in a row, and on failures of engines at work, since a request that
        breaks one may break the next. `chance`: in [0, 1), spreads calls that failed together."""
        self.turn = turn
        """The turn for the next attempt."""
        self.failed: EngineFailed | None = None
        """The last failure of an engine."""
        self._first = turn
        self._most = most
        self._chance = chance
        self._until = turn.arrived_at + turn.max_wait_s
        """The bound of the client's patience."""
        if turn.deadline_at is not None and turn.deadline_at < self._until:
            self._until = turn.deadline_at
        self._rests: dict[ReplicaId, float] = {}
        """Replicas that failed the call, and until when each gets it no more."""
        self._num_made = 0
        self._num_in_row = self._num_broken = self._num_waits = self._number = 0

    def count(self) -> int:
        """Count one more call of an engine. Return its number, from 1."""
        self._num_made += 1
        return self._num_made

    def elsewhere(self, replica_id: ReplicaId, failed: EngineFailed, now: float) -> bool:
        """Note that a replica failed the call. Return whether `turn` may go to another one at once."""
        self.failed = failed.with_traceback(None)
        self._num_in_row += 1
        self._num_broken += failed.fault not in _NOT_BEGUN
        self._rests[replica_id] = now + (failed.retry_after_s or 0.0) if failed.may_pass else math.inf
        if self._num_in_row >= self._most or self._num_broken >= self._most:
            return False
        self._go(0.0)
        return True

    def later(self, now: float, is_committed: bool) -> bool:
        """Return whether `turn` may wait for a replica when none is left. `is_committed`: its client has a part
        of the answer, so that it cannot ask again itself."""
        if not is_committed and (self.failed is None or not self.failed.is_queue_full):
            return False
        passing = [until for until in self._rests.values() if until < math.inf]
        if now >= self._until or self._num_broken >= self._most or (self._rests and not passing):
            return False
        earned_s = min(LONGEST_S, FIRST_S * 2.0 ** min(self._num_waits, 10)) * (0.5 + self._chance() / 2)
        at = min(max(now, min(passing, default=now)) + earned_s, self._until)
        self._num_in_row, self._num_waits = 0, self._num_waits + 1
        for replica_id, until in list(self._rests.items()):
            # At the bound each replica is asked once more, whatever pause it wants.
            if until <= at or (at == self._until and until < math.inf):
                del self._rests[replica_id]
        self._go(at)
        return True

    def _go(self, not_before: float) -> None:
        self._number += 1
        self.turn = replace(
            self._first,
            id=f"{self._first.id}.{self._number}",
            is_retry=True,
            excluded=self._first.excluded | self._rests.keys(),
            not_before=not_before,
        )
