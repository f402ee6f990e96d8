"""Laws of the session table: the content of an entry, and when it is forgotten."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gateway.exchange import Exchange, Recognition, Timings
from gateway.sessions.session_table import ENDED_KEPT_S, SessionTable
from policies.types import TurnKind, Usage
from tests.telemetry.observed import exchange


def request_of(id_: str, recognition: Recognition, **changes: Any) -> Exchange:
    """One request that has arrived and waits."""
    return exchange(id=id_, recognition=recognition, timings=Timings(10.0, 10.0), **changes)


def turn(session: str, index: int = 0, kind: TurnKind = TurnKind.AGENT, parent: str | None = None) -> Recognition:
    return Recognition(session, "f1", parent, index, kind, "chain", 0.9, False, (), 0)


def test_a_session_holds_its_turns_and_its_side_requests_apart() -> None:
    sessions = SessionTable(10, 100)
    for n, recognition in enumerate([turn("s1", kind=TurnKind.SIDE), turn("s1", 0), turn("s1", 1)]):
        request = request_of(f"x{n}", recognition)
        sessions.open_request(request, 10.0 + n)
        request.reply.usage = Usage(100 * n)
        sessions.close_request(request, True, 10.5 + n)
    (entry,) = sessions.of_tenant("a")
    assert (entry.num_turns, entry.num_side_requests) == (2, 1)
    assert (entry.recognition.kind, entry.state) == ("agent", "idle")
    assert (entry.prompt_tokens, entry.replica, entry.last_at) == (200, "a", 12.5)


def test_a_retry_is_no_turn() -> None:
    sessions = SessionTable(10, 100)
    for id_, recognition in (("x1", turn("s1")), ("x2", replace(turn("s1"), is_retry=True))):
        sessions.open_request(request_of(id_, recognition), 10.0)
    assert [entry.num_turns for entry in sessions.of_tenant("a")] == [1]


def test_the_state_follows_the_request() -> None:
    sessions = SessionTable(10, 100)
    request = request_of("x1", turn("s1"))

    def state() -> str:
        return sessions.of_tenant("a")[0].state

    sessions.open_request(request, 10.0)
    assert state() == "waiting"
    request.timings.leased_at = 10.5
    assert state() == "running"
    sessions.close_request(request, True, 11.0)
    assert state() == "idle"


def test_sessions_are_found_by_tenant() -> None:
    sessions = SessionTable(10, 100)
    sessions.open_request(request_of("x1", turn("s1"), tenant="b"), 10.0)
    assert sessions.of_tenant("a") == []


class Forgotten:
    """Keeps the ids that the table has forgotten."""

    def __init__(self) -> None:
        self.ids: list[tuple[str, str]] = []

    def forget_session(self, tenant: str, session_id: str) -> None:
        self.ids.append((tenant, session_id))


def serve(table: SessionTable, session: str, at: float) -> None:
    request = request_of(f"{session} at {at}", turn(session))
    table.open_request(request, at)
    table.close_request(request, True, at)


def ids(table: SessionTable) -> list[str]:
    return [entry.id for entry in table.of_tenant("a")]


def test_memory_is_bounded_in_number_and_age_and_all_parts_forget_with_the_table() -> None:
    own, shared = Forgotten(), Forgotten()
    table = SessionTable(2, 100, [own], [shared])
    for number in range(3):
        serve(table, f"s{number}", 10.0 + number)
    assert ids(table) == ["s1", "s2"]
    serve(table, "s3", 111.5)
    assert ids(table) == ["s2", "s3"]
    assert own.ids == shared.ids == [("a", "s0"), ("a", "s1")]
    assert {span.session_id for span in table.timeline.of({"s0", "s1", "s2", "s3"}, 0.0)} == {"s2", "s3"}


def test_a_session_with_a_request_in_the_gateway_is_not_forgotten() -> None:
    table = SessionTable(2, 100)
    open_ = request_of("open", turn("busy"))
    table.open_request(open_, 10.0)
    for number in range(4):
        serve(table, f"s{number}", 500.0 + number)
    assert ids(table) == ["busy", "s3"]
    table.close_request(open_, True, 505.0)
    serve(table, "s4", 506.0)
    assert ids(table) == ["busy", "s4"]
    serve(table, "s5", 605.5)
    assert ids(table) == ["s4", "s5"]


def test_a_session_that_ended_is_forgotten_soon_after_unless_it_goes_on() -> None:
    table = SessionTable(10, 1e9)
    for session in ("over", "goes on", "other"):
        serve(table, session, 10.0)
    table.end_session("over", 10.0)
    table.end_session("goes on", 10.0)
    serve(table, "goes on", 20.0)
    serve(table, "other", 10.0 + ENDED_KEPT_S)
    assert ids(table) == ["goes on", "other"]


def test_sessions_of_another_table_displace_none_of_this_one() -> None:
    shared, identity = Forgotten(), Forgotten()
    table = SessionTable(10, 1e9, [Forgotten()], [shared])
    lines = table.beside(1, 1e9, identity)
    for number in range(3):
        serve(table, f"s{number}", 10.0)
        serve(lines, f"line{number}", 10.0)
    assert len(ids(table)) == 3
    assert identity.ids == shared.ids == [("a", "line0"), ("a", "line1")]


def test_a_page_has_the_sessions_with_a_request_first() -> None:
    table = SessionTable(10, 1e9)
    requests = [request_of(f"x{number}", turn(f"s{number}")) for number in range(3)]
    for number, request in enumerate(requests):
        table.open_request(request, 10.0 + number)
    table.close_request(requests[0], True, 20.0)
    page, num = table.page(None, 0, 10)
    assert ([entry.id for entry in page], num) == (["s1", "s2", "s0"], 3)
    for request in requests[1:]:
        table.close_request(request, True, 21.0)
    assert [entry.id for entry in table.page(None, 0, 10)[0]] == ["s2", "s1", "s0"]
    assert [entry.id for entry in table.page("a", 1, 1)[0]] == ["s1"]
    assert table.page("another", 0, 10) == ([], 0)


def test_names_stay_until_other_ones_come_and_are_forgotten_with_the_session() -> None:
    table = SessionTable(1, 1e9)
    named = replace(turn("s"), agent="opencode", client_session="ses_1", client_hash="h")
    for number, recognition in enumerate((named, turn("s", index=1))):
        exchange = request_of(f"x{number}", recognition)
        table.open_request(exchange, 10.0)
        table.close_request(exchange, True, 11.0)
    (entry,) = table.of_tenant("a")
    assert (entry.agent, entry.client_session, entry.client_hash) == ("opencode", "ses_1", "h")
    serve(table, "another", 12.0)
    assert (entry.client_session, entry.client_hash, entry.recognition.client_session) == (None, None, None)
