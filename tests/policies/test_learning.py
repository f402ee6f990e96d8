from __future__ import annotations

import random
from dataclasses import replace

import pytest

from policies.forecast import MOST_TOKENS, private_tokens
from policies.learning import (
    LEAST_TOKEN_S,
    OUTPUT_TOKEN_S,
    PREFILL_TOKEN_S,
    Line,
    Pace,
    TokenRatio,
    saw_first_prompt,
)
from policies.types import BLOCK_CHARS, Family, PromptHead, Session
from tests.policies.turns_of import TOKENS_PER_BLOCK, chain, turn

BASE_S, TOKEN_S = 0.04, 0.000_2


def pace_of(sizes: list[int], base_s: float = BASE_S, token_s: float = TOKEN_S) -> Pace:
    pace = Pace()
    for tokens in sizes:
        pace.saw_prefill(tokens, base_s + token_s * tokens)
    return pace


def test_the_overhead_of_a_prefill_is_told_apart_from_its_tokens() -> None:
    pace = pace_of([300, 500, 900, 2_500] * 4)
    assert pace.prefill_token_s == pytest.approx(TOKEN_S, rel=0.02)
    assert pace.prefill_s(5_000) == pytest.approx(BASE_S + 5_000 * TOKEN_S, rel=0.02)


@pytest.mark.parametrize("scale", [0.5, 1, 10, 40])
def test_prefills_of_one_size_show_the_speed_of_a_slow_engine_and_of_a_fast_one(scale: float) -> None:
    pace = Pace()
    for _ in range(8):
        pace.saw_decode(100 * scale * OUTPUT_TOKEN_S, 0, 100, 4)
        pace.saw_prefill(500, 2 * scale * OUTPUT_TOKEN_S + 500 * scale * TOKEN_S)
    assert pace.prefill_token_s == pytest.approx(scale * TOKEN_S, rel=0.15)


def test_nothing_but_tiny_prompts_leaves_the_guess() -> None:
    rng, pace = random.Random(1), Pace()
    for _ in range(50):
        pace.saw_prefill(rng.randint(20, 60), rng.uniform(0.01, 0.06))
    assert PREFILL_TOKEN_S / 2 < pace.prefill_token_s < 2 * PREFILL_TOKEN_S


def test_a_prefill_that_waited_for_room_in_the_engine_hardly_slows_the_pool() -> None:
    pace = pace_of([400, 500, 600] * 6)
    pace.saw_prefill(900, 5.0)
    assert pace.prefill_token_s < 1.3 * TOKEN_S


def test_an_engine_that_becomes_slower_is_noticed() -> None:
    pace = pace_of([400, 500, 600] * 6)
    for tokens in [400, 500, 600] * 40:
        pace.saw_prefill(tokens, BASE_S + 3 * TOKEN_S * tokens)
    assert pace.prefill_token_s == pytest.approx(3 * TOKEN_S, rel=0.2)


def test_prefill_that_costs_nothing_is_seen_and_still_bounded() -> None:
    pace = pace_of([400, 900, 3_000, 200] * 8, token_s=0)
    assert LEAST_TOKEN_S <= pace.prefill_token_s < TOKEN_S / 50


def test_only_a_prefill_that_ran_alone_is_timed() -> None:
    pace = Pace()
    pace.prefill_began("a", True, 0.0)
    pace.prefill_began("b", False, 0.1)
    assert pace.prefill_ended("a", 500, 0.2) is None
    pace.prefill_began("c", True, 1.0)
    assert pace.prefill_ended("c", 500, 1.25) == 0.25
    assert pace.prefilled_tokens == 1_000


def test_an_evicted_prefix_that_is_computed_again_costs_its_prefill() -> None:
    pace = pace_of([300, 500, 900, 2_500] * 4)
    assert pace.miss_token_s == pace.prefill_token_s
    for _ in range(40):
        pace.saw_return(400, 2_000, BASE_S + 2_400 * TOKEN_S)
    assert pace.miss_token_s == pytest.approx(TOKEN_S, rel=0.05)


def test_an_evicted_prefix_that_a_lower_tier_still_has_costs_little() -> None:
    pace = pace_of([300, 500, 900, 2_500] * 4)
    for _ in range(40):
        pace.saw_return(400, 2_000, BASE_S + 400 * TOKEN_S + 0.01)
    assert pace.miss_token_s < 0.3 * pace.prefill_token_s
    for _ in range(40):
        pace.saw_return(400, 2_000, 60.0)
    assert pace.miss_token_s < 2 * pace.prefill_token_s


@pytest.mark.parametrize("each_s", [0.0, 0.002])
def test_decoding_is_slower_beside_others_as_far_as_that_was_seen(each_s: float) -> None:
    pace = pace_of([300, 500, 900, 2_500] * 4)
    assert pace.decode_s(1) is None
    for number in range(200):
        num_running = 1 + number % 20
        decode_s = 100 * (0.02 + each_s * num_running)
        pace.saw_decode(decode_s + 1_000 * TOKEN_S, 1_000, 100, num_running)
    assert pace.decode_s(5) == pytest.approx(100 * (0.02 + 5 * each_s), rel=0.1)
    assert pace.decode_s(20) == pytest.approx(100 * (0.02 + 20 * each_s), rel=0.1)


def test_a_line_is_never_below_zero() -> None:
    rng = random.Random(2)
    for _ in range(300):
        line = Line()
        for _ in range(rng.randint(0, 6)):
            line.saw(rng.choice((0, 1, rng.uniform(0, 5_000))), rng.uniform(0, 2))
        intercept, slope = line.fit(rng.uniform(0, 1), rng.choice((0.0, 0.1)), rng.choice((0.0, 100.0)))
        assert intercept >= 0
        assert slope >= 0


# ---- what a first prompt shows when it arrives


def private(*prompts: tuple[tuple[str, int], ...]) -> Family:
    family = Family("f")
    for number, parts in enumerate(prompts):
        saw_first_prompt(family, turn(f"t{number}", *parts), None)
    return family


def test_what_no_sibling_sent_is_a_first_prompts_own_when_it_arrives() -> None:
    family = private((("shared", 8), ("a", 2)), (("shared", 8), ("b", 4)))
    assert family.private_chars == 4 * BLOCK_CHARS
    family.tokens_per_char = 0.25
    assert private_tokens(family) == 4 * TOKENS_PER_BLOCK


@pytest.mark.parametrize(
    ("own_chars", "hashes", "edge_chars", "private_blocks"),
    [(0, (1, 1), 500, 1), (8 * BLOCK_CHARS, (1, 1), 0, 9), (0, (1, 2), 0, 1)],
    ids=["small sessions", "a margin for large ones", "another head"],
)
def test_the_end_of_a_shared_head_is_not_a_small_sessions_own(
    own_chars: int, hashes: tuple[int, int], edge_chars: int, private_blocks: int
) -> None:
    """Both heads end 500 characters behind their last whole block."""
    family, num_own = Family("f", output_tokens=64), 1 + own_chars // BLOCK_CHARS
    shared_chars = []
    for name, hash_ in zip("ab", hashes, strict=True):
        first = turn(name, ("head", 8), (name, num_own))
        head = PromptHead(8 * BLOCK_CHARS + 500, hash_)
        shared_chars.append(saw_first_prompt(family, replace(first, head=head), None))
    has_edge = hashes[0] == hashes[1]
    assert shared_chars == [0, 8 * BLOCK_CHARS + 500 * has_edge]
    assert family.edge_chars == edge_chars
    assert family.private_chars == private_blocks * BLOCK_CHARS - edge_chars


def test_the_only_prompt_of_a_family_bounds_the_guess_of_what_is_private() -> None:
    assert private_tokens(Family("new")) == MOST_TOKENS
    assert private_tokens(private((("tiny", 1),))) == TOKENS_PER_BLOCK
    assert private_tokens(private((("huge", 500),))) == MOST_TOKENS


def test_a_sub_agent_that_continues_its_parents_prompt_does_not_own_it() -> None:
    family = private((("shared", 2), ("parent", 1)))
    parent = Session("p", "f", "t", blocks=chain(("shared", 2), ("parent", 20)))
    saw_first_prompt(family, turn("c", ("shared", 2), ("parent", 20), ("child", 3)), parent)
    assert family.private_chars == 3 * BLOCK_CHARS


# ---- tokens per character


def test_the_first_answer_corrects_the_ratio_of_a_sample() -> None:
    ratio = TokenRatio()
    assert ratio.value == TokenRatio.PRIOR
    ratio.suppose(0.3)
    assert ratio.value == 0.3
    ratio.saw(10_000, 2_000)
    ratio.suppose(0.3)
    assert ratio.value == 0.2


def test_long_prompts_count_for_the_ratio_by_their_length() -> None:
    ratio = TokenRatio()
    ratio.saw(40, 40)  # of a chat's first line the template is most
    ratio.saw(40_000, 8_000)
    assert ratio.value == pytest.approx(0.2, rel=0.01)
    ratio.saw(0, 20)
    assert ratio.value == pytest.approx(0.2, rel=0.01)
