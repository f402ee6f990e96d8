"""Laws of reading a chat completion for a provider's dialect."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.engines.providers.translation import (
    ChatTurn,
    Image,
    ToolResult,
    ToolUse,
    Untranslatable,
    read_chat,
)


def user(content: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}]}


def test_leading_system_messages_stand_apart_and_later_ones_keep_their_place() -> None:
    chat = read_chat(
        {
            "messages": [
                {"role": "system", "content": "a"},
                {"role": "developer", "content": [{"type": "text", "text": "b"}]},
                {"role": "user", "content": "c"},
                {"role": "system", "content": "d"},
            ]
        }
    )
    assert (chat.system, chat.turns) == (("a", "b"), [ChatTurn("user", ["c", "d"])])


def test_results_of_tools_are_the_users_and_stand_together() -> None:
    calls = [
        {"id": n, "type": "function", "function": {"name": "f", "arguments": f'{{"n": {n}}}'}} for n in ("1", "2")
    ]
    results = [{"role": "tool", "tool_call_id": n, "content": n * 2} for n in ("1", "2")]
    chat = read_chat(
        {
            "messages": [
                {"role": "user", "content": "go"},
                {"role": "assistant", "content": None, "tool_calls": calls},
                *results,
                {"role": "user", "content": "on"},
            ]
        }
    )
    assert chat.turns == [
        ChatTurn("user", ["go"]),
        ChatTurn("assistant", [ToolUse("1", "f", {"n": 1}), ToolUse("2", "f", {"n": 2})]),
        ChatTurn("user", [ToolResult("1", ("11",)), ToolResult("2", ("22",)), "on"]),
    ]
    assert chat.goes_on


@pytest.mark.parametrize(
    ("arguments", "read_as"),
    [("", {}), ("{}", {}), ('{"a": 1}', {"a": 1}), ("[1]", {"value": [1]}), ("no json", {"text": "no json"})],
)
def test_arguments_become_an_object_whatever_the_model_wrote(arguments: str, read_as: Any) -> None:
    call = {"id": "1", "function": {"name": "f", "arguments": arguments}}
    chat = read_chat({"messages": [{"role": "assistant", "tool_calls": [call]}]})
    assert chat.turns == [ChatTurn("assistant", [ToolUse("1", "f", read_as)])]


def test_images_are_data_or_addresses() -> None:
    parts = [
        {"type": "image_url", "image_url": {"url": url}} for url in ("data:image/png;base64,QUJD", "https://x")
    ]
    assert read_chat(user(parts)).turns == [ChatTurn("user", [Image("image/png", "QUJD"), Image("", "https://x")])]


@pytest.mark.parametrize("message", [{"role": "assistant", "content": ""}, {"role": "user", "content": []}])
def test_a_message_without_content_is_left_out(message: dict[str, Any]) -> None:
    assert read_chat({"messages": [{"role": "user", "content": "a"}, message]}).turns == [ChatTurn("user", ["a"])]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (user("a") | {"n": 2}, "n"),
        (user("a") | {"logprobs": True}, "logprobs"),
        (user("a") | {"response_format": {"type": "json_object"}}, "response_format"),
        (user("a") | {"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools[0]"),
        (user([{"type": "input_audio"}]), "messages[0].content[0]"),
        ({"messages": [{"role": "system", "content": [{"type": "image_url"}]}]}, "messages[0]"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": 1}}]}]},
            "messages[0].tool_calls[0].function.arguments",
        ),
    ],
)
def test_a_field_that_no_provider_has_is_named(body: dict[str, Any], param: str) -> None:
    with pytest.raises(Untranslatable) as error:
        read_chat(body)
    assert error.value.param == param


@pytest.mark.parametrize(
    ("given", "choice"),
    [
        (None, "auto"),
        ("none", "none"),
        ("required", "required"),
        ({"type": "function", "function": {"name": "f"}}, "=f"),
    ],
)
def test_the_choice_of_tools_is_kept(given: Any, choice: str) -> None:
    assert read_chat(user("a") | {"tool_choice": given}).tool_choice == choice
