from __future__ import annotations

from typing import Any

import orjson
import pytest

from batch_agent.calls import events_of, joined, reply_of
from batch_agent.results import BadAnswer, ConnectError, HTTPStatusError
from tool_runtime.agent_loop import calls_of, text_in


def answer(**message: Any) -> dict[str, Any]:
    return {"choices": [{"message": {"role": "assistant"} | message, "finish_reason": "stop"}]}


def test_texts_and_arguments_go_into_the_history_as_the_model_wrote_them() -> None:
    function = {"name": "f", "arguments": '{ "a":1,  "b" : "\\u00e9é" }'}
    given = {
        "content": "é\n ",
        "reasoning": "r",
        "tool_calls": [{"id": "c1", "type": "function", "function": function}],
    }
    reply = reply_of(answer(**given, refusal=None, annotations=None, provider_specific_fields={"x": 1}))
    assert reply.message == {"role": "assistant"} | given
    assert calls_of(reply.message)[0].arguments == function["arguments"]


@pytest.mark.parametrize("content", [None, "", []])
def test_an_empty_answer_is_an_empty_text(content: Any) -> None:
    assert text_in(reply_of(answer(content=content, tool_calls=None)).message) == ""


def test_content_may_be_a_list_of_parts() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert text_in(reply_of(answer(content=parts)).message) == "ab"


def test_arguments_that_are_an_object_and_calls_without_an_id_are_understood() -> None:
    calls = [{"function": {"name": "f", "arguments": {"a": 1}}}, {"id": "", "function": {"name": "g"}}]
    reply = reply_of(answer(content=None, tool_calls=calls))
    assert [(call.id, call.arguments) for call in calls_of(reply.message)] == [
        ("call_0", '{"a":1}'),
        ("call_1", ""),
    ]
    assert [call["id"] for call in reply.message["tool_calls"]] == ["call_0", "call_1"]


@pytest.mark.parametrize("body", [{}, {"choices": []}, {"choices": [{"message": None}]}, {"choices": [{}]}])
def test_anything_else_is_a_bad_answer(body: dict[str, Any]) -> None:
    with pytest.raises(BadAnswer):
        reply_of(body)


def test_usage_may_lack_anything() -> None:
    usage = {"prompt_tokens": 5, "completion_tokens": None, "prompt_tokens_details": None}
    assert reply_of(answer(content="a") | {"usage": usage}).usage.total_tokens == 5


def part(index: int, id_: str | None, **function: str) -> dict[str, Any]:
    return {"delta": {"tool_calls": [{"index": index, "function": function} | ({"id": id_} if id_ else {})]}}


def stream_of(*choices: dict[str, Any]) -> bytes:
    return b"".join(b"data: " + orjson.dumps({"choices": [choice]}) + b"\n\n" for choice in choices)


def test_a_streamed_answer_is_the_plain_one() -> None:
    stream = stream_of(
        {"delta": {"role": "assistant"}},
        part(0, "c1", name="f", arguments=""),
        part(1, "c2", name="g", arguments="{}"),
        part(0, None, arguments='{"a":'),
        part(0, None, arguments=" 1}"),
        {"delta": {}, "finish_reason": "tool_calls"},
    )
    reply = reply_of(joined(events_of(stream + b'data: {"usage":{"prompt_tokens":3}}\n\ndata: [DONE]\n\n')))
    calls = [(call.id, call.name, call.arguments) for call in calls_of(reply.message)]
    assert calls == [("c1", "f", '{"a": 1}'), ("c2", "g", "{}")]
    assert (reply.finish_reason, reply.usage.prompt_tokens) == ("tool_calls", 3)


def test_a_stream_without_its_end_is_no_answer() -> None:
    with pytest.raises(ConnectError):
        joined(events_of(b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'))


def test_an_error_in_a_stream_is_one() -> None:
    with pytest.raises(HTTPStatusError, match="engine failed"):
        joined(events_of(b'data: {"error":{"message":"engine failed"}}\n\n'))
