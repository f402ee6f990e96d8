"""Laws of the messages format."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from gateway.core.fields import Json
from gateway.core.reply import Reply, ToolCall
from gateway.dialects import BY_PATH
from gateway.dialects.messages import Messages

MESSAGES = Messages()
CACHED = {"cache_control": {"type": "ephemeral"}}
USE = {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": 1}}


def messages(role: str, content: Any) -> Sequence[bytes]:
    return MESSAGES.script({"messages": [{"role": role, "content": content}]}).messages


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("hi", [{"type": "text", "text": "hi"} | CACHED]),
        ([USE], [USE | CACHED]),
        (
            [{"type": "tool_result", "tool_use_id": "t1", "content": "x"}],
            [{"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "x"}]} | CACHED],
        ),
        (
            [{"type": "thinking", "thinking": "x", "signature": "s1"}],
            [{"type": "thinking", "thinking": "x", "signature": "s2"}],
        ),
    ],
)
def test_a_message_that_was_written_anew_is_the_same_message(one: Any, other: Any) -> None:
    assert messages("user", one) == messages("user", other)


def test_ids_of_calls_separate_siblings() -> None:
    assert messages("assistant", [USE]) != messages("assistant", [USE | {"id": "t2"}])


def test_the_system_text_is_without_claude_codes_billing_header() -> None:
    def system(value: Any) -> bytes:
        return MESSAGES.script({"messages": [], "system": value}).system

    header = {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1; cch=fa690;"}
    assert system([header, {"type": "text", "text": "Be brief."} | CACHED]) == system("Be brief.") == b"Be brief."


def test_tools_are_named() -> None:
    tools = [{"name": "f", "input_schema": {"type": "object"}} | CACHED]
    script = MESSAGES.script({"messages": [], "tools": tools})
    assert (script.tool_names, script.offers_tools) == (("f",), True)
    assert b"cache_control" not in script.tools[0]


def read(*events: Json) -> Reply:
    reply = Reply()
    for event in events:
        MESSAGES.read(event, reply)
    return reply


def test_a_stream_is_folded_like_a_whole_answer() -> None:
    events: list[Json] = [
        {"type": "message_start", "message": {"model": "m", "content": []}},
        {"type": "ping"},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "hi"}},
        {"type": "content_block_stop", "index": 0},
        {"type": "content_block_start", "index": 1, "content_block": USE | {"input": {}}},
        {
            "type": "content_block_delta",
            "index": 1,
            "delta": {"type": "input_json_delta", "partial_json": '{"a":'},
        },
        {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": "1}"}},
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}},
    ]
    assert not read(*events).is_complete
    reply = read(*events, {"type": "message_stop"})
    assert reply.tool_calls == [ToolCall("t1", "f", '{"a":1}')]
    content = [{"type": "text", "text": "hi"}, USE]
    whole = {"type": "message", "model": "m", "content": content, "stop_reason": "tool_use"}
    assert reply == read(whole)


def test_counting_tokens_is_no_turn_but_fails_in_the_same_words() -> None:
    dialect = BY_PATH["/v1/messages/count_tokens"]
    assert not dialect.is_conversation
    failure = dialect.check({})
    assert failure is not None
    assert dialect.error_body(failure) == MESSAGES.error_body(failure)


def test_the_keep_alive_is_a_ping() -> None:
    assert MESSAGES.opening("id", "m", 1, {}).keep_alive() == b'event: ping\ndata: {"type":"ping"}\n\n'
