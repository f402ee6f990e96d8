"""Counters of the hot path: to count is one addition; Prometheus is told at a scrape."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

MAX_LABEL_SETS = 1_000


class Counter(Collector):
    """A number for each label set; past the bound all further label sets are `other`. Owned by the event loop's
    thread: the library's own takes a lock for each addition, which costs ten times as much."""

    def __init__(
        self, name: str, text: str, labels: Sequence[str] = (), max_label_sets: int = MAX_LABEL_SETS
    ) -> None:
        self._name, self._text, self._labels = name, text, labels
        self._max_label_sets = max_label_sets
        self._counts: dict[tuple[str, ...], float] = {} if labels else {(): 0}

    def add(self, amount: float, *labels: str) -> None:
        counts = self._counts
        if labels in counts:
            counts[labels] += amount
            return
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
