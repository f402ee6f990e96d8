"""One metrics page of several: counters and histograms added up, gauges by what they are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import cast

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

LARGEST = frozenset(
    ("engine_up", "replica_up", "build_info", "cluster_heard", "cluster_members", "kv_horizon_seconds")
)
"""Gauges, without `turngate_`, that each process states of the same thing."""
_SMALLEST = "process_start_time_seconds"
_STATED = ("turngate_residency_tokens", ("kind", "capacity"))
"""What the engine states, whoever asks it; used and ceiling are each member's own."""

Key = tuple[str, tuple[tuple[str, str], ...]]


def summed(pages: Iterable[str]) -> bytes:
    """In the text format of the pages. Raises ValueError on one that is of another."""
    metrics: dict[str, Metric] = {}
    values: dict[str, dict[Key, float]] = {}
    for page in pages:
        for family in text_string_to_metric_families(page):
            metrics.setdefault(family.name, Metric(family.name, family.documentation, family.type))
            sums = values.setdefault(family.name, {})
            for sample in family.samples:
                key = sample.name, tuple(sorted(sample.labels.items()))
                sums[key] = sample.value if key not in sums else _joined(key, sums[key], sample.value)
    for name, metric in metrics.items():
        for (sample_name, labels), value in values[name].items():
            metric.add_sample(sample_name, dict(labels), value)
    return generate_latest(cast(CollectorRegistry, _Collected(metrics.values())))


def _joined(key: Key, one: float, other: float) -> float:
    name, labels = key
    if name.removeprefix("turngate_") in LARGEST or (name == _STATED[0] and _STATED[1] in labels):
        return max(one, other)
    return min(one, other) if name == _SMALLEST else one + other


class _Collected:
    """What `generate_latest` asks of a registry."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        return iter(self._metrics)
