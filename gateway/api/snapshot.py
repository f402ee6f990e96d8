"""What happens right now, as one JSON object: replicas, sessions with their phase, and their last turns. Pure.

Names, ids and numbers only. At most `MAX_ROWS` sessions and `MAX_TURNS` turns, however large the fleet is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from itertools import chain, islice

from gateway.core.fields import Json
from gateway.exchange import Exchange
from gateway.sessions.session_table import Seen, Span, running_span
from policies.types import Hold, SessionState, TurnKind
from policies.view import FleetView, ReplicaView, SessionView

MAX_ROWS = 1_000
MAX_TURNS = 2_000
WINDOW_S = 300.0
"""How far the turns go back."""


class SessionPhase(StrEnum):
    """What a session does now."""

    WAITING = "waiting"  # a turn of it is held at the gate
    PREFILL = "prefill"  # it has a slot, and no byte yet
    DECODE = "decode"
    TOOL = "tool"  # its tools run, at the client or here
    LEASE = "lease"  # between turns, and kept resident
    IDLE = "idle"  # between turns; its prefix may be evicted


def snapshot(
    view: FleetView, page: Sequence[Seen], num_sessions: int, spans: Iterable[Span], now: float, shows_tenant: bool
) -> Json:
    """`page`: the sessions to tell of, of all `num_sessions`; `view` names them; `spans`: their last turns."""
    running = [running_span(exchange) for seen in page for exchange in seen.open]
    return {
        "replicas": [_replica(replica) for replica in view.replicas],
        "states": {state.value: view.sessions.get(state, 0) for state in SessionState},
        "waiting": {hold.value: view.waiting.get(hold, 0) for hold in Hold},
        "families": view.num_families,
        "total": num_sessions,
        "sessions": [row(seen, view.named.get(seen.who.session_id), now, shows_tenant) for seen in page],
        "turns": [_turn(each, now) for each in islice(chain(running, spans), MAX_TURNS)],
    }


def row(seen: Seen, told: SessionView | None, now: float, shows_tenant: bool) -> Json:
    """One session; keys without a value are left out. Seconds count from now."""
    who, exchange = seen.who, seen.open[-1] if seen.open else None
    phase, since = _phase(exchange, told, seen.last_at)
    is_waiting, replica = phase is SessionPhase.WAITING, seen.replica
    if exchange is not None and exchange.dispatch is not None:
        replica = exchange.dispatch.replica_id
    about: Json = {
        "session": who.session_id,
        "family": who.family_id,
        "parent": who.parent_id,
        "tenant": seen.tenant if shows_tenant else None,
        "kind": who.kind,
        "phase": phase,
        "phase_s": round(max(0.0, now - since), 1),
        "waits_for": _waits_for(exchange, told) if is_waiting else None,
        "turn": max(1, seen.num_turns),
        "expected_turns": None if told is None else round(told.expected_turns, 1),
        "replica": replica,
        "is_resident": told is not None and told.is_resident,
        "lease_s": None if exchange or told is None or not told.is_resident else round(told.lease_until - now, 1),
        "prompt_tokens": seen.prompt_tokens or (told.prompt_tokens if told is not None else None) or None,
        "model": seen.model,
        "age_s": round(now - seen.first_at, 1),
    }
    return {key: value for key, value in about.items() if value not in (None, "")}


def _phase(exchange: Exchange | None, told: SessionView | None, last_at: float) -> tuple[SessionPhase, float]:
    """And since when."""
    if exchange is None:
        if told is None or not told.is_resident:
            return SessionPhase.IDLE, last_at
        return (SessionPhase.TOOL if told.calls_tools and not told.is_expired else SessionPhase.LEASE), last_at
    times = exchange.timings
    if len(exchange.tools_at) % 2:
        return SessionPhase.TOOL, exchange.tools_at[-1]
    since = exchange.tools_at[-1] if exchange.tools_at else times.recognised_at or times.received_at
    is_back = bool(exchange.tools_at) or times.first_byte_at is None
    if times.leased_at is None or (is_back and told and told.state is SessionState.WAITING):
        return SessionPhase.WAITING, since
    if times.first_byte_at is None:
        return SessionPhase.PREFILL, times.leased_at
    return SessionPhase.DECODE, max(since, times.first_byte_at)


def _waits_for(exchange: Exchange | None, told: SessionView | None) -> Hold:
    """A turn of a resident session, and a side request, wait for a slot only (Scheduler, law 3)."""
    who = exchange.recognition if exchange is not None else None
    is_side = who is not None and who.kind is TurnKind.SIDE
    return Hold.SLOT if is_side or (told is not None and told.is_resident) else Hold.RESIDENCY


def _replica(replica: ReplicaView) -> Json:
    return {
        "id": replica.id,
        "is_up": replica.is_healthy,
        "slots": replica.slots,
        "slots_used": replica.slots_used,
        "residency_tokens": replica.residency_tokens,
        "ceiling_tokens": replica.ceiling_tokens,
        "capacity_tokens": replica.capacity_tokens,
    }


def _turn(told: Span, now: float) -> Json:
    """Seconds before now at which it began each phase; null: it did not."""

    def ago_s(at: float | None) -> float | None:
        return None if at is None else round(now - at, 2)

    return {
        "session": told.session_id,
        "turn": told.turn + 1,
        "replica": told.replica,
        "began_s": ago_s(told.began_at),
        "prefill_s": ago_s(told.leased_at),
        "decode_s": ago_s(told.first_byte_at),
        "ended_s": ago_s(told.ended_at),
        "tools_s": [ago_s(at) for at in told.tools_at],
        "is_answered": told.is_answered,
    }
