"""A step that holds the event loop is measured and named."""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

import pytest

from gateway.core import fields
from gateway.telemetry.loop_watch import BEAT_S, LONG_S, NOT_SEEN, LoopWatch, step_of
from gateway.telemetry.metrics import Metrics


async def test_a_step_that_holds_the_loop_is_measured_logged_and_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    lags: list[float] = []
    watch = LoopWatch(lags.append)
    monkeypatch.setitem(fields.__dict__, "hold", hold := named(fields.__name__))
    watch.start()
    try:
        await asyncio.sleep(BEAT_S)
        hold(time.monotonic() + 10 * LONG_S)
        while not caplog.records:
            await asyncio.sleep(BEAT_S)
    finally:
        watch.stop()
    assert max(lags) >= 9 * LONG_S
    assert caplog.records[0].fields["step"] == f"{fields.__name__}:hold"  # type: ignore[attr-defined]
    assert caplog.records[0].fields["seconds"] >= 9 * LONG_S  # type: ignore[attr-defined]


def named(module: str) -> Any:
    """A function of this module that keeps the processor busy until a time."""
    place = {"__name__": module, "time": time}
    exec("def hold(until):\n while time.monotonic() < until: pass", place)
    return place["hold"]


def test_a_stack_without_the_gateway_names_no_step() -> None:
    assert step_of(None) == NOT_SEEN
    assert step_of(sys._getframe()) == NOT_SEEN


def test_lags_are_a_metric() -> None:
    metrics = Metrics()
    metrics.loop_lag.observe(0.03)
    assert b'turngate_loop_lag_seconds_bucket{le="0.05"} 1.0' in metrics.exposition()
