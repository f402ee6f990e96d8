"""A row of docs/faults.md: what a test's fault is, what comes of it, and where that is counted."""

from __future__ import annotations

import re

import pytest

from tests.path.conftest import Gateway

ENGINE, CLIENT, GATEWAY = "engine", "client", "gateway"
FAULTS = "turngate_engine_faults_total"
OUTCOMES = "turngate_outcomes_total"


def fault(whose: str, what: str, outcome: str, *metrics: str) -> pytest.MarkDecorator:
    """`metrics`: each `name` or `name{label="value"}`."""
    return pytest.mark.fault(whose=whose, what=what, outcome=outcome, metrics=metrics)


def faults(kind: str) -> str:
    return f'{FAULTS}{{kind="{kind}"}}'


def outcomes(outcome: str) -> str:
    return f'{OUTCOMES}{{outcome="{outcome}"}}'


def metrics_of(gateway: Gateway) -> str:
    """The page, which a gateway with keys shows to its operator only."""
    return gateway.app.parts.observer.metrics.exposition().decode()


async def counted(gateway: Gateway, metric: str) -> float:
    """Sum over all label sets of a metric that have its label."""
    name, _, label = metric.rstrip("}").partition("{")
    lines = metrics_of(gateway).splitlines()
    return sum(
        float(line.rpartition(" ")[2]) for line in lines if re.match(rf"{name}[{{ ]", line) and label in line
    )
