from __future__ import annotations

from policies.placement import Option, by_prefix


def option(
    name: str, missing: float = 0, queued: float = 0, running: int = 0, free: int = 8, home: bool = False
) -> Option:
    return Option(name, missing, queued, running, free, home)


def test_the_replica_that_holds_the_prefix_wins_at_equal_load() -> None:
    assert by_prefix([option("a", missing=9_000), option("b", missing=200)], "f", 0).replica_id == "b"


def test_a_long_prefill_queue_outweighs_a_short_prefix() -> None:
    warm, idle = option("a", missing=100, queued=20_000), option("b", missing=4_000)
    assert by_prefix([warm, idle], "f", 0).replica_id == "b"


def test_home_wins_between_equals() -> None:
    assert by_prefix([option("a"), option("b", home=True), option("c")], "f", 0).replica_id == "b"


def test_a_full_replica_is_the_last_choice() -> None:
    assert by_prefix([option("a", free=0), option("b", missing=50_000)], "f", 0).replica_id == "b"


def test_cold_families_spread_and_every_gateway_agrees_where() -> None:
    replicas = [option(name) for name in "abcd"]
    homes = [by_prefix(replicas, f"family-{n}", n).replica_id for n in range(200)]
    assert homes == [by_prefix(replicas[::-1], f"family-{n}", 0).replica_id for n in range(200)]
    assert all(homes.count(name) > 25 for name in "abcd")
