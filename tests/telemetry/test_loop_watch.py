"""A step that holds the event loop is measured and named."""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

import pytest

from gateway.core import fields
from gateway.telemetry import loop_watch
from gateway.telemetry.loop_watch import BEAT_S, LONG_S, NOT_SEEN, LoopWatch, step_of
from gateway.telemetry.metrics import Metrics


async def test_a_step_that_holds_the_loop_is_measured_logged_and_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    lags: list[float] = []
    watch = LoopWatch(lags.append)
    monkeypatch.setitem(fields.__dict__, "hold", hold := named(fields.__name__))
    monkeypatch.setattr(loop_watch, "QUIET_S", 0.0)  # a machine that stands still logs a line of its own
    watch.start()
    try:
        await asyncio.sleep(BEAT_S)
        hold(time.monotonic() + 10 * LONG_S)
        while not (held := [each.fields for each in caplog.records if each.fields["step"] != NOT_SEEN]):  # type: ignore[attr-defined]
            await asyncio.sleep(BEAT_S)
    finally:
        watch.stop()
    assert max(lags) >= 9 * LONG_S
    assert held[0]["step"] == f"{fields.__name__}:hold"
    assert held[0]["seconds"] >= 9 * LONG_S


async def test_a_look_between_a_step_and_the_beat_leaves_the_step_that_was_seen(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    looks = ["gateway.core.fields:hold", NOT_SEEN]
    watch = LoopWatch(lambda lag_s: None)
    monkeypatch.setattr(watch, "_step_now", lambda: looks.pop(0) if looks else NOT_SEEN)
    watch.start()
    try:
        while looks:  # on the loop, which holds it
            time.sleep(BEAT_S)
        time.sleep(LONG_S)
        while not caplog.records:
            await asyncio.sleep(BEAT_S)
    finally:
        watch.stop()
    assert caplog.records[0].fields["step"] == "gateway.core.fields:hold"  # type: ignore[attr-defined]


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
