"""Laws of what an operator is told about sessions and families."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gateway.exchange import Exchange, Recognition, Timings
from gateway.sessions.session_table import Sessions
from policies.types import TurnKind, Usage
from tests.gateway.observed import exchange


def asks(id_: str, who: Recognition, **changes: Any) -> Exchange:
    """One request that has arrived and waits."""
    return exchange(id=id_, recognition=who, timings=Timings(10.0, 10.0), **changes)


def turn(session: str, index: int = 0, kind: TurnKind = TurnKind.AGENT, parent: str | None = None) -> Recognition:
    return Recognition(session, "f1", parent, index, kind, "chain", 0.9, False, (), 0)


def test_a_session_holds_its_turns_and_its_side_requests_apart() -> None:
    sessions = Sessions(10, 100)
    for n, who in enumerate([turn("s1", kind=TurnKind.SIDE), turn("s1", 0), turn("s1", 1)]):
        request = asks(f"x{n}", who)
        sessions.recognised(request, 10.0 + n)
        request.reply.usage = Usage(100 * n)
        sessions.finished(request, True, 10.5 + n)
    (seen,) = sessions.of_tenant("a")
    assert (seen.num_turns, seen.num_side_requests, seen.who.kind, seen.state) == (2, 1, "agent", "idle")
    assert (seen.prompt_tokens, seen.replica, seen.last_at) == (200, "a", 12.5)


def test_a_retry_is_no_turn() -> None:
    sessions = Sessions(10, 100)
    for id_, who in (("x1", turn("s1")), ("x2", replace(turn("s1"), is_retry=True))):
        sessions.recognised(asks(id_, who), 10.0)
    assert [seen.num_turns for seen in sessions.of_tenant("a")] == [1]


def test_the_state_follows_the_request() -> None:
    sessions = Sessions(10, 100)
    request = asks("x1", turn("s1"))

    def state() -> str:
        return sessions.of_tenant("a")[0].state

    sessions.recognised(request, 10.0)
    assert state() == "waiting"
    request.timings.leased_at = 10.5
    assert state() == "running"
    sessions.finished(request, True, 11.0)
    assert state() == "idle"


def test_sessions_are_found_by_tenant() -> None:
    sessions = Sessions(10, 100)
    sessions.recognised(asks("x1", turn("s1"), tenant="b"), 10.0)
    assert sessions.of_tenant("a") == []


def test_memory_is_bounded_in_number_and_age() -> None:
    sessions = Sessions(2, 100)
    for n in range(3):
        sessions.recognised(asks(f"x{n}", turn(f"s{n}")), 10.0 + n)
    assert [seen.who.session_id for seen in sessions.of_tenant("a")] == ["s1", "s2"]
    sessions.recognised(asks("x3", turn("s3")), 111.5)
    assert [seen.who.session_id for seen in sessions.of_tenant("a")] == ["s2", "s3"]
    sessions.finished(asks("x0", turn("s0")), True, 112.0)


def test_a_page_has_those_with_a_request_first_and_forgets_with_the_session() -> None:
    sessions = Sessions(2, 1e9)
    requests = [asks(f"x{number}", turn(f"s{number}")) for number in range(3)]
    for number, request in enumerate(requests):
        sessions.recognised(request, 10.0 + number)
    sessions.finished(requests[2], True, 20.0)
    page, num = sessions.page(None, 0, 10)
    assert ([seen.who.session_id for seen in page], num) == (["s1", "s2"], 2)
    sessions.finished(requests[0], True, 21.0)
    sessions.finished(requests[1], True, 22.0)
    assert [seen.who.session_id for seen in sessions.page(None, 0, 10)[0]] == ["s1", "s2"]
    assert [seen.who.session_id for seen in sessions.page("a", 1, 1)[0]] == ["s2"]
    assert sessions.page("another", 0, 10) == ([], 0)
