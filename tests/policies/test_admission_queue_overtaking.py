from __future__ import annotations

import random

from policies.admission_queue import Overtaking


def test_a_turn_is_due_when_those_before_it_could_have_been_let_in() -> None:
    line = Overtaking()
    for name in "abc":
        line.enter(name)
    assert line.due_at("a", 0.0) == 0.0
    assert line.due_at("c", 0.0) is None
    for at in (5.0, 9.0):  # others overtake
        line.enter(f"x{at}")
        line.leave(f"x{at}")
        line.admitted(at)
    assert line.due_at("a", 0.0) == 0.0
    assert line.due_at("b", 0.0) == 5.0
    assert line.due_at("c", 0.0) == 9.0


def test_a_place_that_was_kept_is_the_same_place() -> None:
    line = Overtaking()
    for name in "ab":
        line.enter(name)
    place = line.leave("b")
    line.leave("a")
    line.admitted(3.0)
    line.enter("c")
    line.enter("b2", place)
    assert line.due_at("b2", 1.0) == 3.0


def test_what_is_remembered_is_bounded_and_agrees_with_all_of_it() -> None:
    rng, line = random.Random(1), Overtaking()
    places: dict[str, int] = {}
    times: list[float] = []
    for number in range(2_000):
        if rng.random() < 0.5 or not places:
            places[str(number)] = len(times) + len(places)
            line.enter(str(number))
        else:
            name = rng.choice(sorted(places))
            assert line.leave(name) == places.pop(name)
            times.append(float(number))
            line.admitted(float(number))
        for name, place in places.items():
            expected = None if place > len(times) else max(-1.0, times[place - 1] if place else -1.0)
            assert line.due_at(name, -1.0) == expected
