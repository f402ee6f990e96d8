"""Laws of the views of sessions: the phase of each, why it waits, counts, pages, and tenants."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import orjson
import pytest

from gateway.api import sessions as views
from gateway.api.sessions import SessionViews, joined_families, joined_live, joined_sessions
from gateway.core.errors import Outcome
from gateway.exchange import Exchange, Recognition, Timings
from gateway.sessions.session_table import SessionEntry, SessionTable, Span, Timeline
from policies.fleet import FleetView, SessionView
from policies.types import SessionId, SessionState, TurnKind
from tests.telemetry.observed import FLEET, exchange

NOW = 100.0
WHO = Recognition("s1", "f1", "s0", 2, TurnKind.AGENT, "chain", 0.9, False, (), 0)
RESIDENT = SessionView(SessionState.RUNNING, "a", True, False, "search", 130.0, 900, 2.25)
GONE = replace(RESIDENT, is_resident=False, state=SessionState.WAITING)
SIDE = replace(WHO, kind=TurnKind.SIDE)


def asks(*times: float | None, recognition: Recognition = WHO, tools_at: list[float] | None = None) -> Exchange:
    """Recognised, leased, first byte."""
    recognised_at, leased_at, first_byte_at = [*times, None, None][:3]
    at = Timings(40.0, recognised_at, leased_at, None, first_byte_at)
    return exchange(timings=at, recognition=recognition, dispatch=None, outcome=None, tools_at=tools_at or [])


def seen(open_: Exchange | None = None) -> SessionEntry:
    return SessionEntry(
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
    ("open_", "scheduled", "phase", "since", "waits_for"),
    [
        (asks(41.0), GONE, "waiting", 41.0, "residency"),
        (asks(41.0), RESIDENT, "waiting", 41.0, "slot"),
        (asks(41.0), None, "waiting", 41.0, "residency"),
        (asks(41.0, recognition=SIDE), GONE, "waiting", 41.0, "slot"),
        (asks(41.0, 50.0), RESIDENT, "prefill", 50.0, None),
        (asks(41.0, 50.0, 55.0), RESIDENT, "decode", 55.0, None),
        (asks(41.0, 50.0, 55.0, tools_at=[60.0]), RESIDENT, "tool", 60.0, None),
        (asks(41.0, 50.0, 55.0, tools_at=[60.0, 70.0]), GONE, "waiting", 70.0, "residency"),
        (asks(41.0, 50.0, 55.0, tools_at=[60.0, 70.0]), RESIDENT, "decode", 70.0, None),
        (None, RESIDENT, "tool", 90.0, None),
        (None, replace(RESIDENT, is_expired=True), "lease", 90.0, None),
        (None, replace(RESIDENT, tools=""), "lease", 90.0, None),
        (None, GONE, "idle", 90.0, None),
        (None, None, "idle", 90.0, None),
    ],
)
def test_each_session_is_in_one_phase(
    open_: Exchange | None, scheduled: SessionView | None, phase: str, since: float, waits_for: str | None
) -> None:
    row = views.live_row(seen(open_), scheduled, NOW, shows_tenant=True)
    assert (row["phase"], row["phase_s"], row.get("waits_for")) == (phase, NOW - since, waits_for)


def test_a_row_says_who_where_and_how_far() -> None:
    assert views.live_row(seen(), RESIDENT, NOW, shows_tenant=True) == {
        "session": "s1",
        "family": "f1",
        "parent": "s0",
        "tenant": "team-a",
        "kind": "agent",
        "source": "chain",
        "confidence": 0.9,
        "state": "idle",
        "phase": "tool",
        "tool": "search",
        "phase_s": 10.0,
        "turn": 3,
        "turns": 3,
        "side_requests": 0,
        "expected_turns": 2.2,
        "replica": "a",
        "is_resident": True,
        "lease_s": 30.0,
        "prompt_tokens": 800,
        "model": "m",
        "idle_s": 10.0,
        "age_s": 90.0,
    }


def test_a_tool_is_named_while_it_runs_alone_and_as_one_visible_line() -> None:
    odd = replace(RESIDENT, tools="read\x1b[2J+grep")
    assert views.live_row(seen(), odd, NOW, shows_tenant=True)["tool"] == "read\\u001b[2J+grep"
    for scheduled in (GONE, replace(RESIDENT, is_expired=True)):
        assert "tool" not in views.live_row(seen(), scheduled, NOW, shows_tenant=True)


def test_tenants_are_named_to_the_operator_alone() -> None:
    assert "tenant" not in views.live_row(seen(), RESIDENT, NOW, shows_tenant=False)


def test_replicas_and_counts_are_those_of_the_scheduler() -> None:
    shown = views.snapshot(FLEET, [], 7, [], NOW, shows_tenant=False)
    assert shown["replicas"][0] == {
        "id": "a",
        "is_up": True,
        "slots": 8,
        "slots_used": 3,
        "residency_tokens": 600,
        "ceiling_tokens": 850,
        "capacity_tokens": 1000,
        "stated_tokens": 1100,
        "gate": "none",
        "gate_held_s": 35,
        "gate_saved_s": 412,
    }
    assert (shown["states"], shown["waiting"]) == (
        {"waiting": 0, "running": 3, "idle": 0},
        {"residency": 4, "slot": 0, "replica": 0},
    )
    assert (shown["families"], shown["total"]) == (2, 7)


def test_turns_are_told_in_seconds_before_now_running_ones_first() -> None:
    ended = Span("s1", 0, "a", 20.0, 21.0, 22.0, 30.0, (25.0, 26.5), True)
    shown = views.snapshot(FLEET, [seen(asks(41.0, 50.0))], 1, [ended], NOW, shows_tenant=False)
    assert [turn["ended_s"] for turn in shown["turns"]] == [None, 70.0]
    assert shown["turns"][1] == {
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
    assert len(views.snapshot(FLEET, [], 0, many, NOW, shows_tenant=False)["turns"]) == views.MAX_TURNS


def test_the_timeline_forgets_the_oldest_and_tells_of_the_asked_sessions_alone() -> None:
    timeline = Timeline(max_turns=2)
    entries = {name: SessionEntry(replace(WHO, session_id=name), "t", 0.0, 0.0) for name in ("s1", "s2")}
    for number, session in enumerate(["s1", "s1", "s2", "s1"]):
        timeline.ended(entries[session], exchange(recognition=entries[session].recognition), True, 10.0 + number)
    assert [span.ended_at for span in timeline.of({"s1"}, 0.0)] == [13.0]
    assert [span.ended_at for span in timeline.of({"s1", "s2"}, 13.0)] == [13.0]


def test_a_turn_that_was_not_answered_is_told_apart() -> None:
    timeline = Timeline()
    timeline.ended(SessionEntry(WHO, "t", 0.0, 0.0), exchange(outcome=Outcome.ENGINE_CUT), False, 10.0)
    assert [span.is_answered for span in timeline.of({"s1"}, 0.0)] == [False]


def watched(num_sessions: int) -> tuple[SessionViews, list[frozenset[SessionId]]]:
    """Sessions of two tenants in turn; the first one has a request in the gateway."""
    sessions, looked_up = SessionTable(100, 1e9), list[frozenset[SessionId]]()
    for number in range(num_sessions):
        known = replace(WHO, session_id=f"s{number}")
        request = exchange(id=f"x{number}", recognition=known, tenant="ab"[number % 2], timings=Timings(1.0, 1.0))
        sessions.open_request(request, 10.0 + number)
        if number:
            sessions.close_request(request, True, 10.0 + number)

    def view(counts_sessions: bool = True, named: frozenset[SessionId] = frozenset()) -> FleetView:
        looked_up.append(named)
        return FLEET

    return SessionViews(sessions, view, lambda: NOW), looked_up


def test_the_list_holds_the_rows_that_the_live_view_extends() -> None:
    watched_, looked_up = watched(4)
    rows = watched_.listed("b")
    assert [row["session"] for row in rows] == ["s1", "s3"]
    assert looked_up == []
    live = {row["session"]: row for row in watched_.live("", "b")["sessions"]}
    assert all(row.items() <= live[row["session"]].items() for row in rows)
    assert {row["tenant"] for row in watched_.listed(None)} == {"a", "b"}


def test_families_count_their_sessions_by_kind_and_state() -> None:
    sessions = SessionTable(10, 100)
    turns = [replace(WHO, session_id="s1"), replace(WHO, session_id="s2", turn_index=0)]
    for known in (*turns, replace(WHO, session_id="t", turn_index=0, kind=TurnKind.SINGLE)):
        sessions.open_request(exchange(id=known.session_id, recognition=known, timings=Timings(10.0, 10.0)), 10.0)
    views_ = SessionViews(sessions, lambda counts_sessions=True, named=frozenset(): FLEET, lambda: NOW)
    assert views_.families("a") == [
        {"family": "f1", "turns": 5, "sessions": {"agent": 2, "single": 1}, "states": {"waiting": 3}}
    ]
    assert views_.families("b") == []


def ids(shown: Any) -> list[str]:
    return [row["session"] for row in shown["sessions"]]


def test_those_with_a_request_come_first_then_the_latest_heard_of() -> None:
    live_, _ = watched(4)
    assert ids(live_.live("", None)) == ["s0", "s3", "s2", "s1"]


def test_the_scheduler_is_asked_about_one_page_only() -> None:
    live_, looked_up = watched(6)
    shown = live_.live("limit=2&offset=1", None)
    assert (ids(shown), shown["total"], shown["offset"]) == (["s5", "s4"], 6, 1)
    assert looked_up == [{"s5", "s4"}]


def test_a_tenant_sees_its_own_sessions_only() -> None:
    live_, _ = watched(4)
    shown = live_.live("", "b")
    assert (ids(shown), shown["total"]) == (["s3", "s1"], 2)
    assert {turn["session"] for turn in shown["turns"]} == {"s3", "s1"}
    assert b"tenant" not in orjson.dumps(shown)


@pytest.mark.parametrize("query", ["limit=x", "limit=-1", "limit=", "offset=%00", "limit=²", "&&&"])
def test_a_query_that_makes_no_sense_is_taken_as_none(query: str) -> None:
    live_, _ = watched(3)
    assert len(ids(live_.live(query, None))) == 3


# ---- pages of several members


def test_a_session_of_two_members_is_shown_where_it_was_last() -> None:
    pages = [{"sessions": [{"session": "s", "idle_s": idle_s, "at": n}]} for n, idle_s in enumerate((9.0, 1.0))]
    assert [row["at"] for row in joined_sessions(pages)["sessions"]] == [1]


def test_families_of_members_are_added_up_and_the_last_break_is_one() -> None:
    row = {
        "family": "f",
        "turns": 2,
        "states": {"idle": 1},
        "prefix_breaks": {"breaks": 1, "last": {"at_chars": 5}},
    }
    (joined,) = joined_families([{"families": [row]}, {"families": [row]}])["families"]
    assert (joined["turns"], joined["states"]) == (4, {"idle": 2})
    assert joined["prefix_breaks"] == {"breaks": 2, "last": {"at_chars": 5}}


def test_live_pages_of_members_share_their_replicas() -> None:
    page = watched(2)[0].live("", None)
    joined = joined_live([page, page])
    assert len(joined["sessions"]) == 4
    replica, *_ = joined["replicas"]
    assert len(joined["replicas"]) == len(page["replicas"])
    assert (replica["residency_tokens"], replica["capacity_tokens"]) == (1200, 2000)
    assert replica["stated_tokens"] == 1100
    assert (replica["gate"], replica["gate_held_s"], replica["gate_saved_s"]) == ("none", 70, 824)


# ---- names


def test_a_client_s_id_is_whole_in_its_tenant_s_rows_and_hashed_for_the_operator() -> None:
    entry = seen()
    entry.agent, entry.client_session, entry.client_hash = "opencode", "ses_1", "00ff"
    names = [
        (row["agent"], row["client_session"])
        for shows_tenant in (False, True)
        for row in (views.row(entry, NOW, shows_tenant), views.live_row(entry, RESIDENT, NOW, shows_tenant))
    ]
    assert names == [("opencode", "ses_1")] * 2 + [("opencode", "00ff")] * 2


@pytest.mark.parametrize("is_named_older", [True, False])
def test_a_session_of_two_members_keeps_the_names_that_one_of_them_knows(is_named_older: bool) -> None:
    idle_s = 3.0 if is_named_older else 1.0
    named = {"session": "s", "idle_s": idle_s, "agent": "opencode", "client_session": "ses_1"}
    pages = [{"sessions": [row]} for row in (named, {"session": "s", "idle_s": 2.0})]
    for joined in (joined_sessions(pages), joined_sessions(pages[::-1])):
        (row,) = joined["sessions"]
        assert (row["agent"], row["client_session"]) == ("opencode", "ses_1")
        assert row["idle_s"] == min(2.0, idle_s)
