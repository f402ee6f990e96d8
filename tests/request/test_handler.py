"""Law of the handler: each request ends with one outcome, which the observer sees once."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from gateway.config.live_settings import RequestSettings
from gateway.core.errors import Failure, Outcome, Refused
from gateway.request.gate import Drain
from gateway.request.handler import RequestHandler
from gateway.request.inprocess import InProcessRequest, InProcessResponder
from tests.telemetry.observed import observer

REFUSED = Refused(Outcome.UNAUTHORISED, Failure(401, "authentication_error", "no"))


class RaisingKeys:
    def __init__(self, error: BaseException) -> None:
        self._error = error

    def at_once(self, headers: Any) -> None:
        raise self._error


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (RuntimeError("a bug"), Outcome.GATEWAY_ERROR),
        (KeyboardInterrupt(), Outcome.GATEWAY_ERROR),
        (asyncio.CancelledError(), Outcome.CLIENT_GONE),
        (ConnectionResetError(), Outcome.CLIENT_GONE),
        (REFUSED, Outcome.UNAUTHORISED),
    ],
)
async def test_a_request_ends_with_one_outcome(error: BaseException, outcome: Outcome) -> None:
    seen, nothing, drain = observer(), cast(Any, None), Drain()
    handler = RequestHandler(
        settings=RequestSettings,
        clock=lambda: 100.0,
        drain=drain,
        keys=cast(Any, RaisingKeys(error)),
        limiter=nothing,
        bodies=nothing,
        slices=nothing,
        beginnings=nothing,
        monitor=nothing,
        turns=nothing,
        stateless=nothing,
        lists=nothing,
        observer=seen,
    )
    responder = InProcessResponder()
    try:
        await handler.handle(InProcessRequest("/v1/chat/completions", [], b"{}"), responder)
    except BaseException as raised:
        if raised is not error:
            raise
    else:
        assert responder.status == REFUSED.failure.status
    assert [line for line in seen.metrics.exposition().decode().splitlines() if "outcomes_total{" in line] == [
        f'turngate_outcomes_total{{outcome="{outcome}",path="chat"}} 1.0'
    ]
    assert drain.num_running == 0
