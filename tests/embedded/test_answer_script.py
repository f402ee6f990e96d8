import json
from typing import Any

import pytest

from gateway.embedded.answer import BadScript, ScriptedAnswer, scripted_answer

TOOLS = [{"type": "function", "function": {"name": "ls"}}]
CALL = {"name": "ls", "arguments": {"path": "."}}
LISTING = ScriptedAnswer("", None, (("ls", '{"path":"."}', None),))
DONE = ScriptedAnswer("done", None, ())


def conversation(num_answers: int, script: Any) -> list[dict[str, Any]]:
    task = {"role": "user", "content": f"Please do it. embedded_script: {json.dumps(script)} Thanks!"}
    answers = [{"role": "assistant", "content": "..."}, {"role": "tool", "content": "..."}] * num_answers
    return [{"role": "system", "content": "You are an agent."}, task, *answers]


@pytest.mark.parametrize(("num_answers", "answer"), [(0, LISTING), (1, DONE), (2, None)])
def test_a_list_gives_one_answer_per_turn_after_the_message_that_holds_it(
    num_answers: int, answer: ScriptedAnswer | None
) -> None:
    script = [{"tool_calls": [CALL]}, {"content": "done"}]
    body = {"messages": conversation(num_answers, script), "tools": TOOLS}
    assert scripted_answer(body) == answer


def test_a_tool_that_the_request_does_not_offer_is_not_called() -> None:
    body = {"messages": conversation(0, {"content": "A title", "tool_calls": [CALL]})}
    assert scripted_answer(body) == ScriptedAnswer("A title", None, ())


def test_the_body_field_wins_and_the_last_message_wins() -> None:
    messages = conversation(1, {"content": "old"}) + conversation(0, {"content": "new"})
    assert scripted_answer({"messages": messages}) == ScriptedAnswer("new", None, ())
    body = {"messages": messages, "embedded_script": {"content": "field"}}
    assert scripted_answer(body) == ScriptedAnswer("field", None, ())


def test_a_completion_prompt_can_hold_a_script() -> None:
    body = {"prompt": 'x embedded_script: {"output_tokens": 7}'}
    assert scripted_answer(body) == ScriptedAnswer("", 7, ())


def test_without_a_script_the_engine_decides() -> None:
    assert scripted_answer({"messages": [{"role": "user", "content": "hi"}]}) is None


@pytest.mark.parametrize("script", [3, "text", [3], {"tool_calls": [3]}, {"tool_calls": [{"arguments": {}}]}])
def test_a_script_that_cannot_be_read_is_an_error(script: Any) -> None:
    with pytest.raises(BadScript):
        scripted_answer({"messages": conversation(0, script), "tools": TOOLS})


def test_a_marker_without_json_is_an_error() -> None:
    with pytest.raises(BadScript):
        scripted_answer({"messages": [{"role": "user", "content": "embedded_script: please"}]})


def test_a_script_may_give_a_call_its_id_as_engines_that_count_calls_do() -> None:
    script = {"tool_calls": [{"name": "ls", "arguments": "{}", "id": "functions.ls:0"}]}
    body = {"messages": conversation(0, script), "tools": TOOLS}
    assert scripted_answer(body) == ScriptedAnswer("", None, (("ls", "{}", "functions.ls:0"),))
