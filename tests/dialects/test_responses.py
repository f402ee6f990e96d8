"""Laws of the responses format."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from gateway.core.fields import Json
from gateway.core.reply import Reply, ToolCall
from gateway.dialects.base import Script
from gateway.dialects.responses import Responses, ResponsesAnswer
from gateway.dialects.rounds import End

RESPONSES = Responses()
CALL = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"a": 1}'}
MESSAGE = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "hi"}]}


def script(given: Any, **more: Any) -> Script:
    return RESPONSES.script({"input": given} | more)


def test_a_text_is_one_user_message() -> None:
    assert script("hi") == script([{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}])


def test_instructions_and_leading_developer_messages_are_the_system_text() -> None:
    items = [{"type": "message", "role": "developer", "content": "b"}, {"role": "user", "content": "c"}]
    found = script(items, instructions="a")
    assert found.system == b"a\nb"
    assert found.messages == (b'["user",{"content":"c"}]',)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (CALL, CALL | {"id": "fc_1", "status": "completed", "arguments": '{"a":1}', "namespace": None}),
        (MESSAGE, MESSAGE | {"id": "msg_1", "status": "completed"}),
        (MESSAGE, {"role": "assistant", "content": [{"type": "output_text", "text": "hi", "annotations": []}]}),
        (
            {"type": "function_call_output", "call_id": "c1", "output": "x"},
            {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "x"}]},
        ),
        (
            {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "x"}]},
            {
                "type": "reasoning",
                "id": "rs_2",
                "summary": [{"type": "summary_text", "text": "x"}],
                "content": None,
            },
        ),
    ],
)
def test_an_item_that_was_written_anew_is_the_same_item(one: Json, other: Json) -> None:
    assert script([one]).messages == script([other]).messages != ()


def test_ids_of_calls_separate_siblings() -> None:
    assert script([CALL]).messages != script([CALL | {"call_id": "c2"}]).messages


def test_an_empty_reasoning_item_says_nothing() -> None:
    assert script([{"type": "reasoning", "id": "rs_1", "summary": [], "content": []}]).messages == ()


def test_references_keep_their_id() -> None:
    one, two = ({"type": "item_reference", "id": id_} for id_ in ("a", "b"))
    assert script([one]).messages != script([two]).messages


def test_tools_of_every_type_are_kept() -> None:
    tools = [
        {"type": "function", "name": "f", "parameters": {}, "strict": False},
        {"type": "namespace", "name": "agents", "tools": [{"type": "function", "name": "spawn_agent"}]},
        {"type": "web_search", "external_web_access": False},
    ]
    found = script("hi", tools=tools)
    assert found.tool_names == ("f", "spawn_agent", "web_search")
    assert [orjson.loads(tool) for tool in found.tools] == tools


def read(*events: Json) -> Reply:
    reply = Reply()
    for event in events:
        RESPONSES.read(event, reply)
    return reply


COMPLETED: Json = {"object": "response", "model": "m", "status": "completed", "output": [MESSAGE, CALL]}


def test_a_stream_is_folded_into_one_reply() -> None:
    events: list[Json] = [
        {"type": "response.created", "response": {"model": "m", "status": "in_progress"}},
        {"type": "response.output_text.delta", "delta": "h"},
        {"type": "response.output_text.delta", "delta": "i"},
        {"type": "response.output_item.done", "item": MESSAGE},
        {"type": "response.function_call_arguments.delta", "delta": '{"a": 1}'},
        {"type": "response.output_item.done", "item": CALL},
    ]
    assert not read(*events).is_complete
    reply = read(*events, {"type": "response.completed", "response": COMPLETED})
    assert reply == read(COMPLETED)
    assert (reply.model, reply.text, reply.finish_reason, reply.is_complete) == ("m", "hi", "completed", True)
    assert reply.tool_calls == [ToolCall("c1", "f", '{"a": 1}')]


def test_an_incomplete_answer_was_ended_by_the_engine_and_says_why() -> None:
    incomplete = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
    reply = read({"type": "response.incomplete", "response": incomplete})
    assert (reply.finish_reason, reply.is_complete) == ("max_output_tokens", True)


def test_a_predecessor_is_named() -> None:
    assert RESPONSES.stateful_id({"previous_response_id": "resp_1"}) == "resp_1"
    assert RESPONSES.stateful_id({"previous_response_id": None}) is None


def test_usage_is_always_there() -> None:
    assert RESPONSES.wants_usage({})
    assert RESPONSES.asking_for_usage({"stream": True}) == {}
    assert not RESPONSES.is_asked_usage({"choices": [], "usage": {}})


def test_a_round_with_a_custom_call_of_the_client_ends_for_the_client() -> None:
    answer = ResponsesAnswer(lambda name: name == "search", lambda call: None)
    round_ = answer.round(1, must_end=False)
    search = {"type": "function_call", "call_id": "c1", "name": "search", "arguments": "{}"}
    patch = {"type": "custom_tool_call", "call_id": "c2", "name": "apply_patch", "input": "*** Begin"}
    round_.read({"id": "resp_1", "status": "completed", "output": [search, patch]})
    assert round_.end is End.MIXED
    assert round_.given() == [patch]
