"""Laws of one answer out of the answers to the parts."""

from __future__ import annotations

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.errors import Failure
from gateway.prompt_lists.gather import BadPart, Choices, PromptPart


@given(st.permutations(range(7)), st.integers(1, 3), st.integers(1, 4))
def test_choices_are_numbered_as_if_the_list_had_not_been_cut(order: list[int], n: int, size: int) -> None:
    choices = Choices(n)
    for start in range(0, 7, size):
        indexes = tuple(order[start : start + size])
        numbered = [
            {"index": p * n + copy, "text": f"{index}.{copy}"}
            for p, index in enumerate(indexes)
            for copy in range(n)
        ]
        part = PromptPart(indexes, tuple(str(index) for index in indexes))
        choices.add_answer(part, {"id": "x", "choices": numbered[::-1], "usage": {"prompt_tokens": 1}})
    body = orjson.loads(choices.body({"id": "ours"}))
    assert [choice["index"] for choice in body["choices"]] == list(range(7 * n))
    assert [choice["text"] for choice in body["choices"]] == [f"{p}.{copy}" for p in range(7) for copy in range(n)]
    assert (body["id"], body["usage"]) == ("ours", {"prompt_tokens": -(-7 // size)})


@pytest.mark.parametrize("indexes", [[], [0], [0, 0], [0, 1, 2], [0, None]])
def test_an_answer_without_all_of_its_choices_is_none(indexes: list[int | None]) -> None:
    body = {"choices": [{"index": index, "text": ""} for index in indexes]}
    with pytest.raises(BadPart):
        Choices(1).add_answer(PromptPart((4, 5), ("a", "b")), body)


def test_a_prompt_that_fails_has_its_choices_with_the_reason() -> None:
    choices = Choices(2)
    choices.fail(3, Failure(400, "invalid_request_error", "Too long.", code="context"))
    found = orjson.loads(choices.body({}))["choices"]
    assert [(choice["index"], choice["finish_reason"]) for choice in found] == [(6, "error"), (7, "error")]
    assert found[0]["error"]["message"] == "Too long."
