"""Answers `/v1/turngate/live`: takes one page of the sessions and asks the Scheduler about those alone."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from typing import Protocol
from urllib.parse import parse_qs

from gateway.api.snapshot import MAX_ROWS, WINDOW_S, snapshot
from gateway.core.fields import Json
from gateway.sessions.session_table import Sessions
from policies.types import SessionId
from policies.view import FleetView

PATH = "/v1/turngate/live"
DEFAULT_ROWS = 100


class View(Protocol):
    """`Gate.view`."""

    def __call__(self, counts_sessions: bool = True, named: frozenset[SessionId] = frozenset()) -> FleetView: ...


@dataclass(frozen=True, slots=True)
class Live:
    """Of one gateway process."""

    sessions: Sessions
    view: View
    clock: Callable[[], float]

    def answer(self, query: str, tenant: str | None) -> Json:
        """`limit` and `offset` in the query choose the page. Tenant None: all of them, by name."""
        asked, now = parse_qs(query), self.clock()
        limit = min(MAX_ROWS, _number(asked.get("limit"), DEFAULT_ROWS))
        offset = _number(asked.get("offset"), 0)
        page, num_sessions = self.sessions.page(tenant, offset, limit)
        ids = frozenset(each.who.session_id for each in page)
        spans = self.sessions.timeline.of(ids, now - WINDOW_S)
        told = snapshot(self.view(named=ids), page, num_sessions, spans, now, shows_tenant=tenant is None)
        return {"version": version("turngate"), "at": round(time.time(), 3), "offset": offset, **told}


def _number(values: list[str] | None, default: int) -> int:
    """What is no number is taken as not given."""
    text = values[-1] if values else ""
    return int(text[:9]) if text.isascii() and text.isdigit() else default
