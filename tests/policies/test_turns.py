from __future__ import annotations

from policies.turns import LEAST_S, MOST_S, UNKNOWN_S, Turns
from policies.types import Family, IdleTimes, Session

SESSION = Session("s", "f", "t", num_begun=1)
lease_s = Turns().lease_s


def test_a_family_without_a_past_gets_the_default() -> None:
    assert lease_s(SESSION, Family("f")) == UNKNOWN_S


def test_a_lease_covers_nearly_all_gaps_that_the_family_showed() -> None:
    gaps_s = [1.0] * 19 + [4.0]
    assert max(gaps_s) < lease_s(SESSION, Family("f", gaps_s={"": IdleTimes(gaps_s)})) < 10


def test_a_lease_is_bounded_on_both_sides() -> None:
    assert lease_s(SESSION, Family("f", gaps_s={"": IdleTimes([0.001] * 10)})) == LEAST_S
    assert lease_s(SESSION, Family("f", gaps_s={"": IdleTimes([3_600.0] * 10)})) == MOST_S


def test_a_session_that_is_not_expected_back_gets_none() -> None:
    family = Family("f", ended=[0, 50], continued=[0, 0], gaps_s={"": IdleTimes([1.0] * 10)})
    assert lease_s(SESSION, family) == 0.0


def test_tools_of_the_gateway_are_waited_for_however_likely_an_end_is() -> None:
    family = Family("f", ended=[0, 50], continued=[0, 0])
    session = Session("s", "f", "t", num_begun=1, remaining_turns=0, tool_s=8.0)
    assert 8.0 < lease_s(session, family) < 16.0


def test_idle_times_after_the_same_tools_count_where_there_are_enough() -> None:
    gaps_s = {
        "": IdleTimes([1.0] * 20 + [30.0] * 20),
        "bash": IdleTimes([1.0] * 20),
        "build": IdleTimes([30.0] * 20),
    }
    family = Family("f", gaps_s=gaps_s)
    leases_s = [lease_s(Session("s", "f", "t", num_begun=1, tools=tools), family) for tools in ("bash", "build")]
    assert leases_s[0] < 2 < 30 < leases_s[1]


def test_an_answer_without_tool_calls_is_likely_the_last_of_an_agent_that_calls_tools() -> None:
    family = Family("f", gaps_s={"": IdleTimes([1.0] * 10)}, calls_tools=True, num_closed=5)
    assert lease_s(Session("s", "f", "t", num_begun=1), family) == 0.0
    assert lease_s(Session("s", "f", "t", num_begun=1, tools="bash"), family) > 0.0
