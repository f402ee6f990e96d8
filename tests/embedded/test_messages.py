"""`/v1/messages` of the embedded engine, read by Anthropic's SDK."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import anthropic
import pytest

from gateway.config.settings import Embedded
from gateway.embedded.server import InProcessEngine

READ = {
    "name": "Read",
    "input_schema": {"type": "object", "properties": {"file": {"type": "string"}}, "required": ["file"]},
}
SCRIPT = [
    {"content": "Let me look.", "tool_calls": [{"name": "Read", "arguments": {"file": "é.py"}}]},
    {"content": "Done."},
]
HELLO = {"role": "user", "content": "hello"}
ASKED: Any = {
    "model": "embedded",
    "max_tokens": 400,
    "system": [{"type": "text", "text": "Be brief."}],
    "messages": [HELLO],
    "tools": [READ, {"type": "web_search_20250305", "name": "web_search"}],
}
EXTRA: Any = {"extra_body": {"embedded_script": SCRIPT}}


@pytest.fixture
async def sdk() -> AsyncIterator[anthropic.AsyncAnthropic]:
    engine = InProcessEngine(Embedded(speed=1000))
    base_url = f"http://127.0.0.1:{await engine.start()}"
    async with anthropic.AsyncAnthropic(base_url=base_url, api_key="none", max_retries=0) as client:
        yield client
    await engine.stop()


async def test_a_stream_ends_in_what_the_whole_answer_says(sdk: anthropic.AsyncAnthropic) -> None:
    whole = await sdk.messages.create(**ASKED, **EXTRA)
    async with sdk.messages.stream(**ASKED, **EXTRA) as stream:
        streamed = await stream.get_final_message()
    for message in (whole, streamed):
        content: Any = message.content
        said, use = content
        assert (said.type, said.text) == ("text", "Let me look.")
        assert (use.type, use.name, use.input) == ("tool_use", "Read", {"file": "é.py"})
        assert message.stop_reason == "tool_use"
    assert streamed.usage.output_tokens == whole.usage.output_tokens > 10
    assert (whole.usage.cache_read_input_tokens, streamed.usage.cache_read_input_tokens) != (0, 0)


async def test_the_next_turn_finds_the_answer_in_the_cache_and_goes_on_with_the_script(
    sdk: anthropic.AsyncAnthropic,
) -> None:
    first = await sdk.messages.create(**ASKED, **EXTRA)
    use = first.content[1]
    assert use.type == "tool_use"
    result = {"type": "tool_result", "tool_use_id": use.id, "content": [{"type": "text", "text": "a b c"}]}
    history = [
        HELLO,
        {"role": "assistant", "content": [block.to_dict() for block in first.content]},
        {"role": "user", "content": [result, {"type": "text", "text": "Go on."}]},
    ]
    second = await sdk.messages.create(**(ASKED | {"messages": history}), **EXTRA)
    assert [block.to_dict()["text"] for block in second.content] == ["Done."]
    assert second.stop_reason == "end_turn"
    known = first.usage.input_tokens + first.usage.output_tokens - 1
    assert second.usage.cache_read_input_tokens == known // 16 * 16


async def test_bounds_stops_tool_choices_and_schemas_hold(sdk: anthropic.AsyncAnthropic) -> None:
    cut = await sdk.messages.create(**(ASKED | {"max_tokens": 2}))
    assert cut.stop_reason == "max_tokens"
    ended = await sdk.messages.create(**ASKED, stop_sequences=[" look"], **EXTRA)
    assert (ended.stop_reason, ended.stop_sequence) == ("stop_sequence", " look")
    choices: list[Any] = [{"type": "any"}, {"type": "tool", "name": "Read"}]
    for choice in choices:
        called = await sdk.messages.create(**(ASKED | {"tools": [READ]}), tool_choice=choice)
        assert isinstance(called.content[-1].to_dict()["input"], dict)
    plain = await sdk.messages.create(**ASKED, tool_choice={"type": "none"}, **EXTRA)
    assert [block.type for block in plain.content] == ["text"]
    wanted = {"output_config": {"format": {"type": "json_schema", "schema": READ["input_schema"]}}}
    kept = await sdk.messages.create(**ASKED, extra_body=wanted)
    assert json.loads(str(kept.content[0].to_dict()["text"])).keys() == {"file"}


async def test_tokens_are_counted_as_a_prompt_costs_them(sdk: anthropic.AsyncAnthropic) -> None:
    counted = await sdk.messages.count_tokens(**{key: ASKED[key] for key in ("model", "system", "messages")})
    whole = await sdk.messages.create(**{key: value for key, value in ASKED.items() if key != "tools"})
    assert counted.input_tokens == whole.usage.input_tokens
