"""Which earlier turns a prompt tells of, and how long their prompts were."""

from __future__ import annotations

import pytest

from policies.recognition.history import history
from policies.types import History

USER, ANSWER, RESULT = b'["user",{"content":"fix it"}]', b'["assistant",{"content":"yes"}]', b'["tool",{}]'
THOUGHT, CALL, OUTPUT = b'["reasoning",{}]', b'["function_call",{}]', b'["function_call_output",{}]'
SHELL, SHELL_OUTPUT = b'["local_shell_call",{}]', b'["local_shell_call_output",{}]'
QUOTE = b'["user",{"content":"[\\"assistant\\""}]'
HEAD = 100


@pytest.mark.parametrize(
    ("messages", "num_turns"),
    [
        pytest.param([], 0, id="empty"),
        pytest.param([USER], 0, id="a task"),
        pytest.param([USER, ANSWER], 0, id="an answer that the model is to go on with"),
        pytest.param([USER, QUOTE, RESULT], 0, id="a user who quotes the model"),
        pytest.param([USER, ANSWER, RESULT], 1, id="one turn"),
        pytest.param([USER, THOUGHT, CALL, CALL, OUTPUT, OUTPUT], 1, id="an answer of several items"),
        pytest.param([USER, SHELL, SHELL_OUTPUT, SHELL, SHELL_OUTPUT], 2, id="calls of a shell"),
        pytest.param([USER, CALL, OUTPUT, CALL, OUTPUT, ANSWER, USER], 3, id="several turns"),
    ],
)
def test_an_answer_with_something_behind_it_is_an_earlier_turn(messages: list[bytes], num_turns: int) -> None:
    found = history(HEAD, messages)
    assert (0 if found is None else found.num_turns) == num_turns


def test_the_prompt_of_an_earlier_turn_ends_where_its_answer_begins() -> None:
    messages = [USER, ANSWER, RESULT, ANSWER, RESULT]
    last_chars = HEAD + len(USER + ANSWER + RESULT)
    assert history(HEAD, messages) == History(2, HEAD + len(USER), last_chars)
