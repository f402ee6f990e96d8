"""Laws of what returns of sessions show of the size of a pool, against a real LRU of blocks among others."""

from __future__ import annotations

import math
import random
from collections import OrderedDict
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.capacity import MAX_OVER_STATED, TOLERANCE, Capacity, Shown, shown_by
from policies.reuse import ReuseDistances
from policies.types import BLOCK_CHARS


def stated(tokens: int) -> Capacity:
    capacity = Capacity()
    capacity.state(tokens)
    return capacity


def found(tokens: float) -> Shown:
    return Shown(tokens, math.inf)


def lost(tokens: float) -> Shown:
    return Shown(0.0, tokens)


# ---- what one return shows


@pytest.mark.parametrize(
    ("missed", "shown"),
    [
        pytest.param(0, found(10_000), id="all of it is cached"),
        pytest.param(15, found(9_985), id="all but the rest of a block"),
        pytest.param(150, found(9_850), id="a little may be the template"),
        pytest.param(700, Shown(9_300, 9_300), id="its end was evicted"),
        pytest.param(990, lost(9_010), id="all of its own was evicted"),
        pytest.param(3_000, lost(9_000), id="what it shares is not its own"),
    ],
)
def test_a_return_bounds_the_pool_by_what_is_left_of_its_own_text(missed: float, shown: Shown) -> None:
    assert shown_by(10_000, 1_000, missed, 0, grain_tokens=16, block_tokens=128) == shown


def test_answers_that_are_being_decoded_widen_what_a_return_shows() -> None:
    assert shown_by(10_000, 1_000, 0, 400, 16, 128) == found(10_200)
    assert shown_by(10_000, 1_000, 700, 400, 16, 128) == Shown(9_500, 9_900)
    assert shown_by(10_000, 1_000, 1_000, 400, 16, 128) == lost(9_600)


def test_a_text_of_about_a_block_shows_nothing() -> None:
    assert shown_by(10_000, 90, 0, 0, grain_tokens=16, block_tokens=128) is None


# ---- what several show


def test_what_the_engine_states_holds_against_one_contradiction() -> None:
    for shown in (lost(700), Shown(700, 700), found(1_400)):
        capacity = stated(1_000)
        capacity.saw(shown)
        assert capacity.tokens == 1_000


@pytest.mark.parametrize("truth", [0.6, 0.8, 0.95, 1.05, 1.2, 1.4])
def test_two_exact_returns_find_a_size_that_was_stated_wrong(truth: float) -> None:
    capacity = stated(1_000)
    for _ in range(2):
        capacity.saw(Shown(1_000 * truth, 1_000 * truth))
    assert capacity.tokens == pytest.approx(1_000 * truth, rel=0.02)


def test_a_bound_within_the_tolerance_contradicts_nothing() -> None:
    capacity = stated(1_000)
    for _ in range(100):
        capacity.saw(lost(1_000 * (1 - TOLERANCE / 2)))
        capacity.saw(found(1_000 * (1 + TOLERANCE / 2)))
    assert capacity.tokens == 1_000


def test_a_few_misses_at_small_distances_do_not_outweigh_what_is_found_beyond() -> None:
    capacity = stated(1_000)
    for number in range(30):
        capacity.saw(found(600 + 13 * number))
    for tokens in (550, 700, 800):
        capacity.saw(lost(tokens))
    assert capacity.tokens == 1_000


def test_a_pool_of_unknown_size_has_no_bound_until_it_evicts() -> None:
    capacity = Capacity()
    for tokens in range(0, 10_000, 100):
        capacity.saw(found(tokens))
    assert capacity.tokens is None
    for tokens in (11_000, 10_500):
        capacity.saw(lost(tokens))
    assert capacity.tokens == pytest.approx(10_200, rel=0.03)


def test_a_size_that_others_left_grows_again_once_they_are_gone() -> None:
    capacity = stated(1_000)
    for _ in range(40):
        capacity.saw(Shown(500, 500))
    assert capacity.tokens == pytest.approx(500, rel=0.02)
    for _ in range(40):
        capacity.saw(found(990))
    assert capacity.tokens == 1_000


def test_no_engine_holds_more_than_the_most_that_is_believed() -> None:
    capacity = stated(1_000)
    for tokens in range(1_000, 10_000, 50):
        capacity.saw(found(tokens))
    assert capacity.tokens == MAX_OVER_STATED * 1_000


def test_an_engine_of_another_size_is_another_engine() -> None:
    capacity = stated(1_000)
    for _ in range(2):
        capacity.saw(lost(800))
    capacity.state(1_000)
    assert capacity.tokens == pytest.approx(760, rel=0.02)
    capacity.state(2_000)
    assert capacity.tokens == 2_000


@given(st.lists(st.tuples(st.floats(0, 5_000), st.floats(0, 5_000)).map(sorted), max_size=80))
def test_it_stays_between_nothing_and_the_most_that_is_believed(bounds: list[list[float]]) -> None:
    capacity = stated(1_000)
    for least, most in bounds:
        capacity.saw(Shown(least, most))
        assert capacity.tokens is not None
        assert 0 <= capacity.tokens <= MAX_OVER_STATED * 1_000


# ---- against an engine


@dataclass
class Lru:
    """A cache of blocks of 16 tokens that evicts what was released first, the end of a prompt before its
    beginning."""

    size_blocks: int
    cached: OrderedDict[tuple[str, int], None] = field(default_factory=OrderedDict)

    def turn(self, parts: list[tuple[str, int]]) -> int:
        """A prompt of named parts, of so many blocks each; its leading blocks that were cached."""
        blocks = [(name, index) for name, num_blocks in parts for index in range(num_blocks)]
        num_found = next((i for i, block in enumerate(blocks) if block not in self.cached), len(blocks))
        for block in reversed(blocks):
            self.cached.pop(block, None)
            self.cached[block] = None
        while len(self.cached) > self.size_blocks:
            self.cached.popitem(last=False)
        return num_found


BLOCK_TOKENS, CHARS_PER_TOKEN = 16, 4
PER_CHAIN_BLOCK = BLOCK_CHARS // CHARS_PER_TOKEN // BLOCK_TOKENS
SIZE_BLOCKS = 1_200
SIZE_TOKENS = BLOCK_TOKENS * SIZE_BLOCKS


def played(capacity: Capacity, rng: random.Random, num_turns: int, spread: float) -> list[float | None]:
    """Sessions that grow, return in random order and end; what is believed after each turn."""
    engine, reuse, believed = Lru(SIZE_BLOCKS), ReuseDistances(tail_chars=0), []
    sessions: dict[str, int] = {}
    for number in range(num_turns):
        at_once = round(spread * rng.uniform(12, 20))
        if len(sessions) < at_once:
            name = f"s{number}"
            sessions[name] = PER_CHAIN_BLOCK * rng.randint(3, 12)
        else:
            name = rng.choice(list(sessions))
        before = sessions[name]
        if reuse.distance_chars(name) is not None:
            sessions[name] += PER_CHAIN_BLOCK * rng.randint(1, 4)
        num_shared = 20 * PER_CHAIN_BLOCK
        num_found = engine.turn([("shared", num_shared), (name, sessions[name])])
        chain = [hash(("shared", i)) for i in range(20)]
        chain += [hash((name, i)) for i in range(sessions[name] // PER_CHAIN_BLOCK)]
        again = reuse.begin(f"t{number}", name, chain, BLOCK_CHARS * len(chain))
        reuse.end(f"t{number}")
        if again is not None:
            distance_tokens, private_tokens = (chars / CHARS_PER_TOKEN for chars in again)
            missed = BLOCK_TOKENS * max(0, num_shared + before - num_found)
            shown = shown_by(distance_tokens, private_tokens, missed, 0, 16, 128)
            if shown is not None:
                capacity.saw(shown)
        if sessions[name] > PER_CHAIN_BLOCK * 24:
            del sessions[name]
        believed.append(capacity.tokens)
    return believed


@given(st.integers(0, 1 << 30), st.floats(0.3, 3.0))
@settings(max_examples=60, deadline=None)
def test_a_right_size_is_never_lowered_whatever_the_traffic(seed: int, spread: float) -> None:
    believed = played(stated(SIZE_TOKENS), random.Random(seed), 400, spread)
    assert all(tokens is not None and tokens >= 0.98 * SIZE_TOKENS for tokens in believed)
    assert believed[-1] == pytest.approx(SIZE_TOKENS, rel=0.02)


@given(st.integers(0, 1 << 30), st.sampled_from([0.6, 0.8, 0.95, 1.05, 1.2, 1.4, None]))
@settings(max_examples=60, deadline=None)
def test_a_size_that_was_stated_wrong_or_not_at_all_is_found(seed: int, times: float | None) -> None:
    capacity = Capacity() if times is None else stated(round(times * SIZE_TOKENS))
    believed = played(capacity, random.Random(seed), 400, 1.3)
    assert believed[-1] == pytest.approx(SIZE_TOKENS, rel=0.03)
