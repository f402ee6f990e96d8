from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.errors import Failure
from gateway.dialects.completions import PromptPart, cut, num_chars, prompts_of
from gateway.prompt_lists.gather import BadPart, Choices, added

TEXTS = st.lists(st.text("ab", max_size=12), min_size=1, max_size=40)
TOKENS = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=6), min_size=1, max_size=20)


@given(st.one_of(TEXTS, TOKENS), st.integers(1, 7), st.integers(1, 60))
def test_every_prompt_is_in_one_part_under_its_own_index(prompts: list[Any], most: int, max_chars: int) -> None:
    parts = list(cut(prompts, most, max_chars))
    assert sorted(index for part in parts for index in part.indexes) == list(range(len(prompts)))
    for part in parts:
        assert 1 <= len(part.indexes) <= most
        assert list(part.prompts) == [prompts[index] for index in part.indexes]


def test_prompts_with_one_prefix_are_side_by_side_and_the_prefix_counts_once() -> None:
    prompts = [f"{'abc'[n % 3] * 1_000}{n}" for n in range(30)]
    parts = list(cut(prompts, 10, 1_100))
    assert [{text[0] for text in part.prompts if isinstance(text, str)} for part in parts] == [{"a"}, {"b"}, {"c"}]


def test_a_prompt_that_is_larger_than_a_part_goes_alone() -> None:
    parts = list(cut(["x", "y" * 100, "z"], 10, 50))
    assert [part.indexes for part in parts] == [(0,), (1,), (2,)]


@pytest.mark.parametrize(
    "prompt", [None, "one", ["one"], [1, 2, 3], [[1, 2]], ["a", [1]], ["a", 1], [[1], ["b"]], []]
)
def test_one_prompt_and_what_is_no_list_of_prompts_is_no_list(prompt: Any) -> None:
    assert prompts_of({"prompt": prompt}) is None


def test_the_bound_on_the_output_goes_by_the_longest_prompt() -> None:
    assert [num_chars("bbb"), num_chars([1, 2])] == [3, 8]


@given(st.permutations(range(7)), st.integers(1, 3), st.integers(1, 4))
def test_choices_are_numbered_as_if_the_list_had_not_been_cut(order: list[int], n: int, size: int) -> None:
    choices = Choices(n)
    for start in range(0, 7, size):
        indexes = tuple(order[start : start + size])
        told = [
            {"index": p * n + copy, "text": f"{index}.{copy}"}
            for p, index in enumerate(indexes)
            for copy in range(n)
        ]
        part = PromptPart(indexes, tuple(str(index) for index in indexes))
        choices.add(part, {"id": "x", "choices": told[::-1], "usage": {"prompt_tokens": 1}})
    body = orjson.loads(choices.body({"id": "ours"}))
    assert [choice["index"] for choice in body["choices"]] == list(range(7 * n))
    assert [choice["text"] for choice in body["choices"]] == [f"{p}.{copy}" for p in range(7) for copy in range(n)]
    assert (body["id"], body["usage"]) == ("ours", {"prompt_tokens": -(-7 // size)})


@pytest.mark.parametrize("indexes", [[], [0], [0, 0], [0, 1, 2], [0, None]])
def test_an_answer_without_all_of_its_choices_is_none(indexes: list[int | None]) -> None:
    body = {"choices": [{"index": index, "text": ""} for index in indexes]}
    with pytest.raises(BadPart):
        Choices(1).add(PromptPart((4, 5), ("a", "b")), body)


def test_a_prompt_that_fails_has_its_choices_with_the_reason() -> None:
    choices = Choices(2)
    choices.fail(3, Failure(400, "invalid_request_error", "Too long.", code="context"))
    found = orjson.loads(choices.body({}))["choices"]
    assert [(choice["index"], choice["finish_reason"]) for choice in found] == [(6, "error"), (7, "error")]
    assert found[0]["error"]["message"] == "Too long."


def test_usage_is_summed_at_every_depth() -> None:
    a = {"prompt_tokens": 3, "details": {"cached_tokens": None, "x": 1}, "name": "a"}
    b = {"prompt_tokens": 4, "details": {"cached_tokens": 2, "y": 5}, "name": "b"}
    assert added(added({}, a), b) == {
        "prompt_tokens": 7,
        "details": {"cached_tokens": 2, "x": 1, "y": 5},
        "name": "a",
    }
