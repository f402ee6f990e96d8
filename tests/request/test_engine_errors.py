"""Laws of reading an engine's failure: who is at fault, and whether another replica is tried."""

from __future__ import annotations

import pytest

from gateway.core.errors import Failure, Outcome
from gateway.dialects import BY_PATH
from gateway.request.engine_errors import in_stream, message_of
from policies.types import Ending

CHAT, MESSAGES = BY_PATH["/v1/chat/completions"], BY_PATH["/v1/messages"]


@pytest.mark.parametrize(
    ("status", "outcome", "ending", "try_another"),
    [
        (429, Outcome.ENGINE_REFUSED, Ending.REFUSED, True),
        (503, Outcome.ENGINE_REFUSED, Ending.REFUSED, True),
        (529, Outcome.ENGINE_REFUSED, Ending.REFUSED, True),
        (500, Outcome.ENGINE_FAILED, Ending.FAILED, True),
        (502, Outcome.ENGINE_FAILED, Ending.FAILED, True),
        (504, Outcome.ENGINE_FAILED, Ending.FAILED, True),
        (401, Outcome.ENGINE_FAILED, Ending.FAILED, True),
        (400, Outcome.BAD_REQUEST, Ending.FAILED, False),
        (422, Outcome.BAD_REQUEST, Ending.FAILED, False),
        (404, Outcome.NOT_FOUND, Ending.FAILED, False),
    ],
)
def test_a_status_says_whose_fault_it_is(status: int, outcome: Outcome, ending: Ending, try_another: bool) -> None:
    failed = in_stream(CHAT, Failure(status, "", "x"))
    assert (failed.outcome, failed.ending, failed.try_another) == (outcome, ending, try_another)
    assert (failed.failure.retry_after_s is not None) == (ending is Ending.REFUSED)


def test_anthropics_overload_status_is_told_to_anthropics_clients_only() -> None:
    assert in_stream(CHAT, Failure(529, "", "x")).failure.status == 503
    assert in_stream(MESSAGES, Failure(529, "", "x")).failure.status == 529


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"error":{"message":"m"}}', "m"),
        (b'{"message":"m","type":"t","code":529}', "m"),
        (b'{"detail":"m"}', "m"),
        (b'{"error":"m"}', "m"),
        (b'{"object":"error","message":"m","code":400}', "m"),
        (b"<html>m</html>", "<html>m</html>"),
        (b"", "The engine gave no reason."),
    ],
)
def test_the_message_is_found_in_every_envelope(body: bytes, message: str) -> None:
    assert message_of(body) == message
