"""Laws of the index of what a KV pool holds."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.engines.kv_events import BlockIndex, Cleared, Hash, Losses, Removed, Stored

SIZE = 128


def store(
    index: BlockIndex,
    hashes: Sequence[Hash],
    parent: Hash | None = None,
    at: float = 0.0,
    session_id: str | None = None,
) -> Losses:
    return index.apply([Stored(list(hashes), parent, block_size=SIZE, session_id=session_id)], at)


def remove(index: BlockIndex, *hashes: Hash, at: float = 0.0, medium: str | None = None) -> Losses:
    return index.apply([Removed(list(hashes), medium)], at)


def test_a_session_keeps_the_prefix_before_what_was_evicted() -> None:
    index = BlockIndex()
    store(index, [1, 2, 3, 4], session_id="s")
    assert remove(index, 4, 3).kept_tokens == {"s": 2 * SIZE}
    assert index.cached_tokens("s") == 2 * SIZE


def test_a_session_of_which_nothing_is_left_is_reported_as_lost() -> None:
    index = BlockIndex()
    store(index, [1], session_id="s")
    assert remove(index, 1).kept_tokens == {"s": 0}
    assert index.cached_tokens("s") == len(index) == 0


def test_a_session_is_named_once_when_it_is_new() -> None:
    index = BlockIndex()
    assert store(index, [1, 2], session_id="s").kept_tokens == {"s": 2 * SIZE}
    assert store(index, [3], parent=2, session_id="s").kept_tokens == {}


def test_a_session_that_computes_again_what_it_lost_has_it() -> None:
    index = BlockIndex()
    store(index, [1, 2, 3], session_id="s")
    remove(index, 3, 2, 1)
    assert store(index, [1, 2], session_id="s").kept_tokens == {"s": 2 * SIZE}
    assert store(index, [3], parent=2, session_id="s").kept_tokens == {"s": 3 * SIZE}
    assert store(index, [4], parent=3, session_id="s").kept_tokens == {}


def test_siblings_lose_their_own_tails_only() -> None:
    index = BlockIndex()
    store(index, [1, 2], session_id="a")
    store(index, [3, 4], parent=2, session_id="a")
    store(index, [5], parent=2, session_id="b")
    assert remove(index, 5).kept_tokens == {"b": 2 * SIZE}
    assert index.cached_tokens("a") == 4 * SIZE


def test_a_shared_prefix_that_goes_is_lost_to_all_that_ended_there() -> None:
    index = BlockIndex()
    store(index, [1, 2], session_id="a")
    store(index, [3], parent=2, session_id="b")
    remove(index, 3)
    assert remove(index, 2).kept_tokens == {"a": SIZE, "b": SIZE}


def test_growth_in_decode_moves_the_end_along() -> None:
    index = BlockIndex()
    store(index, [1], session_id="s")
    store(index, [2], parent=1, session_id="s")
    assert index.cached_tokens("s") == 2 * SIZE


def test_a_short_side_request_under_the_same_name_does_not_hide_the_long_chain() -> None:
    index = BlockIndex()
    store(index, [1, 2, 3], session_id="s")
    store(index, [9], session_id="s")
    assert index.cached_tokens("s") == 3 * SIZE


def test_the_loss_of_a_second_copy_is_no_loss() -> None:
    """vLLM does not deduplicate what siblings compute side by side; a prefix cannot go before its continuation."""
    index = BlockIndex()
    store(index, [1, 2], session_id="s")
    assert remove(index, 1).kept_tokens == {}
    assert index.cached_tokens("s") == 2 * SIZE


def test_a_prefix_that_went_first_goes_with_its_continuation() -> None:
    index = BlockIndex()
    store(index, [1, 2], session_id="s")
    remove(index, 1)
    assert remove(index, 2) == Losses(2, {"s": 0})


def test_a_block_in_a_slower_tier_is_still_there() -> None:
    index = BlockIndex()
    store(index, [1], session_id="s")
    index.apply([Stored([1], medium="CPU")], 0.0)  # a tier that names its blocks without describing them
    assert remove(index, 1).num_blocks == 0
    assert remove(index, 1, medium="CPU") == Losses(1, {"s": 0})


def test_a_reset_clears_everything_and_what_follows_counts() -> None:
    index = BlockIndex()
    store(index, [1, 2], session_id="s")
    losses = index.apply([Cleared(), Stored([5], block_size=SIZE, session_id="t")], 1.0)
    assert losses.is_cleared
    assert (index.cached_tokens("s"), index.cached_tokens("t")) == (0, SIZE)


def test_a_chain_whose_beginning_nobody_heard_of_is_not_measured() -> None:
    index = BlockIndex()
    store(index, [5], parent=4, session_id="s")
    assert index.cached_tokens("s") == 0
    assert remove(index, 5) == Losses(1)
    assert remove(index, 6) == Losses(1)


def test_further_layer_groups_do_not_count_twice() -> None:
    index = BlockIndex()
    store(index, [1], session_id="s")
    index.apply([Stored([1], block_size=SIZE, group_idx=1), Removed([1], group_idx=1)], 0.0)
    assert index.cached_tokens("s") == SIZE


def test_the_horizon_is_the_idle_time_of_evicted_chains() -> None:
    index = BlockIndex()
    assert index.horizon_s() is None
    store(index, [1, 2], at=10.0)
    store(index, [3], parent=2, at=30.0)  # uses its whole prefix
    remove(index, 3, 2, 1, at=42.0)
    assert index.horizon_s() == pytest.approx(12.0)


def test_each_chain_counts_in_the_horizon_also_of_those_that_came_at_once() -> None:
    """SGLang publishes what several requests stored with one time."""
    index = BlockIndex()
    for chain in range(10):
        store(index, [10 * chain + 1, 10 * chain + 2], at=10.0)
    store(index, [101, 102], at=41.0)
    for chain in range(11):
        remove(index, 10 * chain + 2, 10 * chain + 1, at=42.0)
    assert index.horizon_s() == pytest.approx(32.0)


def test_a_trickle_of_blocks_is_reported_in_steps() -> None:
    index = BlockIndex()
    index.apply([Stored(list(range(1, 65)), block_size=16, session_id="s")], 0.0)
    losses = [remove(index, block).kept_tokens for block in range(64, 0, -1)]
    assert [kept["s"] for kept in losses if kept] == [*range(64 * 16 - 128, 0, -128), 0]


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 6)), max_size=30), st.randoms(use_true_random=False))
def test_never_more_is_claimed_of_a_session_than_the_present_head_of_its_chain(
    turns: list[tuple[int, int]], random: Random
) -> None:
    """Against a model that keeps whole chains, with eviction of leaves in any order."""
    index, present, chains = BlockIndex(), set[tuple[int, ...]](), dict[int, tuple[int, ...]]()
    for session, length in turns:
        chain = tuple(range(3)) + tuple(session * 100 + step for step in range(length))
        prefixes = [chain[: end + 1] for end in range(len(chain))]
        missing = [p for p in prefixes if p not in present]
        if missing:
            parent = missing[0][:-1]
            store(
                index, [hash_of(p) for p in missing], hash_of(parent) if parent else None, session_id=str(session)
            )
            present.update(missing)
            chains[session] = chain
        leaves = [p for p in present if not any(q[:-1] == p for q in present)]
        for leaf in random.sample(sorted(leaves), random.randint(0, len(leaves))):
            remove(index, hash_of(leaf))
            present.discard(leaf)
    for session, chain in chains.items():
        head = sum(chain[: end + 1] in present for end in range(len(chain)))
        assert index.cached_tokens(str(session)) <= head * SIZE
        if index.cached_tokens(str(session)) < head * SIZE:  # others recomputed a part that it shares
            assert head <= 3
    assert len(index) == len(present)


def hash_of(prefix: tuple[int, ...]) -> bytes:
    return repr(prefix).encode()
