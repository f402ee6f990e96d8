"""Reads the pages of engines: JSON objects, lists of models, versions, and metrics in Prometheus' text format."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import NamedTuple

import orjson

from gateway.core import fields
from gateway.core.fields import Json

_LENGTH_KEYS = ("max_model_len", "context_window")
_LABEL = re.compile(r'(?<!\w)(\w++)="((?:[^"\\]|\\.)*+)"')


def json_page(pages: Mapping[str, str], path: str) -> Json:
    """A polled page as a JSON object; empty when it is missing or something else."""
    return json_object(pages.get(path, ""))


def json_object(text: str | bytes) -> Json:
    """A text as a JSON object; empty when it is something else."""
    try:
        parsed = orjson.loads(text)
    except orjson.JSONDecodeError:
        return {}
    return parsed if isinstance(parsed, dict) else {}


def read_models(pages: Mapping[str, str]) -> tuple[tuple[str, ...], dict[str, int]]:
    """Names that `/v1/models` lists, and the context length of those that have one there."""
    lengths: dict[str, int] = {}
    names = []
    for row in fields.items(json_page(pages, "/v1/models"), "data"):
        if isinstance(row, dict) and (name := fields.text(row, "id")):
            names.append(name)
            if length := next((n for key in _LENGTH_KEYS if (n := fields.integer(row, key))), None):
                lengths[name] = length
    return tuple(names), lengths


@lru_cache
def is_at_least(version: str, least: tuple[int, int, int]) -> bool:
    """Whether `1.2.3+cpu` is that version or a later one; False when it is not a version."""
    numbers = re.match(r"v?(\d{1,9})\.(\d{1,9})(?:\.(\d{1,9}))?", version)
    return numbers is not None and tuple(int(n or 0) for n in numbers.groups()) >= least


MOST_DIGITS = 20
"""Of a count or an id that a page states as text: as many as 64 bits have."""


class Sample(NamedTuple):
    """One line of a metrics page."""

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
    """Sum over all labels; None when the page has no such metric, or a sum that is no number."""
    values = [sample.value for sample in found if sample.name == name]
    whole = sum(values)
    return whole if values and math.isfinite(whole) else None
