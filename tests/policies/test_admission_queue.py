"""Laws of the wait that a line of turns foretells."""

from __future__ import annotations

from dataclasses import replace

from policies.admission_queue import AdmissionQueue, Bucket
from tests.policies.turns_of import turn

BUCKET = Bucket(0, False, "t", "f", 1, None)
FLOW = (0, "t")


def queue(*names: str) -> AdmissionQueue:
    line = AdmissionQueue(lambda _turn, bucket: 0.0)
    for name in names:
        line.put(turn(name), BUCKET, 0.0, None, 0.0)
    return line


def test_a_wait_is_as_many_admissions_as_wait_before_it() -> None:
    line = queue(*"abcdefgh")
    for second, name in enumerate("abcdef", 1):
        line.remove(name)
        line.admitted(100.0 * second)
    assert line.expected_wait_s(700.0, FLOW) == 3 * (700.0 - 100.0) / 6
    assert line.expected_wait_s(700.0, FLOW, "g") == (700.0 - 100.0) / 6


def test_a_line_that_its_clients_left_says_nothing_about_later_waits() -> None:
    line = queue(*"abcdefgh")
    for second, name in enumerate("abcdef", 1):
        line.remove(name)
        line.admitted(100.0 * second)
    for name in "gh":
        line.remove(name)  # and is not admitted
    assert line.expected_wait_s(5_000.0, FLOW) == 0.0


def flood(num: int) -> AdmissionQueue:
    """A line with many turns of one tenant, which lets one go each second."""
    line = queue(*(f"t{number}" for number in range(num)))
    for second in range(1, 11):
        line.remove(f"t{second - 1}")
        line.admitted(float(second))
    return line


def test_who_comes_beside_a_flood_waits_for_its_share_and_not_for_all_of_it() -> None:
    line = flood(1_010)
    assert line.expected_wait_s(11.0, FLOW) == 1_001
    assert line.expected_wait_s(11.0, (0, "other")) == 2
    assert line.expected_wait_s(11.0, (1, "vip")) == 1
    assert line.expected_wait_s(11.0, (-1, "batch")) == 1_001
    for name in "abc":
        other = replace(turn(name), tenant="other", weight=0.1)
        line.put(other, BUCKET._replace(tenant="other"), 11.0, None, 11.0)
    assert line.expected_wait_s(11.0, (0, "other"), "b") == 1 + 20 + 1


def test_as_soon_as_anybody_waits_too_long_the_next_tenant_has_the_right_of_way() -> None:
    """Else a turn behind residents that never leave would wait for ever: no other is admitted before it."""
    line = flood(30)
    line.put(replace(turn("late"), tenant="late"), BUCKET._replace(tenant="late"), 50.0, None, 50.0)
    line.shares.began(turn("served"), 1_000.0, 50.0)
    assert line.candidates(list(line.held.flows), 8, 60.0, 59.0) == ([line.held["late"], line.held["t10"]], False)
    assert line.overdue_at(60.0, 59.0) == 60.0
    assert line.candidates(list(line.held.flows), 8, 60.0, 60.0) == ([line.held["late"]], True)
