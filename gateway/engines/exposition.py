"""Read single metrics from a Prometheus text page, by their exact names."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from typing import NamedTuple

_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class Sample(NamedTuple):
    name: str
    labels: Mapping[str, str]
    value: float


def samples(page: str, names: Collection[str]) -> list[Sample]:
    """The samples with one of `names`. Names are exact: a counter `x_total` also has `x_created`, a time."""
    found = []
    for line in page.splitlines():
        name = line[: line.find("{")] if "{" in line else line.partition(" ")[0]
        if name not in names:
            continue
        labels, _, rest = line[len(name) :].rpartition("}")
        try:
            value = float(rest.split()[0])
        except (IndexError, ValueError):
            continue
        if math.isfinite(value):
            found.append(Sample(name, dict(_LABEL.findall(labels)), value))
    return found


def total(found: list[Sample], name: str) -> float | None:
    """Sum over all labels; None when the page has no such metric."""
    values = [sample.value for sample in found if sample.name == name]
    return sum(values) if values else None
