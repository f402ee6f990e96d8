"""Metrics of batches, in the gateway's registry."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge


class BatchMetrics:
    def __init__(self, registry: CollectorRegistry, in_flight: Callable[[], int], pace: Callable[[], int]) -> None:
        self._lines = Counter(
            "turngate_batch_lines",
            "Lines of batches that were finished",
            ("endpoint", "result"),
            registry=registry,
        )
        self.retries = Counter(
            "turngate_batch_retries", "Lines of batches that were asked again", registry=registry
        )
        for name, text, read in (
            ("in_flight", "Lines of batches that are being asked", in_flight),
            ("pace", "Lines that may be asked at once, as the fleet is now", pace),
        ):
            Gauge(f"turngate_batch_{name}", text, registry=registry).set_function(read)

    def finished(self, endpoint: str, is_ok: bool) -> None:
        self._lines.labels(endpoint, "completed" if is_ok else "failed").inc()
