"""Laws of the map from stored answers to replicas."""

from __future__ import annotations

from gateway.request.stored_responses import Home, Homes

HERE = Home("e1", "resp_of_engine")


def test_an_answer_is_known_to_its_own_tenant_only() -> None:
    homes = Homes()
    homes.remember("a", "resp_1", HERE)
    assert homes.home("a", "resp_1") == HERE
    assert homes.home("b", "resp_1") is None
    assert homes.is_anothers("b", "resp_1")
    assert not homes.is_anothers("b", "resp_2")


def test_the_oldest_answer_is_forgotten_first() -> None:
    homes = Homes(max_kept=2)
    for n in range(3):
        homes.remember("a", f"resp_{n}", HERE)
    assert [homes.home("a", f"resp_{n}") for n in range(3)] == [None, HERE, HERE]
