"""A machine that stands still for a moment is no Redis that is gone."""

from __future__ import annotations

import pytest

from gateway.cluster import membership
from tests.deadline import DEADLINE_S


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership, "TIMEOUT_S", DEADLINE_S)
