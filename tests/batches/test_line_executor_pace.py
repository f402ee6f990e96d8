from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.batches.line_executor import Load, Pace
from gateway.request.inprocess import LONGEST_S, OVERLOADED, PASSING, again_in_s
from policies.fleet import FleetView, ReplicaView
from policies.types import Hold

LOADS = st.builds(Load, st.integers(0, 600), st.integers(0, 600), st.integers(0, 9))


@given(st.integers(1, 300), st.lists(st.tuples(LOADS, st.integers(0, 300)), max_size=30))
def test_the_pace_is_never_below_one_nor_above_its_bound(most: int, seen: list[tuple[Load, int]]) -> None:
    pace = Pace(most)
    for load, in_flight in seen:
        pace.saw(load, in_flight)
        assert 1 <= pace.size <= most


def test_it_fills_an_idle_fleet_but_for_a_share_that_stays_free() -> None:
    pace = Pace(1_000)
    for _ in range(100):
        pace.saw(Load(slots=64, used=pace.size, waiting=0), pace.size)
    assert pace.size == 56


def test_it_falls_to_one_while_somebody_waits() -> None:
    pace = Pace(256)
    for _ in range(50):
        pace.saw(Load(slots=256, used=pace.size, waiting=0), pace.size)
    for _ in range(10):
        pace.saw(Load(slots=256, used=256, waiting=1), pace.size)
    assert pace.size == 1


def test_the_pace_does_not_grow_while_there_are_fewer_lines_than_its_size() -> None:
    pace = Pace(256)
    for _ in range(10):
        pace.saw(Load(slots=256, used=0, waiting=0), 0)
    assert pace.size == 1


def test_a_replica_that_is_full_or_ill_counts_for_nothing() -> None:
    def replica(
        name: str, *, tokens: int = 0, is_healthy: bool = True, ceiling: int | None = 1_000
    ) -> ReplicaView:
        return ReplicaView(name, is_healthy, 8, 3, tokens, ceiling, ceiling)

    replicas = [replica("a"), replica("b", tokens=950), replica("c", is_healthy=False), replica("d", ceiling=None)]
    view = FleetView(waiting={Hold.SLOT: 1, Hold.RESIDENCY: 2}, replicas=replicas)
    assert Load.of(view) == Load(slots=16, used=6, waiting=3)


def test_answers_of_requests_that_are_wrong_stand() -> None:
    assert [again_in_s(status, {}, 1, 5, 0.5) for status in (200, 400, 404, 413, 422, 501)] == [None] * 6


def test_calls_that_broke_are_tried_again_as_often_as_allowed() -> None:
    for status in PASSING:
        assert [again_in_s(status, {}, n, 3, 0.0) is None for n in (1, 2, 3, 4)] == [False, False, True, True]


def test_a_line_waits_while_all_slots_are_taken() -> None:
    for status in OVERLOADED:
        waits = [again_in_s(status, {"retry-after": "7"}, n, 1, 0.99) for n in (1, 50, 5_000)]
        assert all(wait is not None and 7 < wait <= 7 + LONGEST_S for wait in waits)


@given(st.integers(1, 40), st.floats(0, 0.999))
def test_waits_grow_and_are_spread(num_failures: int, chance: float) -> None:
    low = again_in_s(503, {}, num_failures, 1, 0.0)
    wait = again_in_s(503, {"retry-after": "soon"}, num_failures, 1, chance)
    assert low is not None
    assert wait is not None
    assert low <= wait < 2 * low
