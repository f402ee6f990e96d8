"""Laws of the union of chains: it equals sets of blocks counted one by one."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from policies.union import Union
from tests.policies.turns_of import chain

PARTS = st.lists(st.tuples(st.sampled_from("xyz"), st.integers(1, 4)), max_size=4)
STEPS = st.lists(st.tuples(st.sampled_from("abcd"), PARTS), max_size=40)


@given(STEPS, PARTS)
@settings(max_examples=300, deadline=None)
def test_the_union_equals_blocks_counted_one_by_one(
    steps: list[tuple[str, list[tuple[str, int]]]], asked: list[tuple[str, int]]
) -> None:
    union, held = Union(), dict[str, tuple[int, ...]]()
    for name, parts in steps:
        blocks = chain(*parts)
        union.move(held.get(name, ()), blocks)
        held[name] = blocks
        holders = Counter(block for blocks in held.values() for block in blocks)
        assert len(union) == len(holders)
        assert union.private(blocks) == sum(holders[block] == 1 for block in blocks)
    other = chain(*asked)
    assert union.shared(other) == len(set(other) & set().union(*held.values()))
    for blocks in held.values():
        union.move(blocks, ())
    assert len(union) == union.shared(other) == 0
