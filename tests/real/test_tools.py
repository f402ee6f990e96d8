"""Tools of the gateway in answers of real engines, read by the official SDK and by a real agent."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI

from tests.real.agents import opencode_config, run_opencode
from tests.real.dynamo import DynamoOptions, dynamo_stack
from tests.real.gateway import Gateway, Json, engine_url, gateway
from tests.real.own_tools import USE
from tests.real.rewrites import at_most_tokens, replayed, scripted
from tests.real.scripts import Call, Script, Step, answer_to, steps, tool_names
from tests.real.sglang import Sglang
from tests.real.shim import Shim, shim
from tests.real.vllm import VllmOptions, vllm_server

MOCKER_TOKENS = 500
"""Dynamo's mocker generates nothing without a limit."""
ASK: Any = [{"role": "system", "content": "You are careful. " * 40}, {"role": "user", "content": "Find it."}]
VERDICT = "It is in the second place."
FIRST, SECOND = Call("web_search", {"query": "first"}), Call("web_search", {"query": "second"})
EDIT = Call("edit", {"path": "x"})
EDIT_TOOL: Any = {
    "type": "function",
    "function": {"name": "edit", "parameters": {"type": "object", "properties": {"path": {"type": "string"}}}},
}
READ_FILE = Call("read", {"filePath": "main.py"})
LIST_FILES = Call("bash", {"command": "ls", "description": "Lists files"})


@dataclass(frozen=True)
class Line:
    """gateway -> shim that scripts -> engine"""

    gateway: Gateway
    inside: Shim
    """What the engine was sent."""
    model: str
    block_tokens: int

    def sdk(self) -> AsyncOpenAI:
        return AsyncOpenAI(base_url=f"{self.gateway.base_url}/v1", api_key="x", max_retries=0, timeout=300)

    def turns(self) -> list[Json]:
        """Bodies of what the engine was asked with our tool, in order."""
        bodies = [
            json.loads(exchange.received.body) for exchange in self.inside.to("/v1/") if exchange.received.body
        ]
        return [body for body in bodies if "web_search" in tool_names(body)]


@pytest.fixture
def shared(request: pytest.FixtureRequest, kind: str) -> Sglang | None:
    """The session's SGLang, where a test is about it."""
    return request.getfixturevalue("sglang_process") if kind == "sglang" else None


@asynccontextmanager
async def line(kind: str, *script: Step, sglang: Sglang | None = None) -> AsyncIterator[Line]:
    said: Script = steps(*script)
    if sglang is not None:
        async with (
            shim(sglang.base_url, scripted(said, kind)) as inside,
            gateway(engine_url(kind, inside.base_url), tools__use=USE) as front,
        ):
            yield Line(front, inside, sglang.model, 1)
        return
    if kind == "vllm":
        options = VllmOptions(num_blocks=2000)
        async with (
            vllm_server(options) as vllm,
            shim(vllm.base_url, scripted(said)) as inside,
            gateway(engine_url(kind, inside.base_url), tools__use=USE) as front,
        ):
            yield Line(front, inside, vllm.model, options.block_tokens)
        return
    replies = tuple(answer_to({}, step) for step in ("A scripted run", *script))
    options_ = DynamoOptions(speedup_ratio=1000, replies=replies, frontend_arguments=("--enable-anthropic-api",))
    async with (
        dynamo_stack(options_) as dynamo,
        shim(dynamo.base_url, at_most_tokens(MOCKER_TOKENS), replayed(said)) as inside,
        gateway(engine_url(kind, inside.base_url), tools__use=USE) as front,
    ):
        yield Line(front, inside, dynamo.model, options_.block_tokens)


@pytest.mark.parametrize("kind", ["dynamo", "vllm", "sglang"])
async def test_the_openai_sdk_streams_a_three_round_answer(kind: str, shared: Sglang | None) -> None:
    async with line(kind, FIRST, SECOND, VERDICT, sglang=shared) as running:
        async with (
            running.sdk() as client,
            client.chat.completions.stream(model=running.model, messages=ASK, max_tokens=MOCKER_TOKENS) as stream,
        ):
            ids = {event.chunk.id async for event in stream if event.type == "chunk"}
            final = await stream.get_final_completion()
        message = final.choices[0].message
        assert (message.content or "").rstrip().endswith(VERDICT)
        assert not message.tool_calls
        assert final.choices[0].finish_reason == "stop"
        assert len(ids) == 1
        assert_append_only(running.turns())
        assert len(running.turns()) == 3
        assert await running.gateway.metric("turngate_tool_executed_total", tool="web_search") == 2


async def test_the_openai_sdk_streams_three_rounds_of_responses_from_vllm() -> None:
    async with line("vllm", FIRST, SECOND, VERDICT) as running:
        async with (
            running.sdk() as client,
            client.responses.stream(model=running.model, input=ASK, max_output_tokens=MOCKER_TOKENS) as stream,
        ):
            numbers = [event.sequence_number async for event in stream]
            final = await stream.get_final_response()
        assert final.output_text.rstrip().endswith(VERDICT)
        assert {item.type for item in final.output} == {"message"}
        assert numbers == list(range(len(numbers)))
        histories = [body["input"] for body in running.turns()]
        assert all(after[: len(before)] == before for before, after in pairwise(histories))


async def test_the_anthropic_sdk_streams_a_three_round_answer_from_dynamo() -> None:
    """vLLM's Messages endpoint takes no grammar, so a model with random weights cannot be scripted there."""
    [system, user] = ASK
    async with line("dynamo", FIRST, SECOND, VERDICT) as running:
        async with (
            AsyncAnthropic(base_url=running.gateway.base_url, api_key="x", max_retries=0, timeout=300) as client,
            client.messages.stream(
                model=running.model, system=system["content"], messages=[user], max_tokens=MOCKER_TOKENS
            ) as stream,
        ):
            kinds = [event.type async for event in stream]
            final = await stream.get_final_message()
        assert "".join(block.text for block in final.content if block.type == "text").rstrip().endswith(VERDICT)
        assert {block.type for block in final.content} == {"text"}
        assert final.stop_reason == "end_turn"
        assert kinds.count("message_start") == kinds.count("message_stop") == 1
        assert len(running.turns()) == 3
        assert_append_only(running.turns())


@pytest.mark.parametrize("kind", ["dynamo", "vllm", "sglang"])
async def test_the_engine_s_cache_proves_that_a_mixed_history_is_append_only(
    kind: str, shared: Sglang | None
) -> None:
    """Two requests of a client that sees only its own call: the second finds in the engine's cache all of the
    first, with what was hidden in it."""
    async with line(kind, FIRST, (SECOND, EDIT), VERDICT, sglang=shared) as running, running.sdk() as client:
        asked: Any = {"model": running.model, "tools": [EDIT_TOOL], "max_tokens": MOCKER_TOKENS}
        first = await client.chat.completions.create(messages=ASK, **asked)
        message = first.choices[0].message
        [call] = message.tool_calls or []
        assert call.type == "function"
        assert call.function.name == "edit"
        result: Any = {"role": "tool", "tool_call_id": call.id, "content": "edited"}
        said: Any = message.to_dict()
        second = await client.chat.completions.with_raw_response.create(messages=[*ASK, said, result], **asked)
        assert (second.parse().choices[0].message.content or "").rstrip().endswith(VERDICT)
        assert_append_only(running.turns())
        await running.gateway.until_idle()
        after = await running.gateway.receipt(second.headers["X-Turngate-Receipt"])
        before = running.gateway.receipts()[-2]
        last_prompt_tokens = before["rounds"][-1]["prompt_tokens"]
        whole_blocks = last_prompt_tokens // running.block_tokens * running.block_tokens
        assert after["cached_tokens"] >= whole_blocks > before["rounds"][0]["prompt_tokens"]


@pytest.mark.parametrize("kind", ["dynamo", "vllm", "sglang"])
async def test_opencode_works_on_with_a_tool_that_it_never_sees(kind: str, shared: Sglang | None) -> None:
    async with line(kind, FIRST, READ_FILE, (SECOND, LIST_FILES), VERDICT, sglang=shared) as running:
        run = await run_opencode("Explain main.py", opencode_config(running.gateway.base_url, running.model))
        assert run.exit_code == 0, run.stderr
        assert VERDICT in run.stdout
        assert "invalid" not in run.stdout + run.stderr  # its name for a call of a tool that it does not know
        await running.gateway.until_idle()
        assert_append_only(running.turns())
        [session] = [row for row in await running.gateway.sessions() if row["kind"] == "agent"]
        assert session["turns"] == 3
        assert await running.gateway.metric("turngate_tool_executed_total", tool="web_search") == 2
        assert all(receipt["outcome"] == "answered" for receipt in running.gateway.receipts())


def assert_append_only(turns: list[Json]) -> None:
    assert len(turns) > 1
    for before, after in pairwise(turns):
        assert after["tools"] == before["tools"]
        assert after["messages"][: len(before["messages"])] == before["messages"]
