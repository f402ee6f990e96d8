"""Laws of cutting a list of prompts into parts."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.slices import finished
from gateway.prompt_lists import scatter
from gateway.prompt_lists.scatter import cut

TEXTS = st.lists(st.text("ab", max_size=12), min_size=1, max_size=40)
TOKENS = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=6), min_size=1, max_size=20)


@given(st.one_of(TEXTS, TOKENS), st.integers(1, 7), st.integers(1, 60), st.integers(1, 9))
def test_every_prompt_is_in_one_part_under_its_own_index(
    prompts: list[Any], most: int, max_chars: int, step_prompts: int
) -> None:
    with patch.object(scatter, "_STEP_PROMPTS", step_prompts):
        parts = finished(cut(prompts, most, max_chars))
    assert [prompt for part in parts for prompt in part.prompts] == sorted(prompts)
    assert sorted(index for part in parts for index in part.indexes) == list(range(len(prompts)))
    for part in parts:
        assert 1 <= len(part.indexes) <= most
        assert list(part.prompts) == [prompts[index] for index in part.indexes]


def test_prompts_with_one_prefix_are_side_by_side_and_the_prefix_counts_once() -> None:
    prompts = [f"{'abc'[n % 3] * 1_000}{n}" for n in range(30)]
    parts = finished(cut(prompts, 10, 1_100))
    assert [{text[0] for text in part.prompts if isinstance(text, str)} for part in parts] == [{"a"}, {"b"}, {"c"}]


@pytest.mark.parametrize("prompt", ["long " * 100, [100_000] * 25])
def test_a_step_looks_at_a_few_of_many_prompts_however_they_sort(prompt: Any) -> None:
    num_prompts = 65_536
    steps = cut([prompt] * num_prompts, 64, 10**6)
    assert sum(1 for _ in steps) >= 2 * num_prompts / scatter._STEP_PROMPTS


def test_a_prompt_that_is_larger_than_a_part_goes_alone() -> None:
    parts = finished(cut(["x", "y" * 100, "z"], 10, 50))
    assert [part.indexes for part in parts] == [(0,), (1,), (2,)]
