"""Sessions that come for the first time with a history: the gateway was restarted, or another one served them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from policies.fleet import MOST_EARLIER
from policies.types import BLOCK_CHARS, Arrived, Ending, FirstByte, History, Left, SessionEnded, Turn, Usage
from tests.policies.test_scheduler import Fleet, ids
from tests.policies.turns_of import TOKENS_PER_BLOCK, turn


def told(one: Turn, num_turns: int = 5, known_blocks: int | None = None) -> Turn:
    """The turn, with a history that ends a block before it."""
    known = len(one.blocks) - 1 if known_blocks is None else known_blocks
    return replace(one, history=History(num_turns, 2 * BLOCK_CHARS, known * BLOCK_CHARS))


def answer(fleet: Fleet, one: Turn, cached_blocks: int | None, at: float) -> list[str]:
    """The turn's answer, with what the engine says of the cache; its session ends. What may go then."""
    fleet.tell(FirstByte(one.id), at)
    cached_tokens = None if cached_blocks is None else cached_blocks * TOKENS_PER_BLOCK
    usage = Usage(len(one.blocks) * TOKENS_PER_BLOCK, cached_tokens, 10)
    gone = fleet.tell(Left(one.id, Ending.COMPLETE, usage), at)
    return ids(gone + fleet.tell(SessionEnded(one.session_id), at))


@pytest.mark.parametrize(
    ("change", "is_first"),
    [
        pytest.param({}, True, id="a history of its own"),
        pytest.param({"history": None}, False, id="no history"),
        pytest.param({"history": History(5, 512, 10 * 512)}, False, id="one that another session has, too"),
        pytest.param({"history": History(5, 512, 512)}, False, id="of which the pool knows every block"),
        pytest.param({"parent_id": "runs"}, False, id="its parent's"),
    ],
)
def test_a_session_with_a_history_of_its_own_goes_before_new_ones(
    change: dict[str, object], is_first: bool
) -> None:
    fleet = Fleet()
    runs = turn("runs", ("shared", 10), ("r", 70), remaining=0)
    assert fleet.arrive(runs)
    fleet.arrive(turn("new", ("shared", 10), ("n", 60), at=1.0, remaining=0))
    comes = told(turn("told", ("shared", 10), ("t", 60), at=2.0, remaining=0))
    fleet.arrive(replace(comes, **change))  # type: ignore[arg-type]
    if change.get("parent_id"):  # goes before new sessions in any case, and from its first turn
        assert fleet.scheduler._fleet.sessions["told"].num_earlier == 0
        return
    assert answer(fleet, runs, None, 3.0)[:1] == (["told"] if is_first else ["new"])


def test_the_prompt_of_its_last_turn_counts_as_cached_until_its_answer_says_otherwise() -> None:
    fleet = Fleet()
    comes = told(turn("told", ("t", 40)), known_blocks=30)
    (gone,) = fleet.arrive(comes)
    assert gone.expected_cached_tokens == 30 * TOKENS_PER_BLOCK  # type: ignore[union-attr]


def test_where_several_replicas_may_have_its_cache_none_counts_as_having_it() -> None:
    fleet = Fleet(replicas=2)
    (gone,) = fleet.arrive(told(turn("told", ("t", 40))))
    assert gone.expected_cached_tokens == 0  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("cached_blocks", "is_believed"),
    [pytest.param(1, False, id="lost"), pytest.param(29, True, id="kept"), pytest.param(None, True, id="unsaid")],
)
def test_a_family_is_believed_until_some_of_its_histories_were_not_cached(
    cached_blocks: int | None, is_believed: bool
) -> None:
    fleet = Fleet(blocks=1_000)
    for number in range(4):
        one = told(turn(f"told{number}", (f"t{number}", 30), at=float(number)))
        fleet.arrive(one)
        answer(fleet, one, cached_blocks, number + 0.5)
    (gone,) = fleet.arrive(told(turn("next", ("next", 30), at=9.0)))
    assert (gone.expected_cached_tokens > 0) == is_believed  # type: ignore[union-attr]


def test_it_is_forecast_from_the_turn_that_it_has_reached() -> None:
    fleet = Fleet(blocks=10_000)
    for number in range(8):  # three turns each
        name = f"s{number}"
        for index in range(3):
            at = 10.0 * number + index
            one = turn(f"{name}.{index}", (name, 10 + index), session=name, at=at)
            fleet.arrive(one)
            fleet.tell(Left(one.id, Ending.COMPLETE), at + 0.5)
        fleet.tell(SessionEnded(name), at + 0.5)
        fleet.tell(Arrived(turn(f"tick{number}", at=at + 1, family="other")), at + 1)
    fleet.arrive(turn("new", ("n", 12), at=200.0))
    fleet.arrive(told(turn("told", ("t", 12), at=200.0), num_turns=2))
    named = fleet.scheduler.view(named=frozenset(["new", "told"])).named
    assert named["told"].expected_turns < 0.5 < 1.5 < named["new"].expected_turns


def test_a_history_teaches_its_family_how_prompts_grow_and_how_they_begin() -> None:
    fleet = Fleet(blocks=1_000)
    fleet.arrive(told(turn("one", ("shared", 2), ("one", 10)), num_turns=5))
    fleet.arrive(told(turn("two", ("shared", 2), ("two", 10)), num_turns=5))
    (family,) = fleet.scheduler._fleet.families.values()
    assert family.append_tokens == pytest.approx(2 * TOKENS_PER_BLOCK)
    assert family.private_chars == 0.0
    assert not any(family.continued)


def test_while_one_waits_that_is_not_proven_new_ones_of_other_tenants_may_go() -> None:
    for tenant, goes in (("one", []), ("other", ["small"])):
        fleet = Fleet()
        fleet.arrive(replace(turn("runs", ("runs", 50), remaining=0), tenant="third"))
        waits = told(turn("told", ("told", 70), at=1.0, remaining=0, family="one"))
        assert fleet.arrive(replace(waits, tenant="one")) == []
        small = turn("small", ("small", 5), at=2.0, remaining=0, family=tenant)
        assert ids(fleet.arrive(replace(small, tenant=tenant))) == goes


def test_a_history_of_very_many_turns_makes_no_long_statistics() -> None:
    fleet = Fleet(blocks=1_000)
    comes = told(turn("told", ("t", 30)), num_turns=1_000_000)
    fleet.arrive(comes)
    answer(fleet, comes, None, 1.0)
    fleet.arrive(turn("next", ("t", 31), session="told", at=2.0))
    (family,) = fleet.scheduler._fleet.families.values()
    assert len(family.continued) <= MOST_EARLIER + 2


@pytest.mark.parametrize("has_history", [True, False])
def test_it_needs_room_alone_since_the_gateway_before_has_paid_for_it(has_history: bool) -> None:
    """Its family grows by more than the pool has, and others wait: a new session of it would not go."""
    fleet = Fleet()
    for number in range(3):
        fleet.arrive(turn(f"runs{number}", (f"r{number}", 20), at=0.1 * number, remaining=20))
    for number in range(9):
        assert fleet.arrive(turn(f"waits{number}", (f"w{number}", 60), at=1.0, remaining=20)) == []
    comes = turn("comes", ("c", 25), at=2.0, remaining=20)
    assert bool(fleet.arrive(told(comes) if has_history else comes)) is has_history
