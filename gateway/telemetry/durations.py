"""Histograms of the hot path: to observe is one bisection and two additions; Prometheus is told at a scrape."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString


class Durations:
    """What was observed under one label set."""

    __slots__ = ("counts", "sum_s")

    def __init__(self, num_bounds: int) -> None:
        self.counts = [0] * (num_bounds + 1)
        """Of each bucket alone; the last has no upper bound."""
        self.sum_s = 0.0


class Histogram(Collector):
    """Durations by label set, of which there are few. Owned by the event loop's thread: the library's own takes a
    lock for each number, which costs ten times as much."""

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
        seen.counts[bisect_left(self._bounds, seconds)] += 1
        seen.sum_s += seconds

    def describe(self) -> Iterable[HistogramMetricFamily]:
        return [self._family()]

    def collect(self) -> Iterator[HistogramMetricFamily]:
        family = self._family()
        for labels, seen in self._children.items():
            buckets = [*zip(self._limits, map(float, accumulate(seen.counts)), strict=True)]
            family.add_metric([str(label) for label in labels], buckets, seen.sum_s)
        yield family

    def _family(self) -> HistogramMetricFamily:
        return HistogramMetricFamily(self._name, self._text, labels=self._labels)
