"""One metrics page of several: counters and histograms added up, gauges by what they are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, cast

import orjson
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from gateway.core.fields import Json

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


# ---- one view of several members' answers: sessions, families, receipts, the live view

PREFIX = "/v1/turngate/"
_RECEIPTS = PREFIX + "receipts/"


def is_joined(path: str) -> bool:
    """Whether other members know more of it."""
    return path in _JOINED or path.startswith(_RECEIPTS)


def joined(path: str, pages: Sequence[bytes]) -> bytes | None:
    """The pages of members as one; the first is this member's. None: nobody has any."""
    if not pages or path.startswith(_RECEIPTS):
        return pages[0] if pages else None
    return orjson.dumps(_JOINED[path]([orjson.loads(page) for page in pages]))


def _sessions(pages: list[Json]) -> Json:
    """A session that moved is at two members; it is where it was heard of last."""
    rows: dict[str, Json] = {}
    for row in (row for page in pages for row in page["sessions"]):
        other = rows.get(row["session"])
        if other is None or row.get("idle_s", 0) < other.get("idle_s", 0):
            rows[row["session"]] = row
    return {"sessions": list(rows.values())}


def _families(pages: list[Json]) -> Json:
    rows: dict[str, Json] = {}
    for row in (row for page in pages for row in page["families"]):
        rows[row["family"]] = _added(rows[row["family"]], row) if row["family"] in rows else row
    return {"families": list(rows.values())}


def _live(pages: list[Json]) -> Json:
    """What all do now. A page holds as many rows of each member as were asked for."""
    told = pages[0]
    for page in pages[1:]:
        told = {key: _added(told.get(key), page.get(key)) for key in told} | {"at": told["at"]}
    replicas: dict[str, Json] = {}
    for replica in (replica for page in pages for replica in page["replicas"]):
        known = replicas.get(replica["id"])
        replicas[replica["id"]] = replica if known is None else _replica(known, replica)
    return told | {"replicas": list(replicas.values()), "offset": pages[0]["offset"]}


def _replica(one: Json, other: Json) -> Json:
    """Both have a share of it; its size is what the engine states to both."""
    added: Json = _added(one, other)
    return added | {"is_up": one["is_up"], "capacity_tokens": one["capacity_tokens"]}


def _added(one: Any, other: Any) -> Any:
    """Counts add up at every depth, lists follow each other; of anything else, and of what was last, the first
    stays."""
    if isinstance(one, dict) and isinstance(other, dict):
        return {
            key: one.get(key, other.get(key)) if key in _OF_ONE else _added(one.get(key), other.get(key))
            for key in {**one, **other}
        }
    if isinstance(one, list) and isinstance(other, list):
        return one + other
    if isinstance(one, int) and isinstance(other, int) and not isinstance(one, bool):
        return one + other
    return other if one is None else one


_OF_ONE = ("last", "wasted_tokens_per_break")
_JOINED: dict[str, Callable[[list[Json]], Json]] = {
    PREFIX + "sessions": _sessions,
    PREFIX + "families": _families,
    PREFIX + "live": _live,
}
