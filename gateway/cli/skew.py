"""How far the clocks of engines are from ours, by the Date of an answer."""

from __future__ import annotations

import time
from collections.abc import Callable
from email.utils import parsedate_to_datetime

from gateway.core.transport import Timeouts, Upstream, UpstreamCut, UpstreamRefused
from gateway.engines.monitor import RunningEngine

DATE_STEP_S = 1.0
"""Date is cut to whole seconds."""


async def skew_s(
    upstream: Upstream, engine: RunningEngine, timeout_s: float, clock: Callable[[], float] = time.time
) -> float | None:
    """Seconds that the engine's clock is ahead, at the least that fits what was seen; None: it does not say."""
    address = engine.address
    headers = [("Authorization", f"Bearer {address.api_key}")] if address.api_key else []
    times = Timeouts(timeout_s, timeout_s, timeout_s)
    asked_at = clock()
    try:
        reply = await upstream.call("GET", f"{address.base_url}/v1/models", headers, None, times)
        told_at = clock()
        reply.close(reuse=False)
        date = parsedate_to_datetime(reply.headers["date"]).timestamp()
    except (UpstreamRefused, UpstreamCut, KeyError, ValueError):
        return None
    if date > told_at:
        return date - told_at
    return min(0.0, date + DATE_STEP_S - asked_at)
