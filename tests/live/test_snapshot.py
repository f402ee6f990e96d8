"""Laws of the live snapshot: which phase a session is in, what it waits for, and what is not shown."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import orjson
import pytest

from gateway.api import snapshot as live
from gateway.api.live import Live
from gateway.core.errors import Outcome
from gateway.exchange import Exchange, Recognition, Timings
from gateway.sessions.session_table import Seen, Sessions, Span, Timeline
from policies.types import SessionId, SessionState, TurnKind
from policies.view import FleetView, SessionView
from tests.gateway.observed import FLEET, exchange

NOW = 100.0
WHO = Recognition("s1", "f1", "s0", 2, TurnKind.AGENT, "chain", 0.9, False, (), 0)
RESIDENT = SessionView(SessionState.RUNNING, "a", True, False, True, 130.0, 900, 2.25)
GONE = replace(RESIDENT, is_resident=False, state=SessionState.WAITING)
SIDE = replace(WHO, kind=TurnKind.SIDE)


def asks(*times: float | None, who: Recognition = WHO, tools_at: list[float] | None = None) -> Exchange:
    """Recognised, leased, first byte."""
    recognised_at, leased_at, first_byte_at = [*times, None, None][:3]
    at = Timings(40.0, recognised_at, leased_at, None, first_byte_at)
    return exchange(timings=at, recognition=who, dispatch=None, outcome=None, tools_at=tools_at or [])


def seen(open_: Exchange | None = None) -> Seen:
    return Seen(
        WHO,
        "team-a",
        10.0,
        90.0,
        num_turns=3,
        model="m",
        replica="a",
        prompt_tokens=800,
        open=(open_,) if open_ else (),
    )


@pytest.mark.parametrize(
    ("open_", "told", "phase", "since", "waits_for"),
    [
        (asks(41.0), GONE, "waiting", 41.0, "residency"),
        (asks(41.0), RESIDENT, "waiting", 41.0, "slot"),
        (asks(41.0), None, "waiting", 41.0, "residency"),
        (asks(41.0, who=SIDE), GONE, "waiting", 41.0, "slot"),
        (asks(41.0, 50.0), RESIDENT, "prefill", 50.0, None),
        (asks(41.0, 50.0, 55.0), RESIDENT, "decode", 55.0, None),
        (asks(41.0, 50.0, 55.0, tools_at=[60.0]), RESIDENT, "tool", 60.0, None),
        (asks(41.0, 50.0, 55.0, tools_at=[60.0, 70.0]), GONE, "waiting", 70.0, "residency"),
        (asks(41.0, 50.0, 55.0, tools_at=[60.0, 70.0]), RESIDENT, "decode", 70.0, None),
        (None, RESIDENT, "tool", 90.0, None),
        (None, replace(RESIDENT, is_expired=True), "lease", 90.0, None),
        (None, replace(RESIDENT, calls_tools=False), "lease", 90.0, None),
        (None, GONE, "idle", 90.0, None),
        (None, None, "idle", 90.0, None),
    ],
)
def test_each_session_is_in_one_phase(
    open_: Exchange | None, told: SessionView | None, phase: str, since: float, waits_for: str | None
) -> None:
    row = live.row(seen(open_), told, NOW, shows_tenant=True)
    assert (row["phase"], row["phase_s"], row.get("waits_for")) == (phase, NOW - since, waits_for)


def test_a_row_says_who_where_and_how_far() -> None:
    assert live.row(seen(), RESIDENT, NOW, shows_tenant=True) == {
        "session": "s1",
        "family": "f1",
        "parent": "s0",
        "tenant": "team-a",
        "kind": "agent",
        "phase": "tool",
        "phase_s": 10.0,
        "turn": 3,
        "expected_turns": 2.2,
        "replica": "a",
        "is_resident": True,
        "lease_s": 30.0,
        "prompt_tokens": 800,
        "model": "m",
        "age_s": 90.0,
    }


def test_tenants_are_named_to_the_operator_alone() -> None:
    assert "tenant" not in live.row(seen(), RESIDENT, NOW, shows_tenant=False)


def test_replicas_and_counts_are_those_of_the_scheduler() -> None:
    told = live.snapshot(FLEET, [], 7, [], NOW, shows_tenant=False)
    assert told["replicas"][0] == {
        "id": "a",
        "is_up": True,
        "slots": 8,
        "slots_used": 3,
        "residency_tokens": 600,
        "ceiling_tokens": 850,
        "capacity_tokens": 1000,
    }
    assert (told["states"], told["waiting"]) == (
        {"waiting": 0, "running": 3, "idle": 0},
        {"residency": 4, "slot": 0, "replica": 0},
    )
    assert (told["families"], told["total"]) == (2, 7)


def test_turns_are_told_in_seconds_before_now_running_ones_first() -> None:
    ended = Span("s1", 0, "a", 20.0, 21.0, 22.0, 30.0, (25.0, 26.5), True)
    told = live.snapshot(FLEET, [seen(asks(41.0, 50.0))], 1, [ended], NOW, shows_tenant=False)
    assert [turn["ended_s"] for turn in told["turns"]] == [None, 70.0]
    assert told["turns"][1] == {
        "session": "s1",
        "turn": 1,
        "replica": "a",
        "began_s": 80.0,
        "prefill_s": 79.0,
        "decode_s": 78.0,
        "ended_s": 70.0,
        "tools_s": [75.0, 73.5],
        "is_answered": True,
    }


def test_however_many_turns_there_were_a_snapshot_is_bounded() -> None:
    many = [Span("s1", 0, "a", 20.0, None, None, 30.0, (), False)] * 5_000
    assert len(live.snapshot(FLEET, [], 0, many, NOW, shows_tenant=False)["turns"]) == live.MAX_TURNS


def test_the_timeline_forgets_the_oldest_and_tells_of_the_asked_sessions_alone() -> None:
    timeline = Timeline(max_turns=2)
    for number, session in enumerate(["s1", "s1", "s2", "s1"]):
        timeline.ended(exchange(recognition=replace(WHO, session_id=session)), True, 10.0 + number)
    assert [span.ended_at for span in timeline.of({"s1"}, 0.0)] == [13.0]
    assert [span.ended_at for span in timeline.of({"s1", "s2"}, 13.0)] == [13.0]


def test_a_turn_that_was_not_answered_is_told_apart() -> None:
    timeline = Timeline()
    timeline.ended(exchange(outcome=Outcome.ENGINE_CUT), False, 10.0)
    assert [span.is_answered for span in timeline.of({"s1"}, 0.0)] == [False]


def watched(num_sessions: int) -> tuple[Live, list[frozenset[SessionId]]]:
    """Sessions of two tenants in turn; the first one has a request in the gateway."""
    sessions, asked = Sessions(100, 1e9), list[frozenset[SessionId]]()
    for number in range(num_sessions):
        who = replace(WHO, session_id=f"s{number}")
        request = exchange(id=f"x{number}", recognition=who, tenant="ab"[number % 2], timings=Timings(1.0, 1.0))
        sessions.recognised(request, 10.0 + number)
        if number:
            sessions.finished(request, True, 10.0 + number)

    def view(counts_sessions: bool = True, named: frozenset[SessionId] = frozenset()) -> FleetView:
        asked.append(named)
        return FLEET

    return Live(sessions, view, lambda: NOW), asked


def ids(told: Any) -> list[str]:
    return [row["session"] for row in told["sessions"]]


def test_those_with_a_request_come_first_then_the_latest_heard_of() -> None:
    live_, _ = watched(4)
    assert ids(live_.answer("", None)) == ["s0", "s3", "s2", "s1"]


def test_the_scheduler_is_asked_about_one_page_only() -> None:
    live_, asked = watched(6)
    told = live_.answer("limit=2&offset=1", None)
    assert (ids(told), told["total"], told["offset"]) == (["s5", "s4"], 6, 1)
    assert asked == [{"s5", "s4"}]


def test_a_tenant_sees_its_own_sessions_only() -> None:
    live_, _ = watched(4)
    told = live_.answer("", "b")
    assert (ids(told), told["total"]) == (["s3", "s1"], 2)
    assert {turn["session"] for turn in told["turns"]} == {"s3", "s1"}
    assert b"tenant" not in orjson.dumps(told)


@pytest.mark.parametrize("query", ["limit=x", "limit=-1", "limit=", "offset=%00", "limit=²", "&&&"])
def test_a_query_that_makes_no_sense_is_taken_as_none(query: str) -> None:
    live_, _ = watched(3)
    assert len(ids(live_.answer(query, None))) == 3
