"""`/v1/responses` of the embedded engine, read by OpenAI's SDK."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest

from gateway.config.settings import Embedded
from gateway.embedded.responses import chat_of_response
from gateway.embedded.server import InProcessEngine
from policies.recognition.prompts import SPEAKERS

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
LS = {"type": "function", "name": "ls", "parameters": {"type": "object"}}
PATCH = {"type": "custom", "name": "patch"}
SPAWN = {"type": "namespace", "name": "agents", "tools": [{"type": "function", "name": "spawn"}]}
SCRIPT = [
    {
        "content": "Let me look.",
        "tool_calls": [
            {"name": "ls", "arguments": {"path": "é"}},
            {"name": "patch", "arguments": {"input": "*** Begin"}},
            {"name": "agents__spawn", "arguments": {}},
        ],
    },
    {"content": "Done."},
]
ASKED: Any = {"model": "embedded", "input": "hello", "tools": [LS, PATCH, SPAWN, {"type": "web_search"}]}
EXTRA: Any = {"extra_body": {"embedded_script": SCRIPT}}


@pytest.fixture
async def sdk() -> AsyncIterator[openai.AsyncOpenAI]:
    engine = InProcessEngine(Embedded(speed=1000))
    base_url = f"http://127.0.0.1:{await engine.start()}/v1"
    async with openai.AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0) as client:
        yield client
    await engine.stop()


def shape(item: Any) -> Any:
    said = item.to_dict()
    return {key: said[key] for key in ("type", "name", "arguments", "input", "namespace") if key in said}


async def test_a_whole_answer_has_text_and_calls_of_each_kind(sdk: openai.AsyncOpenAI) -> None:
    response = await sdk.responses.create(**ASKED, **EXTRA)
    assert (response.status, response.output_text) == ("completed", "Let me look.")
    assert list(map(shape, response.output)) == [
        {"type": "message"},
        {"type": "function_call", "name": "ls", "arguments": '{"path":"é"}'},
        {"type": "custom_tool_call", "name": "patch", "input": "*** Begin"},
        {"type": "function_call", "name": "spawn", "arguments": "{}", "namespace": "agents"},
    ]
    assert response.usage is not None
    assert response.usage.output_tokens > 10


async def test_a_stream_ends_in_what_the_whole_answer_says(sdk: openai.AsyncOpenAI) -> None:
    whole = await sdk.responses.create(**ASKED, **EXTRA)
    async with sdk.responses.stream(**ASKED, **EXTRA) as stream:
        events = [event async for event in stream]
        final = await stream.get_final_response()
    assert list(map(shape, final.output)) == list(map(shape, whole.output))
    assert final.output_text == whole.output_text
    kinds = [event.type for event in events]
    assert kinds[:3] == ["response.created", "response.in_progress", "response.output_item.added"]
    assert kinds[-1] == "response.completed"
    assert kinds.count("response.output_item.done") == 4
    numbers = [event.sequence_number for event in events if hasattr(event, "sequence_number")]
    assert numbers == sorted(numbers)


async def test_the_next_turn_finds_the_answer_in_the_cache_and_goes_on_with_the_script(
    sdk: openai.AsyncOpenAI,
) -> None:
    first = await sdk.responses.create(**ASKED, **EXTRA)
    outputs = [
        {"type": f"{item.type}_output", "call_id": item.call_id, "output": "a b c"}
        for item in first.output
        if item.type in ("function_call", "custom_tool_call")
    ]
    history: Any = [{"role": "user", "content": "hello"}, *(item.to_dict() for item in first.output), *outputs]
    second = await sdk.responses.create(**(ASKED | {"input": history}), **EXTRA)
    assert second.output_text == "Done."
    assert first.usage is not None
    assert second.usage is not None
    known = first.usage.total_tokens - 1
    assert second.usage.input_tokens_details.cached_tokens == known // 16 * 16


async def test_bounds_schemas_and_tool_choices_hold(sdk: openai.AsyncOpenAI) -> None:
    cut = await sdk.responses.create(model="embedded", input="hello", max_output_tokens=3)
    assert (cut.status, cut.incomplete_details and cut.incomplete_details.reason) == (
        "incomplete",
        "max_output_tokens",
    )
    wanted: Any = {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA, "strict": True}}
    kept = await sdk.responses.create(model="embedded", input="hello", text=wanted)
    assert isinstance(json.loads(kept.output_text)["n"], int)
    chosen = await sdk.responses.create(**ASKED, tool_choice={"type": "function", "name": "ls"})
    assert [item.type for item in chosen.output] == ["function_call"]


async def test_instructions_and_developer_messages_are_part_of_the_prompt(sdk: openai.AsyncOpenAI) -> None:
    plain = await sdk.responses.create(model="embedded", input="hello")
    longer = await sdk.responses.create(model="embedded", instructions="Be brief. " * 9, input="hello")
    assert plain.usage is not None
    assert longer.usage is not None
    assert longer.usage.input_tokens > plain.usage.input_tokens + 20


@pytest.mark.parametrize("kind", sorted({*SPEAKERS} - {"assistant", "reasoning"}))
def test_each_item_of_a_model_is_part_of_its_answer(kind: str) -> None:
    item = {"type": kind, "call_id": "c", "name": "ls", "arguments": "{}", "input": "x", "action": {"query": "q"}}
    result = {"type": "function_call_output", "call_id": "c", "output": "a file"}
    said = {"role": "assistant", "content": "I look."}
    chat = chat_of_response({"input": [{"role": "user", "content": "go"}, said, item, result]})
    assert [message["role"] for message in chat["messages"]] == ["user", "assistant", "tool"]
