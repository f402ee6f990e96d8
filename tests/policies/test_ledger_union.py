"""Laws of the union of chains: for each way to hold one it equals sets of blocks counted one by one."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from policies.ledger import BOTH, CACHED, RESIDENT, Union, Way
from tests.policies.turns_of import chain

PARTS = st.lists(st.tuples(st.sampled_from("xyz"), st.integers(1, 4)), max_size=4)
STEPS = st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from([CACHED, RESIDENT]), PARTS), max_size=40)


def counted(held: dict[tuple[str, Way], tuple[int, ...]], way: Way) -> Counter[int]:
    return Counter(block for (_, its_way), blocks in held.items() if its_way == way for block in blocks)


@given(STEPS, PARTS)
@settings(max_examples=300)
def test_the_union_equals_blocks_counted_one_by_one(
    steps: list[tuple[str, Way, list[tuple[str, int]]]], wanted: list[tuple[str, int]]
) -> None:
    union, held = Union(), dict[tuple[str, Way], tuple[int, ...]]()
    for name, way, parts in steps:
        blocks = chain(*parts)
        other_way = RESIDENT if way is CACHED else CACHED
        old = held.get((name, way), ())
        is_both = old == held.get((name, other_way), ())
        before = set(counted(held, CACHED)), set(counted(held, RESIDENT))
        grown = union.move(BOTH if is_both else way, old, blocks)
        held[name, way] = blocks
        if is_both:
            held[name, other_way] = blocks
        new = tuple(len(set(blocks) - there) for there in before)
        assert grown == tuple(n if is_both or moved else 0 for n, moved in zip(new, way, strict=True))
        cached, resident = counted(held, CACHED), counted(held, RESIDENT)
        assert (union.cached_blocks, union.resident_blocks) == (len(cached), len(resident))
        if is_both or way is RESIDENT:
            assert union.private(blocks) == sum(resident[block] == 1 for block in blocks)
    other = chain(*wanted)
    assert union.cached(other) == len(set(other) & set(counted(held, CACHED)))
    assert union.resident(other) == len(set(other) & set(counted(held, RESIDENT)))
    for (_, way), blocks in held.items():
        union.move(way, blocks, ())
    assert union.cached_blocks == union.resident_blocks == union.cached(other) == union.resident(other) == 0
