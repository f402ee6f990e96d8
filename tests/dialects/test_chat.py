"""Laws of the chat format."""

from __future__ import annotations

from collections.abc import Sequence

import orjson
import pytest

from gateway.core.fields import Json
from gateway.core.reply import Reply, ToolCall
from gateway.dialects.chat import Chat

CHAT = Chat()


def messages(*given: Json) -> Sequence[bytes]:
    return CHAT.script({"messages": list(given)}).messages


def read(*events: Json) -> Reply:
    reply = Reply()
    for event in events:
        CHAT.read(event, reply)
    return reply


def chunk(delta: Json, finish: str | None = None, index: int = 0) -> Json:
    return {"model": "m", "choices": [{"index": index, "delta": delta, "finish_reason": finish}]}


CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}


@pytest.mark.parametrize(
    "variant",
    [
        {"content": "", "role": "assistant", "tool_calls": [CALL]},
        {"role": "assistant", "content": None, "tool_calls": [CALL], "annotations": [], "id": "msg_1"},
        {"role": "assistant", "tool_calls": [CALL], "provider_specific_fields": {"refusal": None}, "audio": None},
        {"role": "assistant", "tool_calls": [CALL | {"function": {"arguments": '{"a":1}', "name": "f"}}]},
        {"role": "assistant", "content": [], "tool_calls": [CALL | {"index": 0}], "cache_control": {"type": "x"}},
    ],
)
def test_a_message_that_was_written_anew_is_the_same_message(variant: Json) -> None:
    assert messages(variant) == messages({"role": "assistant", "tool_calls": [CALL]})


@pytest.mark.parametrize(
    "other",
    [
        {"role": "user", "tool_calls": [CALL]},
        {"role": "assistant", "tool_calls": [CALL | {"id": "c2"}]},
        {"role": "assistant", "tool_calls": [CALL | {"function": {"name": "f", "arguments": '{"a":2}'}}]},
        {"role": "assistant", "tool_calls": [CALL, CALL]},
        {"role": "assistant", "content": "x", "tool_calls": [CALL]},
        {"role": "assistant", "reasoning": "x", "tool_calls": [CALL]},
    ],
)
def test_a_message_that_means_something_else_is_another(other: Json) -> None:
    assert messages(other) != messages({"role": "assistant", "tool_calls": [CALL]})


def test_both_names_of_reasoning_are_one() -> None:
    one = messages({"role": "assistant", "content": "x", "reasoning": "r"})
    assert messages({"role": "assistant", "content": "x", "reasoning_content": "r"}) == one


def test_leading_system_and_developer_messages_are_the_system_text() -> None:
    body = {
        "messages": [
            {"role": "system", "content": "a"},
            {"role": "developer", "content": [{"type": "text", "text": "b"}]},
            {"role": "user", "content": "hi"},
            {"role": "system", "content": "later"},
        ]
    }
    script = CHAT.script(body)
    assert script.system == b"a\nb"
    assert [orjson.loads(message)[0] for message in script.messages] == ["user", "system"]


def test_tools_keep_their_order_and_lose_what_is_volatile() -> None:
    schema = {"type": "object", "properties": {"z": {"default": None}, "a": {}}}
    tools = [
        {"type": "function", "function": {"name": "b", "strict": None, "parameters": schema}, "cache_control": {}},
        {"type": "function", "function": {"name": "a"}},
    ]
    script = CHAT.script({"messages": [], "tools": tools})
    assert script.tool_names == ("b", "a")
    assert script.offers_tools
    assert orjson.loads(script.tools[0]) == {"type": "function", "function": {"name": "b", "parameters": schema}}


def test_a_stream_is_folded_into_one_reply() -> None:
    reply = read(
        chunk({"role": "assistant", "content": ""}),
        chunk({"content": "Let "}),
        chunk({"content": "me see", "reasoning_content": "hmm"}),
        chunk({"tool_calls": [{"index": 0, "id": "c1", "function": {"name": "f", "arguments": ""}}]}),
        chunk({"tool_calls": [{"index": 1, "id": "c2", "function": {"name": "g", "arguments": '{"b"'}}]}),
        chunk({"tool_calls": [{"index": 0, "function": {"arguments": '{"a":1}'}}]}),
        chunk({"tool_calls": [{"index": 1, "function": {"arguments": ":2}"}}]}),
    )
    assert not reply.is_complete
    CHAT.read(chunk({}, "tool_calls"), reply)
    CHAT.read({"choices": [], "usage": {}}, reply)
    assert (reply.model, reply.text, reply.finish_reason, reply.is_complete) == (
        "m",
        "Let me see",
        "tool_calls",
        True,
    )
    assert reply.tool_calls == [ToolCall("c1", "f", '{"a":1}'), ToolCall("c2", "g", '{"b":2}')]


def test_a_whole_answer_is_read_like_a_stream() -> None:
    message = {"role": "assistant", "content": "x", "tool_calls": [CALL, CALL | {"id": "c2"}]}
    reply = read({"model": "m", "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]})
    assert (reply.text, reply.is_complete) == ("x", True)
    assert [call.id for call in reply.tool_calls] == ["c1", "c2"]


def test_further_choices_do_not_mix_into_the_first() -> None:
    reply = read(chunk({"content": "a"}), chunk({"content": "b"}, "stop", index=1))
    assert (reply.text, reply.is_complete) == ("a", False)


def test_a_nonsense_index_costs_no_memory() -> None:
    assert read(chunk({"tool_calls": [{"index": 10**9, "id": "c"}, {"index": -1}]})).tool_calls == []


@pytest.mark.parametrize(
    ("body", "wants", "asks"),
    [
        ({"stream": True}, False, {"stream_options": {"include_usage": True}}),
        ({"stream": True, "stream_options": {"include_usage": True}}, True, {}),
        (
            {"stream": True, "stream_options": {"include_usage": False, "x": 1}},
            False,
            {"stream_options": {"include_usage": True, "x": 1}},
        ),
        (
            {"stream": True, "stream_options": {"continuous_usage_stats": True}},
            False,
            {"stream_options": {"include_usage": True}},
        ),
        ({}, False, {}),
    ],
)
def test_usage_is_asked_for_only_in_streams_that_lack_it(body: Json, wants: bool, asks: Json) -> None:
    assert CHAT.wants_usage(body) is wants
    assert CHAT.asking_for_usage(body) == asks


def test_only_the_extra_event_is_the_asked_usage() -> None:
    assert CHAT.is_asked_usage({"choices": [], "usage": {"prompt_tokens": 1}})
    assert not CHAT.is_asked_usage(chunk({}) | {"usage": {"prompt_tokens": 1}})
    assert not CHAT.is_asked_usage({"choices": [], "prompt_filter_results": []})


@pytest.mark.parametrize(
    ("body", "bound"),
    [
        ({}, None),
        ({"max_tokens": None}, None),
        ({"max_tokens": 7}, 7),
        ({"max_tokens": 7.0}, 7),
        ({"max_completion_tokens": "7"}, 7),
        ({"max_tokens": 9, "max_completion_tokens": 2}, 9),
        ({"max_tokens": 2, "max_completion_tokens": 9}, 9),
        ({"max_tokens": -1}, None),
        ({"max_tokens": 0, "max_completion_tokens": 9}, None),
        ({"max_tokens": [7], "max_completion_tokens": 9}, None),
    ],
)
def test_the_output_bound_is_the_largest_that_an_engine_may_read(body: Json, bound: int | None) -> None:
    assert CHAT.max_tokens(body) == bound
