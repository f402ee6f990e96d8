"""Laws of the completions format."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.reply import Reply
from gateway.core.slices import finished
from gateway.dialects import completions
from gateway.dialects.base import Script
from gateway.dialects.completions import MOST_TURNS, Completions, num_chars

COMPLETIONS = Completions()
SYSTEM = "<|im_start|>system\nBe brief.<|im_end|>\n"
USER = "<|im_start|>user\nhi<|im_end|>\n"
GENERATE = "<|im_start|>assistant\n"


def script(prompt: Any) -> Script:
    return COMPLETIONS.script({"prompt": prompt})


def test_a_rendered_prompt_grows_message_by_message() -> None:
    first = script(SYSTEM + USER + GENERATE)
    answered = script(SYSTEM + USER + GENERATE + "Hello.<|im_end|>\n" + USER + GENERATE)
    assert first.system == answered.system == SYSTEM.encode()
    assert answered.messages[: len(first.messages) - 1] == first.messages[:-1]
    assert len(answered.messages) == 4


@pytest.mark.parametrize(
    ("prompt", "num_messages"),
    [
        ("plain text", 1),
        (["plain text"], 1),
        ([1, 2, 3], 1),
        ([[1, 2, 3]], 1),
        (["a", "b"], 2),
        ([[1], [2]], 2),
        ([], 0),
    ],
)
def test_every_form_of_prompt_has_its_messages(prompt: Any, num_messages: int) -> None:
    assert len(script(prompt).messages) == num_messages


def test_one_prompt_is_the_same_in_a_list_of_one() -> None:
    assert script(["x"]) == script("x")
    assert script([[1, 2]]) == script([1, 2])


def test_a_stream_is_folded_into_one_reply() -> None:
    reply = Reply()
    for index, text, finish in ((0, "a", None), (1, "x", "stop"), (0, "b", None)):
        COMPLETIONS.read(
            {"model": "m", "choices": [{"index": index, "text": text, "finish_reason": finish}]}, reply
        )
    assert (reply.model, reply.text, reply.is_complete) == ("m", "ab", False)
    COMPLETIONS.read({"choices": [{"index": 0, "text": "", "finish_reason": "length"}]}, reply)
    assert (reply.finish_reason, reply.is_complete) == ("length", True)


@pytest.mark.parametrize(
    "prompt", [None, "one", ["one"], [1, 2, 3], [[1, 2]], ["a", [1]], ["a", 1], [[1], ["b"]], []]
)
def test_one_prompt_and_what_is_no_list_of_prompts_is_no_list(prompt: Any) -> None:
    assert COMPLETIONS.prompts({"prompt": prompt}) is None


def test_the_bound_on_the_output_goes_by_the_longest_prompt() -> None:
    assert [num_chars("bbb"), num_chars([1, 2])] == [3, 8]


STARTS = re.compile(r"(?=<\|(?:im_start|start_header_id|start|system|user|assistant)\|>|\[INST\])")
PIECE = st.sampled_from(
    ["<|im_start|>", "<|start_header_id|>", "[INST]", "<|", "<|im_", "start|>", "user", "|>", "\n", "é"]
)


@given(st.lists(PIECE, max_size=30).map("".join), st.integers(1, 40))
def test_a_rendered_prompt_is_cut_at_each_beginning_however_it_is_searched(prompt: str, window_chars: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(completions, "_WINDOW_CHARS", window_chars)
        found = finished(completions._turns_in_steps(prompt))
    assert found == [piece for piece in STARTS.split(prompt) if piece]


def test_a_rendered_prompt_has_a_bounded_number_of_messages_and_loses_nothing() -> None:
    prompt = USER * (3 * MOST_TURNS)
    turns = finished(completions._turns_in_steps(prompt))
    assert len(turns) == MOST_TURNS
    assert "".join(turns) == prompt
