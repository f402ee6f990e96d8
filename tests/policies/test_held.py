from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from policies.held import Bucket, HeldTurns
from tests.policies.turns_of import turn


def test_order_is_urgency_then_rank_then_age() -> None:
    held = HeldTurns(lambda bucket: float(bucket.num_begun))
    held.put(turn("old"), Bucket(0, "f", 2, None), 1.0)
    held.put(turn("near"), Bucket(0, "f", 1, None), 5.0)
    held.put(turn("urgent"), Bucket(9, "f", 7, None), 6.0)
    assert [head.id for head in held.heads(3)] == ["urgent", "near", "old"]
    oldest = held.oldest()
    assert oldest is not None
    assert oldest.id == "old"


FAMILIES = st.sampled_from("xyz")


@given(st.lists(st.tuples(st.sampled_from(["put", "take", "rank"]), FAMILIES, st.integers(0, 3)), max_size=60))
@settings(max_examples=300, deadline=None)
def test_the_incremental_order_equals_a_full_sort(steps: list[tuple[str, str, int]]) -> None:
    ranks = dict.fromkeys("xyz", 0.0)
    held = HeldTurns(lambda bucket: ranks[bucket.family_id] * bucket.num_begun)
    present: dict[str, tuple[Bucket, int]] = {}
    for number, (action, family, value) in enumerate(steps):
        if action == "put":
            bucket = Bucket(0, family, value, None)
            held.put(turn(str(number)), bucket, float(number % 7))
            present[str(number)] = (bucket, number)
        elif action == "take" and present:
            turn_id = sorted(present)[value % len(present)]
            held.take(turn_id)
            del present[turn_id]
        elif action == "rank":
            ranks[family] = float(value)
            held.rerank(family)
        best: dict[Bucket, tuple[float, float, int, str]] = {}
        for turn_id, (bucket, sequence) in present.items():
            key = (ranks[bucket.family_id] * bucket.num_begun, float(sequence % 7), sequence, turn_id)
            best[bucket] = min(best.get(bucket, key), key)
        expected = [(rank, age) for rank, age, _, _ in sorted(best.values())]
        heads = held.heads(100)
        actual = [
            (ranks[present[h.id][0].family_id] * present[h.id][0].num_begun, held.since(h.id)) for h in heads
        ]
        assert actual == expected
        assert len(held) == len(present)
