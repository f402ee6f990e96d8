import json
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from gateway.embedded.jobs import Job, job_from
from gateway.embedded.scripts import Rule, rules_from

SCHEMA = {
    "type": "object",
    "properties": {"file": {"type": "string"}, "line": {"type": "integer", "minimum": 1}},
    "required": ["file", "line"],
}
TOOLS = [
    {"type": "function", "function": {"name": "blame", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "ls", "parameters": {"type": "object"}}},
]


def job(*rules: Rule, **body: Any) -> Job:
    return job_from({"messages": [{"role": "user", "content": "hello"}], **body}, True, 16_000, rules=rules)


def text(job: Job, index: int = 0) -> str:
    return job.answers[index].text()


def calls(job: Job) -> list[tuple[str, Any]]:
    answer = job.answers[0]
    names = [delta.call_name for delta in answer.deltas if delta.call_name is not None]
    return [(name, json.loads(answer.text(call_index=index))) for index, name in enumerate(names)]


@pytest.mark.parametrize(
    "asked",
    [
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}},
        {"structured_outputs": {"json": SCHEMA}},
        {"structured_outputs": {"json": json.dumps(SCHEMA)}},
        {"guided_json": SCHEMA},
    ],
)
def test_each_way_to_ask_for_a_schema_is_kept_to(asked: Any) -> None:
    made = job(**asked)
    assert Draft202012Validator(SCHEMA).is_valid(json.loads(text(made)))
    assert made.answers[0].finish_reason == "stop"
    assert text(made) == text(job(**asked))


def test_json_mode_choices_and_patterns_are_kept_to() -> None:
    assert isinstance(json.loads(text(job(response_format={"type": "json_object"}))), dict)
    assert text(job(structured_outputs={"choice": ["yes", "no"]})) in ("yes", "no")
    assert text(job(guided_choice=["yes"])) == "yes"
    number = text(job(guided_regex=r"\d{3}"))
    assert len(number) == 3
    assert number.isdecimal()
    assert text(job(response_format={"type": "text"})) == text(job())


def test_a_schema_that_does_not_fit_the_bound_is_cut_as_any_answer() -> None:
    answer = job(guided_json=SCHEMA, max_tokens=3).answers[0]
    assert (len(answer.tokens), answer.finish_reason) == (3, "length")


def test_several_answers_differ_and_the_first_is_that_of_a_single_one() -> None:
    three = job(n=3)
    assert len({text(three, index) for index in range(3)}) == 3
    assert text(three) == text(job())


def test_a_seed_changes_the_answer_and_repeats_it() -> None:
    assert text(job(seed=1)) == text(job(seed=1)) != text(job(seed=2))


@pytest.mark.parametrize("shown", [False, True])
def test_an_answer_ends_at_the_first_stop_text(shown: bool) -> None:
    body = {"embedded_script": {"content": "one two three four"}, "include_stop_str_in_output": shown}
    answer = job(stop=["four", " three", "five"], **body).answers[0]
    assert answer.text() == ("one two three" if shown else "one two")
    assert (answer.finish_reason, answer.stop_text) == ("stop", " three")
    assert b"".join(answer.tokens).startswith(b"one two three")
    assert not job(stop="five", **body).answers[0].stop_text


def test_tool_choice_required_calls_one_tool_by_its_schema() -> None:
    made = job(tools=TOOLS, tool_choice="required")
    assert made.answers[0].finish_reason == "tool_calls"
    ((name, arguments),) = calls(made)
    parameters: Any = {tool["function"]["name"]: tool["function"]["parameters"] for tool in TOOLS}  # type: ignore[index]
    assert Draft202012Validator(parameters[name]).is_valid(arguments)


def test_a_named_tool_is_called_and_none_forbids_all() -> None:
    choice = {"type": "function", "function": {"name": "blame"}}
    ((name, arguments),) = calls(job(tools=TOOLS, tool_choice=choice))
    assert name == "blame"
    assert Draft202012Validator(SCHEMA).is_valid(arguments)
    script = {"tool_calls": [{"name": "ls"}]}
    assert calls(job(tools=TOOLS, embedded_script=script)) == [("ls", {})]
    assert calls(job(tools=TOOLS, embedded_script=script, tool_choice="none")) == []
    assert [name for name, _ in calls(job(tools=TOOLS, embedded_script=script, tool_choice=choice))] == ["blame"]


def test_with_auto_the_engine_calls_tools_only_where_a_script_says_so() -> None:
    assert calls(job(tools=TOOLS)) == []
    any_tool = rules_from([{"answers": [{"tool_calls": "any"}]}])
    assert len(calls(job(*any_tool, tools=TOOLS))) == 1
    assert calls(job(*any_tool)) == []


def test_the_last_answer_of_an_agent_keeps_to_its_schema_where_the_script_wants_tools() -> None:
    """The last call of a batch agent forbids tools and asks for its schema."""
    made = job(
        *rules_from([{"repeats": True, "answers": [{"tool_calls": "any"}]}]),
        tools=TOOLS,
        tool_choice="none",
        guided_json=SCHEMA,
    )
    assert Draft202012Validator(SCHEMA).is_valid(json.loads(text(made)))
