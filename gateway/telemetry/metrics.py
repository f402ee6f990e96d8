"""The metrics of the gateway. On the hot path a count is one addition; Prometheus reads it at a scrape."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from importlib.metadata import version
from itertools import accumulate
from typing import Generic, Protocol, TypeVar

from prometheus_client import (
    CollectorRegistry,
    Gauge,
    Info,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from gateway.exchange import TimeSplit
from gateway.telemetry.memory import KeptMemory
from policies.fleet import FleetView
from policies.types import Hold, SessionState

MAX_LABEL_SETS = 1_000


class Counter(Collector):
    """A number for each label set; past the bound all further label sets are `other`. Owned by the event loop's
    thread. The library's counter takes a lock for each addition, which costs ten times as much."""

    def __init__(
        self, name: str, text: str, labels: Sequence[str] = (), max_label_sets: int = MAX_LABEL_SETS
    ) -> None:
        self._name, self._text, self._labels = name, text, labels
        self._max_label_sets = max_label_sets
        self._counts: dict[tuple[str, ...], float] = {} if labels else {(): 0}

    def add(self, amount: float, *labels: str) -> None:
        counts = self._counts
        try:
            counts[labels] += amount
        except KeyError:
            if len(counts) >= self._max_label_sets:
                labels = ("other",) * len(labels)
            counts[labels] = counts.get(labels, 0) + amount

    def describe(self) -> Iterable[CounterMetricFamily]:
        return [self._family()]

    def collect(self) -> Iterator[CounterMetricFamily]:
        family = self._family()
        for labels, count in self._counts.items():
            family.add_metric([str(label) for label in labels], count)
        yield family

    def _family(self) -> CounterMetricFamily:
        return CounterMetricFamily(self._name, self._text, labels=self._labels)


class TimeByPart(Collector):
    """Seconds of requests by the part of their time."""

    def __init__(self, name: str, text: str, registry: CollectorRegistry) -> None:
        self._name, self._text = name, text
        self._sum, self._recompute_s = TimeSplit(), 0.0
        registry.register(self)

    def add(self, spent: TimeSplit, recomputed_share: float) -> None:
        """Count a request. `recomputed_share`: part of its computed tokens that had been computed before."""
        total = self._sum
        total.gate_s += spent.gate_s
        total.queue_s += spent.queue_s
        total.prefill_s += spent.prefill_s
        total.beside_s += spent.beside_s
        total.decode_s += spent.decode_s
        total.failed_s += spent.failed_s
        total.tools_s += spent.tools_s
        if recomputed_share:
            self._recompute_s += recomputed_share * max(0.0, spent.prefill_s - spent.beside_s)

    def describe(self) -> Iterable[CounterMetricFamily]:
        return [self._family()]

    def collect(self) -> Iterator[CounterMetricFamily]:
        family, total = self._family(), self._sum
        own_s = max(0.0, total.prefill_s - total.beside_s)
        parts = {
            "gate": total.gate_s,
            "engine_queue": total.queue_s,
            "prefill": own_s - self._recompute_s,
            "beside": total.beside_s,
            "recompute": self._recompute_s,
            "decode": total.decode_s,
            "tools": total.tools_s,
            "failed": total.failed_s,
        }
        for part, seconds in parts.items():
            family.add_metric([part], seconds)
        yield family

    def _family(self) -> CounterMetricFamily:
        return CounterMetricFamily(self._name, self._text, labels=("part",))


# ---- histograms of the hot path


class Durations:
    """The observations of one label set."""

    __slots__ = ("counts", "latest_s", "sum_s")

    def __init__(self, num_bounds: int) -> None:
        self.counts = [0] * (num_bounds + 1)
        """Observations in each bucket; the last has no upper bound."""
        self.sum_s = 0.0
        self.latest_s: list[float] = []
        """Those that are not yet counted: together they take a third of the time."""

    def fold(self, bounds_s: Sequence[float]) -> None:
        """Count the latest observations."""
        buckets = Tally(map(partial(bisect_left, bounds_s), self.latest_s))
        for bucket, num in buckets.items():
            self.counts[bucket] += num
        self.sum_s = sum(self.latest_s, self.sum_s)
        self.latest_s.clear()


MOST_UNCOUNTED = 256


class Histogram(Collector):
    """Durations by label set, of which there are few. Owned by the event loop's thread, without the
    library's lock."""

    def __init__(self, name: str, text: str, bounds_s: Sequence[float], labels: Sequence[str] = ()) -> None:
        self._name, self._text, self._labels = name, text, labels
        self._bounds = bounds_s
        self._limits = [*map(floatToGoString, bounds_s), "+Inf"]
        self._children: dict[tuple[str, ...], Durations] = {}
        if not labels:
            self._children[()] = Durations(len(bounds_s))

    def observe(self, seconds: float, *labels: str) -> None:
        seen = self._children.get(labels)
        if seen is None:
            seen = self._children[labels] = Durations(len(self._bounds))
        latest_s = seen.latest_s
        latest_s.append(seconds)
        if len(latest_s) == MOST_UNCOUNTED:
            seen.fold(self._bounds)

    def describe(self) -> Iterable[HistogramMetricFamily]:
        return [self._family()]

    def collect(self) -> Iterator[HistogramMetricFamily]:
        family = self._family()
        for labels, seen in self._children.items():
            seen.fold(self._bounds)
            buckets = [*zip(self._limits, map(float, accumulate(seen.counts)), strict=True)]
            family.add_metric([str(label) for label in labels], buckets, seen.sum_s)
        yield family

    def _family(self) -> HistogramMetricFamily:
        return HistogramMetricFamily(self._name, self._text, labels=self._labels)


# ---- the metrics of the gateway, `turngate_*`, in a registry of their own. Every label set is bounded

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

WAIT_BUCKETS_S = (0.001, 0.01, 0.1, 0.5, 1, 2.5, 5, 10, 20, 40, 60, 90, 150, 300, 600)
TTFT_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60, 120, 300, 600)
OVERHEAD_BUCKETS_S = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 2)
LAG_BUCKETS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2)
POLICY_BUCKETS_S = (0.00001, 0.00003, 0.0001, 0.0003, 0.001, 0.003, 0.01, 0.1)

M = TypeVar("M")
C = TypeVar("C", covariant=True)


class Labelled(Protocol[C]):
    """A metric with a child for each label set."""

    def labels(self, *labels: str) -> C: ...


class Bounded(Generic[M]):
    """The children of one metric, each looked up once; past the bound all further label sets are `other`."""

    def __init__(self, metric: Labelled[M], max_label_sets: int = MAX_LABEL_SETS) -> None:
        self._metric = metric
        self._max_label_sets = max_label_sets
        self._children: dict[tuple[str, ...], M] = {}

    def __call__(self, *labels: str) -> M:
        child = self._children.get(labels)
        if child is None:
            if len(self._children) >= self._max_label_sets:
                labels = ("other",) * len(labels)
            child = self._children[labels] = self._metric.labels(*labels)
        return child


class Watched(Protocol):
    """What a gauge needs to know of a running engine."""

    @property
    def name(self) -> str: ...
    @property
    def is_up(self) -> bool: ...


class WatchedFleet(Protocol):
    """What gauges show of a Monitor."""

    @property
    def engines(self) -> Iterable[Watched]: ...


class Metrics:
    """All instruments."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        Info("turngate_build", "Version of the gateway", registry=registry).info({"version": version("turngate")})

        def counter(name: str, text: str, *labels: str) -> Counter:
            registry.register(made := Counter(f"turngate_{name}", text, labels))
            return made

        def histogram(name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
            registry.register(made := Histogram(f"turngate_{name}", text, buckets, labels))
            return made

        self.outcomes = counter("outcomes", "How requests ended, by wire format", "outcome", "path")
        self.turns = counter("turns", "Turns given a slot", "kind", "reason")
        self.wait = histogram("wait_seconds", "Time from recognised to slot", WAIT_BUCKETS_S, "reason")
        self.tenant_wait = counter("tenant_wait_seconds", "Time from recognised to slot, by tenant", "tenant")
        self.time = TimeByPart("turngate_time_seconds", "Time of requests, by where it went", registry)
        self.ttft = histogram("ttft_seconds", "Request in to first byte out", TTFT_BUCKETS_S, "turn")
        overhead = "Time spent in the gateway: all but queue and engine"
        self.overhead = histogram("overhead_seconds", overhead, OVERHEAD_BUCKETS_S)
        self.loop_lag = histogram("loop_lag_seconds", "Lateness of the event loop's beats", LAG_BUCKETS_S)
        self.policy = histogram("policy_seconds", "Time to decide on one fact", POLICY_BUCKETS_S)
        tokens = "tokens of answers, as engines reported them"
        self.prompt_tokens = counter("prompt_tokens", f"Prompt {tokens}", "model", "tenant")
        self.output_tokens = counter("output_tokens", f"Output {tokens}", "model", "tenant")
        self.cached_tokens = counter("cached_tokens", "Prompt tokens cached, foreseen and real", "replica", "kind")
        self.recomputed_tokens = counter("recomputed_tokens", "Prompt tokens of earlier turns again", "replica")
        self.kv_evicted_blocks = counter("kv_evicted_blocks", "KV blocks evicted, by their events", "replica")
        horizon = "Idle time that nine in ten evicted prefixes had reached, where engines publish events"
        self.kv_horizon = Bounded(Gauge("turngate_kv_horizon_seconds", horizon, ("replica",), registry=registry))
        self.hints = counter("hints", "Hints by what became of them", "engine", "hint", "result")
        breaks = "Sessions that break their siblings' prefix, and later turns that break their own"
        self.prefix_breaks = counter("prefix_breaks", breaks, "kind")
        self.prefix_break_tokens = counter("prefix_break_tokens", "Shared tokens behind a break", "kind")
        self.limited = counter("limited", "Requests refused by a limit of their key", "limit")
        self.faults = counter("engine_faults", "What engines did wrong, by kind", "engine", "kind")
        self.retries = counter("retries", "Model calls tried again", "cause")
        self.memory = KeptMemory(registry)

    def show_fleet(self, view: Callable[[], FleetView], fleet: WatchedFleet) -> None:
        """Add gauges of the fleet, read at each scrape."""
        self.registry.register(FleetGauges(view, fleet))

    def exposition(self) -> bytes:
        """Return the page for Prometheus; its type is CONTENT_TYPE."""
        return generate_latest(self.registry)


class FleetGauges(Collector):
    """The fleet as it is at the moment of the scrape."""

    def __init__(self, view: Callable[[], FleetView], fleet: WatchedFleet) -> None:
        self._view = view
        self._fleet = fleet
        self._most_s: dict[tuple[str, str], float] = {}
        """High-water marks of the seconds that gates held and saved, by replica and kind. What a gate saved falls
        while it slows turns down, and a counter may not: it stands still until the loss is made up for."""

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """Return nothing, so that registering does not read the fleet."""
        return ()

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        view = self._view()
        sessions = _gauge("sessions", "Live sessions, by state", "state")
        for state in SessionState:
            sessions.add_metric([state.value], view.sessions.get(state, 0))
        families = _gauge("families", "Families with a live session")
        families.add_metric([], view.num_families)
        queue = _gauge("queue_depth", "Turns at the gate, by what they wait for", "hold")
        for hold in Hold:
            queue.add_metric([hold.value], view.waiting.get(hold, 0))
        yield from (sessions, families, queue)
        yield from self._replicas(view)
        yield self._gates(view)
        up = _gauge("engine_up", "Whether an engine answers", "engine")
        for engine in self._fleet.engines:
            up.add_metric([engine.name], engine.is_up)
        yield up
        tasks = _gauge("tasks", "Tasks of the event loop, which come back to one number at rest")
        with suppress(RuntimeError):  # read where no loop runs
            tasks.add_metric([], len(asyncio.all_tasks()))
        yield tasks

    def _replicas(self, view: FleetView) -> Iterator[GaugeMetricFamily]:
        up = _gauge("replica_up", "Whether a KV pool takes turns", "replica")
        slots = _gauge("slots", "Model calls that a replica runs at once", "replica")
        used = _gauge("slots_used", "Model calls that it runs now", "replica")
        residency = _gauge(
            "residency_tokens",
            "KV tokens: used by resident sessions, ceiling, capacity as it is believed, as the engine states it",
            "replica",
            "kind",
        )
        for replica in view.replicas[:MAX_LABEL_SETS]:
            up.add_metric([replica.id], replica.is_healthy)
            if replica.slots is not None:
                slots.add_metric([replica.id], replica.slots)
            used.add_metric([replica.id], replica.slots_used)
            residency.add_metric([replica.id, "used"], replica.residency_tokens)
            if replica.capacity_tokens is not None:
                residency.add_metric([replica.id, "capacity"], replica.capacity_tokens)
            if replica.ceiling_tokens is not None:
                residency.add_metric([replica.id, "ceiling"], replica.ceiling_tokens)
            if replica.stated_tokens is not None:
                residency.add_metric([replica.id, "stated"], replica.stated_tokens)
        yield from (up, slots, used, residency)

    def _gates(self, view: FleetView) -> CounterMetricFamily:
        text = "Seconds of sessions that gates held turns, and saved them; under `observe`: would have"
        family = CounterMetricFamily("turngate_gate_seconds", text, labels=("replica", "kind"))
        before, self._most_s = self._most_s, {}
        for replica in view.replicas[:MAX_LABEL_SETS]:
            for kind, seconds in (("held", replica.gate_held_s), ("saved", replica.gate_saved_s)):
                most_s = self._most_s[replica.id, kind] = max(before.get((replica.id, kind), 0.0), seconds)
                family.add_metric([replica.id, kind], most_s)
        return family


def _gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"turngate_{name}", text, labels=labels)
