import json
from pathlib import Path
from typing import Any

import pytest

from gateway.core.errors import ConfigError
from gateway.embedded import scripts
from gateway.embedded.answer import ScriptedAnswer
from gateway.embedded.jobs import offered_in
from gateway.embedded.scripts import BadScript, OfferedTool, Rule, rules_from, rules_in

TOOLS = [{"type": "function", "function": {"name": "ls"}}]
CALL = {"name": "ls", "arguments": {"path": "."}}
LISTING = ScriptedAnswer("", None, (("ls", '{"path":"."}', None),))
DONE = ScriptedAnswer("done", None, ())


def scripted_answer(body: dict[str, Any], *rules: Rule) -> ScriptedAnswer | None:
    return scripts.scripted_answer(body, offered_in(body), rules)


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


def test_arguments_that_a_script_leaves_out_follow_the_schema_of_the_tool() -> None:
    body = {"messages": conversation(0, {"tool_calls": [{"name": "ls"}]}), "tools": TOOLS}
    assert scripted_answer(body) == ScriptedAnswer("", None, (("ls", None, None),))


def test_the_argument_of_a_custom_tool_is_its_text() -> None:
    body = {"messages": conversation(0, {"tool_calls": [{"name": "patch", "arguments": {"input": "*** a"}}]})}
    offered = {"patch": OfferedTool("patch", is_custom=True)}
    assert scripts.scripted_answer(body, offered) == ScriptedAnswer("", None, (("patch", "*** a", None),))


# ---- rules

REVIEW = {
    "match": r"Review (\S+) for (?P<fault>\w+)",
    "answers": [
        {"tool_calls": [{"name": "ls", "arguments": {"path": "{1}", "deep": ["{fault}", "{other}"]}}]},
        {"content": {"file": "{1}", "bugs": []}},
    ],
}


def turns(num_answers: int, task: str = "Review a.py for bugs.") -> dict[str, Any]:
    answers = [{"role": "assistant", "content": "..."}, {"role": "tool", "content": "..."}] * num_answers
    return {"messages": [{"role": "user", "content": task}, *answers], "tools": TOOLS}


def test_a_rule_answers_turn_by_turn_with_the_parts_of_its_match() -> None:
    rules = rules_from([REVIEW])
    arguments = '{"path":"a.py","deep":["bugs","{other}"]}'
    assert scripted_answer(turns(0), *rules) == ScriptedAnswer("", None, (("ls", arguments, None),))
    assert scripted_answer(turns(1), *rules) == ScriptedAnswer('{"file":"a.py","bugs":[]}', None, ())
    assert scripted_answer(turns(2), *rules) is None
    assert scripted_answer(turns(0, "Hello"), *rules) is None


def test_the_first_rule_that_fits_answers_and_a_script_in_the_prompt_wins() -> None:
    rules = rules_from([{"offers": "bash", "answers": [{"content": "no"}]}, {"answers": [{"content": "yes"}]}])
    assert scripted_answer(turns(0), *rules) == ScriptedAnswer("yes", None, ())
    assert scripted_answer({"messages": conversation(0, {"content": "own"})}, *rules) == ScriptedAnswer(
        "own", None, ()
    )


def test_a_rule_can_repeat_and_can_call_any_tool() -> None:
    rules = rules_from([{"repeats": True, "answers": [{"tool_calls": "any"}, {"content": "done"}]}])
    assert scripted_answer(turns(2), *rules) == ScriptedAnswer("", None, (), calls_any_tool=True)
    assert scripted_answer(turns(3), *rules) == ScriptedAnswer("done", None, ())


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ({}, "list of rules"),
        ([3], "rule 1"),
        ([{"answers": []}], "needs `answers`"),
        ([{"answers": [{"text": "x"}]}], "content, output_tokens, tool_calls"),
        ([{"when": "x", "answers": [{}]}], "answers, match, offers, repeats"),
        ([{"match": "(", "answers": [{}]}], "no pattern"),
        ([{"answers": [{"tool_calls": ["ls"]}]}], "objects with a name"),
    ],
)
def test_rules_that_cannot_be_read_say_which_and_why(document: Any, says: str) -> None:
    with pytest.raises(BadScript, match=says):
        rules_from(document)


def test_a_file_of_rules_is_yaml_or_json_and_a_bad_one_is_an_error_of_the_configuration(tmp_path: Path) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text("- match: hi\n  answers: [{content: ho}]\n")
    assert scripted_answer(turns(0, "hi"), *rules_in(path)) == ScriptedAnswer("ho", None, ())
    path.write_text(json.dumps([REVIEW]))
    assert len(rules_in(path)) == 1
    for text in ("{", "[3]"):
        path.write_text(text)
        with pytest.raises(ConfigError, match=r"rules\.yaml"):
            rules_in(path)
    with pytest.raises(ConfigError, match="missing"):
        rules_in(tmp_path / "missing")
