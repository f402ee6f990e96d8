"""Laws of the wait that a line of turns foretells."""

from __future__ import annotations

from policies.held import Bucket
from policies.line import Line
from tests.policies.turns_of import turn

BUCKET = Bucket(0, False, "t", "f", 1, None)


def queue(*names: str) -> Line:
    line = Line(lambda bucket: 0.0)
    for name in names:
        line.put(turn(name), BUCKET, 0.0, None)
    return line


def test_a_wait_is_as_many_admissions_as_wait_before_it() -> None:
    line = queue(*"abcdefgh")
    for second, name in enumerate("abcdef", 1):
        line.take(name)
        line.admitted(100.0 * second)
    assert line.expected_wait_s(700.0) == 3 * (700.0 - 100.0) / 6
    assert line.expected_wait_s(700.0, "g") == (700.0 - 100.0) / 6


def test_a_line_that_its_clients_left_says_nothing_about_later_waits() -> None:
    line = queue(*"abcdefgh")
    for second, name in enumerate("abcdef", 1):
        line.take(name)
        line.admitted(100.0 * second)
    for name in "gh":
        line.take(name)  # and is not let in
    assert line.expected_wait_s(5_000.0) == 0.0
