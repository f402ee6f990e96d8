"""Sessions and families as JSON: names, ids and numbers only. A session has one row, which the live view extends.

`/v1/turngate/sessions` lists all of them, `/v1/turngate/families` counts them, and `/v1/turngate/live` shows one
page of them with the replicas and the last turns.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import version
from itertools import chain, islice
from typing import Any, Protocol
from urllib.parse import parse_qs

from gateway.core.fields import Json, excerpt
from gateway.exchange import Exchange
from gateway.sessions.session_table import SessionEntry, SessionTable, Span, running_span
from gateway.telemetry.receipts import FEWEST_ID_CHARS
from policies.fleet import FleetView, ReplicaView, SessionView
from policies.types import Hold, SessionId, SessionState, TurnKind

DEFAULT_ROWS = 100
MAX_ROWS = 1_000
MAX_TURNS = 2_000
MOST_RUNNING = 10
WINDOW_S = 300.0
"""Age of the oldest turns that the live snapshot shows."""


class SessionPhase(StrEnum):
    """What a session does now."""

    WAITING = "waiting"  # a turn of it is held at the gate
    QUEUED = "queued"  # it waits in its engine's own queue, as far as can be inferred
    PREFILL = "prefill"  # it has a slot, and no byte yet
    DECODE = "decode"
    TOOL = "tool"  # its tools run, at the client or here
    LEASE = "lease"  # between turns, and kept resident
    IDLE = "idle"  # between turns; its prefix may be evicted


class View(Protocol):
    """`Gate.view`."""

    def __call__(self, counts_sessions: bool = True, named: frozenset[SessionId] = frozenset()) -> FleetView: ...


@dataclass(frozen=True, slots=True)
class SessionViews:
    """The sessions of one gateway process. For a tenant of None, all tenants are shown, with their names."""

    sessions: SessionTable
    view: View
    clock: Callable[[], float]

    def listed(self, tenant: str | None) -> list[Json]:
        """Return the row of every session, in order of first arrival. The Scheduler looks none of them up."""
        now = self.clock()
        return [row(entry, now, shows_tenant=tenant is None) for entry in self.sessions.of_tenant(tenant)]

    def families(self, tenant: str | None) -> list[Json]:
        """Return the families, with the sessions of each counted by kind and by state."""
        families: dict[str, Json] = {}
        for entry in self.sessions.of_tenant(tenant):
            family = families.setdefault(
                entry.recognition.family_id,
                {"family": entry.recognition.family_id, "turns": 0, "sessions": {}, "states": {}},
            )
            family["turns"] += entry.num_turns
            for counts, name in ((family["sessions"], entry.recognition.kind), (family["states"], entry.state)):
                counts[name.value] = counts.get(name.value, 0) + 1
        return list(families.values())

    def running(self, wanted: str, tenant: str | None) -> list[Json]:
        """Return the rows of sessions of this name that have a request in the gateway, some of them. `wanted`: an
        id of a session or its beginning, the client's own id, or an agent."""
        now = self.clock()
        page, _ = self.sessions.page(tenant, 0, MAX_ROWS)
        mine = [entry for entry in page if entry.open and _is_named(entry, wanted)][:MOST_RUNNING]
        view = self.view(counts_sessions=False, named=frozenset(entry.id for entry in mine))
        return [live_row(entry, view.named.get(entry.id), now, tenant is None) for entry in mine]

    def live(self, query: str, tenant: str | None) -> Json:
        """Return the live snapshot; `limit` and `offset` in the query choose the page. The Scheduler looks up the
        sessions of that page alone."""
        parameters, now = parse_qs(query), self.clock()
        limit = min(MAX_ROWS, number(parameters.get("limit"), DEFAULT_ROWS))
        offset = number(parameters.get("offset"), 0)
        page, num_sessions = self.sessions.page(tenant, offset, limit)
        ids = frozenset(entry.id for entry in page)
        spans = self.sessions.timeline.of(ids, now - WINDOW_S)
        content = snapshot(self.view(named=ids), page, num_sessions, spans, now, shows_tenant=tenant is None)
        return {"version": version("turngate"), "at": round(time.time(), 3), "offset": offset, **content}


def _is_named(entry: SessionEntry, wanted: str) -> bool:
    begins = len(wanted) >= FEWEST_ID_CHARS and entry.id.startswith(wanted)
    return begins or wanted in (entry.id, entry.client_session, entry.client_hash, entry.agent)


def number(values: list[str] | None, default: int) -> int:
    """Return the number; the default where there is none."""
    text = values[-1] if values else ""
    return int(text[:9]) if text.isascii() and text.isdigit() else default


def snapshot(
    view: FleetView,
    page: Sequence[SessionEntry],
    num_sessions: int,
    spans: Iterable[Span],
    now: float,
    shows_tenant: bool,
) -> Json:
    """Show the sessions of the page, of all `num_sessions`. `view` names them; `spans` are their last turns."""
    running = [running_span(exchange) for entry in page for exchange in entry.open]
    return {
        "replicas": [_replica(replica) for replica in view.replicas],
        "states": {state.value: view.sessions.get(state, 0) for state in SessionState},
        "waiting": {hold.value: view.waiting.get(hold, 0) for hold in Hold},
        "families": view.num_families,
        "total": num_sessions,
        "sessions": [live_row(entry, view.named.get(entry.id), now, shows_tenant) for entry in page],
        "turns": [_turn(each, now) for each in islice(chain(running, spans), MAX_TURNS)],
    }


def row(entry: SessionEntry, now: float, shows_tenant: bool) -> Json:
    """Return one session as the gateway remembers it; keys without a value are left out. A row that
    shows the tenant is for the operator, and has a hash of the client's own id."""
    recognition, exchange = entry.recognition, entry.open[-1] if entry.open else None
    dispatch = exchange.dispatch if exchange is not None else None
    columns: Json = {
        "session": recognition.session_id,
        "agent": entry.agent,
        "client_session": entry.client_hash if shows_tenant else entry.client_session,
        "family": recognition.family_id,
        "parent": recognition.parent_id,
        "tenant": entry.tenant if shows_tenant else None,
        "kind": recognition.kind,
        "state": entry.state,
        "turns": entry.num_turns,
        "side_requests": entry.num_side_requests,
        "source": recognition.source,
        "confidence": recognition.confidence,
        "model": entry.model,
        "replica": dispatch.replica_id if dispatch is not None else entry.replica,
        "prompt_tokens": entry.prompt_tokens,
        "idle_s": None if exchange else round(now - entry.last_at, 3),
        "age_s": round(now - entry.first_at, 1),
    }
    return {key: value for key, value in columns.items() if value not in (None, "")}


def live_row(entry: SessionEntry, scheduled: SessionView | None, now: float, shows_tenant: bool) -> Json:
    """Return its row with its phase, and with `scheduled`, the Scheduler's view of it. Seconds count back from
    now."""
    exchange = entry.open[-1] if entry.open else None
    phase, since = _phase(exchange, scheduled, entry.last_at)
    columns: Json = {
        "phase": phase,
        "phase_s": round(max(0.0, now - since), 1),
        "turn": max(1, entry.num_turns),
        "is_resident": scheduled is not None and scheduled.is_resident,
    }
    if phase is SessionPhase.WAITING:
        columns["waits_for"] = _waits_for(exchange, scheduled)
    if phase is SessionPhase.TOOL and scheduled is not None and scheduled.tools:
        columns["tool"] = excerpt(scheduled.tools)
    if scheduled is not None:
        columns["expected_turns"] = round(scheduled.expected_turns, 1)
        if scheduled.is_resident and exchange is None:
            columns["lease_s"] = round(scheduled.lease_until - now, 1)
        if tokens := entry.prompt_tokens or scheduled.prompt_tokens:
            columns["prompt_tokens"] = tokens
    return row(entry, now, shows_tenant) | columns


def _phase(exchange: Exchange | None, scheduled: SessionView | None, last_at: float) -> tuple[SessionPhase, float]:
    """Return the phase, and the time at which it began."""
    if exchange is None:
        if scheduled is None or not scheduled.is_resident:
            return SessionPhase.IDLE, last_at
        has_tool = bool(scheduled.tools) and not scheduled.is_expired
        return (SessionPhase.TOOL if has_tool else SessionPhase.LEASE), last_at
    times = exchange.timings
    if len(exchange.tools_at) % 2:
        return SessionPhase.TOOL, exchange.tools_at[-1]
    since = exchange.tools_at[-1] if exchange.tools_at else times.recognised_at or times.received_at
    is_back = bool(exchange.tools_at) or times.first_byte_at is None
    if times.leased_at is None or (is_back and scheduled and scheduled.state is SessionState.WAITING):
        return SessionPhase.WAITING, since
    if times.first_byte_at is None:
        is_queued = scheduled is not None and scheduled.is_engine_queued
        return SessionPhase.QUEUED if is_queued else SessionPhase.PREFILL, times.leased_at
    return SessionPhase.DECODE, max(since, times.first_byte_at)


def _waits_for(exchange: Exchange | None, scheduled: SessionView | None) -> Hold:
    """A turn of a resident session, and a side request, wait for a slot only (Scheduler, law 3)."""
    recognition = exchange.recognition if exchange is not None else None
    is_side = recognition is not None and recognition.kind is TurnKind.SIDE
    return Hold.SLOT if is_side or (scheduled is not None and scheduled.is_resident) else Hold.RESIDENCY


def _replica(replica: ReplicaView) -> Json:
    return {
        "id": replica.id,
        "is_up": replica.is_healthy,
        "slots": replica.slots,
        "slots_used": replica.slots_used,
        "residency_tokens": replica.residency_tokens,
        "ceiling_tokens": replica.ceiling_tokens,
        "capacity_tokens": replica.capacity_tokens,
        "stated_tokens": replica.stated_tokens,
        "gate": replica.gate,
        "gate_held_s": round(replica.gate_held_s),
        "gate_saved_s": round(replica.gate_saved_s),
    }


def _turn(turn: Span, now: float) -> Json:
    """Give the seconds before now at which it began each phase; null: it did not."""

    def ago_s(at: float | None) -> float | None:
        return None if at is None else round(now - at, 2)

    return {
        "session": turn.session_id,
        "turn": turn.turn + 1,
        "replica": turn.replica,
        "began_s": ago_s(turn.began_at),
        "prefill_s": ago_s(turn.leased_at),
        "decode_s": ago_s(turn.first_byte_at),
        "ended_s": ago_s(turn.ended_at),
        "tools_s": [ago_s(at) for at in turn.tools_at],
        "is_answered": turn.is_answered,
    }


# ---- pages of several members as one


def joined_sessions(pages: Sequence[Json]) -> Json:
    """A session that moved is at two members; the row of the one that saw it last stays."""
    rows: dict[str, Json] = {}
    for one in (one for page in pages for one in page["sessions"]):
        other = rows.get(one["session"])
        if other is None or one.get("idle_s", 0) < other.get("idle_s", 0):
            rows[one["session"]] = _named_as(other or {}, one)
        else:
            rows[one["session"]] = _named_as(one, other)
    return {"sessions": list(rows.values())}


def _named_as(other: Json, one: Json) -> Json:
    """Return the row of a session with the names that only the other member's row of it has."""
    return {name: other[name] for name in ("agent", "client_session") if name in other} | one


def joined_receipts(pages: Sequence[Json]) -> Json:
    """In the order in which they ended."""
    rows = [one for page in pages for one in page["receipts"]]
    return {"receipts": sorted(rows, key=lambda one: -one["ended_ago_s"])}


def joined_families(pages: Sequence[Json]) -> Json:
    rows: dict[str, Json] = {}
    for one in (one for page in pages for one in page["families"]):
        rows[one["family"]] = _added(rows[one["family"]], one) if one["family"] in rows else one
    return {"families": list(rows.values())}


def joined_live(pages: Sequence[Json]) -> Json:
    """A joined page holds as many rows of each member as the client asked for."""
    content = pages[0]
    for page in pages[1:]:
        content = {key: _added(content.get(key), page.get(key)) for key in content} | {"at": content["at"]}
    replicas: dict[str, Json] = {}
    for replica in (replica for page in pages for replica in page["replicas"]):
        known = replicas.get(replica["id"])
        replicas[replica["id"]] = replica if known is None else _joined_replica(known, replica)
    return content | {"replicas": list(replicas.values()), "offset": pages[0]["offset"]}


def _joined_replica(one: Json, other: Json) -> Json:
    """Add the shares of two members; the stated size is what the engine states to both."""
    added: Json = _added(one, other)
    return added | {"is_up": one["is_up"], "stated_tokens": one.get("stated_tokens")}


_NOT_ADDED = ("last", "wasted_tokens_per_break")


def _added(one: Any, other: Any) -> Any:
    """Add numbers at every depth and chain lists; of anything else, and of `_NOT_ADDED`, keep the first."""
    if isinstance(one, dict) and isinstance(other, dict):
        return {
            key: one.get(key, other.get(key)) if key in _NOT_ADDED else _added(one.get(key), other.get(key))
            for key in {**one, **other}
        }
    if isinstance(one, list) and isinstance(other, list):
        return one + other
    if isinstance(one, int) and isinstance(other, int) and not isinstance(one, bool):
        return one + other
    return other if one is None else one
