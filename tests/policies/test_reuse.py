"""Laws of reuse distances: they equal those of an LRU list that is counted block by block."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.reuse import CHUNK, MAX_CHUNKS, MAX_RUNS, TAIL_CHARS, Reuse, ReuseDistances
from policies.types import BLOCK_CHARS
from tests.policies.turns_of import chain

PARTS = st.lists(st.tuples(st.sampled_from("xyz"), st.integers(1, 3)), min_size=1, max_size=4)
STEPS = st.lists(
    st.tuples(st.sampled_from(["begin", "begin", "end"]), st.sampled_from("abcd"), PARTS), max_size=40
)


class Counted:
    """Blocks by the number of their last release, and the prompts that are held."""

    def __init__(self) -> None:
        self.released: dict[int, int] = {}
        self.held: dict[str, tuple[int, ...]] = {}
        self.last: dict[str, tuple[int, ...]] = {}
        self.num = 0

    def end(self, turn_id: str) -> None:
        self.num += 1
        for block in self.held.pop(turn_id):
            self.released[block] = self.num

    def distance_blocks(self, session: str) -> int | None:
        if session not in self.last:
            return None
        held = {block for blocks in self.held.values() for block in blocks}
        last = self.last[session][-1]
        if last in held:
            return len(held)
        newer = {block for block, num in self.released.items() if num >= self.released[last]}
        return len(held | newer)


@given(STEPS)
@settings(max_examples=400)
def test_distances_equal_those_of_blocks_counted_one_by_one(
    steps: list[tuple[str, str, list[tuple[str, int]]]],
) -> None:
    distances, counted = ReuseDistances(tail_chars=0), Counted()
    for number, (step, session, parts) in enumerate(steps):
        if step == "begin":
            blocks = chain(*parts)
            distances.begin(f"t{number}", session, blocks, len(blocks) * BLOCK_CHARS)
            counted.held[f"t{number}"] = counted.last[session] = blocks
        elif counted.held:
            turn_id = next(iter(counted.held))
            distances.end(turn_id)
            counted.end(turn_id)
        for name in "abcd":
            blocks_wanted = counted.distance_blocks(name)
            wanted = None if blocks_wanted is None else blocks_wanted * BLOCK_CHARS
            assert distances.distance_chars(name) == wanted


def touch(
    distances: ReuseDistances, session: str, *parts: tuple[str, int], tail: int = 0, answer: int = 0, lost: int = 0
) -> None:
    blocks = chain(*parts)
    distances.begin(f"turn of {session}", session, blocks, len(blocks) * BLOCK_CHARS + tail)
    distances.end(f"turn of {session}", answer, lost)


def test_text_behind_the_last_whole_block_and_the_answer_count_until_the_session_continues() -> None:
    distances = ReuseDistances(tail_chars=0)
    touch(distances, "a", ("a", 2), tail=100, answer=300)
    assert distances.distance_chars("a") == 2 * BLOCK_CHARS + 400
    again = distances.begin("again", "a", chain(("a", 2), ("more", 1)), 3 * BLOCK_CHARS + 10)
    assert again == Reuse(2 * BLOCK_CHARS + 400, 2 * BLOCK_CHARS + 100)
    assert distances.distance_chars("a") == 3 * BLOCK_CHARS + 10


def test_what_another_session_shares_is_not_private() -> None:
    distances = ReuseDistances(tail_chars=0)
    touch(distances, "a", ("shared", 3), ("a", 2))
    touch(distances, "b", ("shared", 3), ("b", 1))
    assert distances.distance_chars("b") == 4 * BLOCK_CHARS
    again = distances.begin("again", "a", chain(("shared", 3), ("a", 2)), 5 * BLOCK_CHARS)
    assert again == Reuse(6 * BLOCK_CHARS, 2 * BLOCK_CHARS)


@pytest.mark.parametrize(
    ("parts", "is_reused"),
    [
        pytest.param([("a", 3), ("end", 1), ("more", 1)], True, id="it continues"),
        pytest.param([("a", 3), ("other", 5)], True, id="only the last block differs"),
        pytest.param([("a", 2), ("other", 5)], False, id="it was rewritten"),
        pytest.param([("a", 2)], False, id="it was cut"),
    ],
)
def test_a_prompt_is_reused_where_only_its_last_block_differs(
    parts: list[tuple[str, int]], is_reused: bool
) -> None:
    distances = ReuseDistances(tail_chars=0)
    touch(distances, "a", ("a", 3), ("end", 1))
    assert (distances.begin("again", "a", chain(*parts), 0) is not None) == is_reused


def test_an_end_without_a_beginning_changes_nothing() -> None:
    distances = ReuseDistances(tail_chars=0)
    touch(distances, "a", ("a", 1))
    distances.end("turn of a")
    assert distances.distance_chars("a") == BLOCK_CHARS


def test_a_forgotten_session_has_no_distance_and_its_text_ages_as_before() -> None:
    distances = ReuseDistances(tail_chars=0)
    touch(distances, "a", ("a", 1))
    touch(distances, "b", ("b", 1))
    distances.forget("b")
    assert (distances.distance_chars("a"), distances.distance_chars("b")) == (2 * BLOCK_CHARS, None)


def test_what_was_released_longest_ago_is_dropped_beyond_the_bound() -> None:
    distances = ReuseDistances(tail_chars=0)
    for number in range(MAX_RUNS + 9):
        touch(distances, f"s{number}", (f"s{number}", 1))
    assert distances.distance_chars("s8") is None
    assert distances.distance_chars("s9") == MAX_RUNS * BLOCK_CHARS
    touch(distances, "s8", ("s8", 1))
    assert distances.distance_chars("s8") == BLOCK_CHARS


def test_a_session_that_waits_for_ever_keeps_no_more_than_one_sum() -> None:
    distances = ReuseDistances(tail_chars=0)
    touch(distances, "old", ("old", 5))
    for _ in range((MAX_CHUNKS + 2) * CHUNK):
        touch(distances, "new", ("new", 1))
    assert distances.distance_chars("old") == 6 * BLOCK_CHARS
    assert distances.distance_chars("new") == BLOCK_CHARS


def test_an_answer_that_is_never_found_again_takes_room_until_it_is_evicted() -> None:
    distances = ReuseDistances(tail_chars=0)
    touch(distances, "a", ("a", 1), lost=70)
    touch(distances, "b", ("b", 1), lost=30)
    assert distances.distance_chars("a") == 2 * BLOCK_CHARS + 100
    touch(distances, "a", ("a", 2))
    assert distances.distance_chars("b") == 3 * BLOCK_CHARS + 30


def test_prompts_that_part_are_expected_to_share_half_a_block_more() -> None:
    distances = ReuseDistances()
    touch(distances, "a", ("shared", 2), ("a", 1))
    touch(distances, "b", ("shared", 2), ("b", 1))
    assert distances.distance_chars("b") == 3 * BLOCK_CHARS - TAIL_CHARS
