from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from policies.ledger import Ledger, shared_length
from tests.policies.turns_of import chain


def test_a_shared_prefix_counts_once_however_many_hold_it() -> None:
    ledger = Ledger()
    for name in ("a", "b", "c"):
        ledger.hold(name, chain(("shared", 100), (name, 5)))
    assert ledger.resident_blocks == 115
    assert ledger.private_blocks("a") == 5
    assert ledger.new_blocks(chain(("shared", 100), ("d", 7))) == 7


def test_growth_counts_only_what_was_added() -> None:
    ledger = Ledger()
    ledger.hold("a", chain(("s", 10)))
    ledger.hold("a", chain(("s", 10), ("more", 3)))
    assert ledger.resident_blocks == 13


def test_released_blocks_stay_expected_until_the_pool_needs_the_room() -> None:
    ledger = Ledger()
    ledger.hold("a", chain(("a", 10)))
    ledger.hold("b", chain(("b", 10)))
    ledger.release("a")
    ledger.release("b")
    ledger.evict(15)
    assert (ledger.expected_blocks(chain(("a", 10))), ledger.expected_blocks(chain(("b", 10)))) == (0, 10)
    assert ledger.resident_blocks == 0


def test_a_compacted_session_gives_back_what_it_dropped() -> None:
    ledger = Ledger()
    ledger.hold("a", chain(("system", 10), ("history", 50)))
    ledger.hold("a", chain(("system", 10), ("summary", 5)))
    assert ledger.resident_blocks == 15


NAMES = st.sampled_from("abcd")
PARTS = st.lists(st.tuples(st.sampled_from("xyz"), st.integers(1, 4)), max_size=4)


@given(st.lists(st.tuples(st.sampled_from(["hold", "release", "forget", "evict"]), NAMES, PARTS), max_size=40))
@settings(max_examples=300)
def test_the_ledger_equals_sets_counted_from_scratch(steps: list[tuple[str, str, list[tuple[str, int]]]]) -> None:
    ledger = Ledger()
    held: dict[str, tuple[int, ...]] = {}
    released: dict[str, tuple[int, ...]] = {}
    for action, name, parts in steps:
        blocks = chain(*parts)
        if action == "hold":
            ledger.hold(name, blocks)
            held[name] = blocks
            released.pop(name, None)
        elif action == "release" and name in held:
            ledger.release(name)
            released[name] = held.pop(name)
        elif action == "forget":
            ledger.forget(name)
            held.pop(name, None)
            released.pop(name, None)
        elif action == "evict":
            while released and len(set().union(*held.values(), *released.values())) > 10:
                del released[next(iter(released))]
            ledger.evict(10)
        union = set().union(*held.values())
        present = set().union(union, *released.values())
        assert ledger.resident_blocks == len(union)
        assert ledger.num_residents == len(held)
        assert ledger.new_blocks(blocks) == len(set(blocks) - union)
        assert ledger.expected_blocks(blocks) == len(set(blocks) & present)


@given(PARTS, PARTS)
def test_the_shared_length_of_two_chains_is_their_common_prefix(
    one: list[tuple[str, int]], other: list[tuple[str, int]]
) -> None:
    left, right = chain(*one), chain(*other)
    expected = 0
    while expected < min(len(left), len(right)) and left[expected] == right[expected]:
        expected += 1
    assert shared_length(left, right) == expected
