from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from policies.admission_queue import Bucket, HeldTurns, most_overtaking
from tests.policies.turns_of import turn

T = [(0, "t")]


def test_order_in_a_flow_is_rank_then_age_and_of_flows_as_given() -> None:
    held = HeldTurns(lambda _turn, bucket: float(bucket.num_begun))
    held.put(turn("old"), Bucket(0, False, "t", "f", 2, None), 1.0)
    held.put(turn("near"), Bucket(0, False, "t", "f", 1, None), 5.0)
    held.put(turn("urgent"), Bucket(9, False, "t", "f", 7, None), 6.0)
    assert [head.id for head in held.heads(3, [(9, "t"), (0, "t")])] == ["urgent", "near", "old"]
    assert [head.id for head in held.heads(2, [(9, "t"), (0, "t")])] == ["urgent", "near"]
    assert held.oldest((0, "t"))[1] == "old"
    assert held.oldest((9, "t"))[1] == "urgent"


def test_a_class_below_0_never_waits_too_long() -> None:
    held = HeldTurns(lambda _turn, bucket: 0.0)
    held.put(turn("batch"), Bucket(-1, False, "t", "f", 1, None), 1.0)
    assert held.oldest((-1, "t"))[1] == ""


def test_in_a_tenant_returning_before_new_and_no_tenant_takes_the_part_of_another() -> None:
    held = HeldTurns(lambda _turn, bucket: float(bucket.num_begun))
    held.put(turn("new of a"), Bucket(0, False, "a", "f", 1, None), 1.0)
    held.put(turn("next of a"), Bucket(0, False, "a", "f", 2, None), 1.0)
    held.put(turn("new of b"), Bucket(0, False, "b", "f", 9, None), 2.0)
    held.put(turn("back of a"), Bucket(0, True, "a", "f", 9, None), 3.0)
    assert list(held.flows) == [(0, "a"), (0, "b")]
    order = ["new of b", "back of a", "new of a", "next of a"]
    assert [head.id for head in held.heads(10, [(0, "b"), (0, "a")])] == order
    assert [head.id for head in held.heads(2, [(0, "b"), (0, "a")])] == ["new of b", "back of a"]
    assert [head.id for head in held.heads(1, [(0, "b"), (0, "a")])] == ["new of b"]
    held.remove("new of b")
    assert list(held.flows) == [(0, "a")]


FAMILIES = st.sampled_from("xyz")


@given(st.lists(st.tuples(st.sampled_from(["put", "take"]), FAMILIES, st.integers(0, 3)), max_size=60))
@settings(max_examples=300)
def test_the_incremental_order_equals_a_full_sort(steps: list[tuple[str, str, int]]) -> None:
    ranks = {"x": 0.0, "y": 1.0, "z": 2.0}
    held = HeldTurns(lambda _turn, bucket: ranks[bucket.family_id] * bucket.num_begun)
    present: dict[str, tuple[Bucket, int]] = {}
    for number, (action, family, value) in enumerate(steps):
        if action == "put":
            bucket = Bucket(0, False, "t", family, value, None)
            held.put(turn(str(number)), bucket, float(number % 7))
            present[str(number)] = (bucket, number)
        elif action == "take" and present:
            turn_id = sorted(present)[value % len(present)]
            held.remove(turn_id)
            del present[turn_id]
        best: dict[Bucket, tuple[float, float, int, str]] = {}
        for turn_id, (bucket, sequence) in present.items():
            key = (ranks[bucket.family_id] * bucket.num_begun, float(sequence % 7), sequence, turn_id)
            best[bucket] = min(best.get(bucket, key), key)
        expected = [(rank, age) for rank, age, _, _ in sorted(best.values())]
        heads = held.heads(100, T) if held else []
        actual = [
            (ranks[present[h.id][0].family_id] * present[h.id][0].num_begun, held.since(h.id)) for h in heads
        ]
        assert actual == expected
        assert len(held) == len(present)


def test_a_bucket_is_ranked_again_when_another_turn_becomes_its_oldest() -> None:
    ranks = {"x": 0.0, "y": 1.0}
    held = HeldTurns(lambda _turn, bucket: ranks[bucket.family_id])
    for number, family in enumerate("xxyy"):
        held.put(turn(f"{family}{number}"), Bucket(0, False, "t", family, 1, None), float(number))
    ranks["x"] = 2.0
    assert [head.id for head in held.heads(2, T)] == ["x0", "y2"]
    held.remove("x0")
    assert [head.id for head in held.heads(2, T)] == ["y2", "x1"]


def test_among_tenants_a_turn_is_overtaken_by_few_of_its_own_tenant() -> None:
    """Each is of a family of its own, and the newest is ranked first."""
    held = HeldTurns(lambda turn, _bucket: -float(turn.id))
    for number in range(10):
        held.put(turn(str(number)), Bucket(0, False, "t", f"f{number}", 1, None), float(number))
    for number in range(10, 100):
        held.put(turn(str(number)), Bucket(0, False, "t", f"f{number}", 1, None), float(number))
        [head] = held.heads(1, T, is_shared=True)
        held.remove(head.id)
        if head.id == "0":
            assert number - 10 <= most_overtaking(10)
            return
    raise AssertionError("it starves")
