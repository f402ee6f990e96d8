"""One metrics page of several."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from gateway.cluster.router import summed


def page(scale: int) -> str:
    registry = CollectorRegistry()
    Counter("turngate_outcomes", "How", ("path",), registry=registry).labels('a"b').inc(scale)
    Histogram("turngate_wait_seconds", "Time", buckets=(1, 2), registry=registry).observe(scale)
    Gauge("turngate_slots_used", "Now", registry=registry).set(scale)
    Gauge("turngate_engine_up", "Up", ("engine",), registry=registry).labels("e").set(1)
    residency = Gauge("turngate_residency_tokens", "Tokens", ("kind",), registry=registry)
    for kind in ("stated", "used"):
        residency.labels(kind).set(100)
    return generate_latest(registry).decode()


def test_counters_and_histograms_add_up_and_gauges_are_what_they_mean() -> None:
    families = text_string_to_metric_families(summed([page(1), page(2)]).decode())
    values = {(s.name, *s.labels.values()): s.value for family in families for s in family.samples}
    assert values["turngate_outcomes_total", 'a"b'] == 3
    assert values["turngate_wait_seconds_sum",] == 3
    assert values["turngate_wait_seconds_count",] == 2
    assert values["turngate_wait_seconds_bucket", "1.0"] == 1
    assert values["turngate_wait_seconds_bucket", "+Inf"] == 2
    assert values["turngate_slots_used",] == 3
    assert values["turngate_engine_up", "e"] == 1
    assert values["turngate_residency_tokens", "stated"] == 100
    assert values["turngate_residency_tokens", "used"] == 200


def test_one_page_stays_as_it_is() -> None:
    text = page(5)
    assert summed([text]).decode() == text
