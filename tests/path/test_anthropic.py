"""Chat completions in front of Anthropic's API, with the official SDK; `/v1/messages` pass as they are."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import openai
import orjson
import pytest
from pydantic import BaseModel

from batch_agent import BatchAgent, Tool
from gateway.cli.doctor import examine_engines
from gateway.config.settings import Settings
from tests.deadline import DEADLINE_S
from tests.path.batches import Connect
from tests.path.conftest import Clock, Gateway, Start
from tests.path.fake_anthropic import KEY, FakeAnthropic
from tests.path.fake_service import Refusal

TOOL: Any = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Look.",
        "parameters": {"type": "object", "properties": {"path": {"type": "string"}}},
    },
}
USER: Any = {"role": "user", "content": "go"}
SYSTEM: Any = {"role": "system", "content": "Be brief."}
TEXT = [{"type": "text", "text": "Hello there."}]
CALL = [
    {"type": "thinking", "thinking": "Hm, well.", "signature": "s"},
    {"type": "text", "text": "I look."},
    {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"path": "a b"}},
    {"type": "tool_use", "id": "toolu_2", "name": "look", "input": {}},
]
OVERLOADED = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
MARK = {"type": "ephemeral"}


@pytest.fixture
async def service() -> AsyncIterator[FakeAnthropic]:
    service = FakeAnthropic()
    await service.start()
    yield service
    await service.stop()


@pytest.fixture
async def gateway(start: Start, service: FakeAnthropic, monkeypatch: pytest.MonkeyPatch) -> Gateway:
    monkeypatch.setenv("KEY", KEY)
    entry = {"url": f"anthropic://127.0.0.1:{service.port}", "api_key": "env:KEY"}
    return await start(engines=[entry], probing={"hints": True, "interval_s": 3600})


@pytest.fixture
def client(gateway: Gateway, sdk: Connect) -> openai.AsyncOpenAI:
    return sdk(gateway)


async def test_an_answer_is_a_chat_completion(service: FakeAnthropic, client: openai.AsyncOpenAI) -> None:
    service.script = [TEXT]
    answer = await client.chat.completions.create(model="claude-x", messages=[SYSTEM, USER], max_tokens=50)
    (choice,) = answer.choices
    assert (choice.message.content, choice.finish_reason) == ("Hello there.", "stop")
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (125, 7, 132)
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 100
    assert service.bodies[0]["max_tokens"] == 50


@pytest.mark.parametrize("streams", [False, True])
async def test_calls_of_tools_come_and_go_back(
    service: FakeAnthropic, client: openai.AsyncOpenAI, streams: bool
) -> None:
    service.script = [CALL, TEXT]
    messages: list[Any] = [SYSTEM, USER]
    asked: Any = {"model": "claude-x", "tools": [TOOL], "messages": messages}
    if streams:
        async with client.chat.completions.stream(**asked, stream_options={"include_usage": True}) as stream:
            first = await stream.get_final_completion()
    else:
        first = await client.chat.completions.create(**asked)
    message = first.choices[0].message
    assert first.choices[0].finish_reason == "tool_calls"
    assert first.usage is not None
    assert first.usage.prompt_tokens == 125
    assert message.content == "I look."
    calls: Any = message.tool_calls
    assert [(call.id, call.function.name, call.function.arguments) for call in calls] == [
        ("toolu_1", "look", '{"path":"a b"}'),
        ("toolu_2", "look", "{}"),
    ]
    messages += [
        message.model_dump(exclude_none=True),
        *({"role": "tool", "tool_call_id": call.id, "content": f"seen {call.id}"} for call in calls),
    ]
    second = await client.chat.completions.create(**asked)
    assert second.choices[0].message.content == "Hello there."
    said, told = service.bodies[1]["messages"][1:]
    assert [block["type"] for block in said["content"]] == ["text", "tool_use", "tool_use"]
    assert [block["content"][0]["text"] for block in told["content"]] == ["seen toolu_1", "seen toolu_2"]


async def test_the_prefix_that_siblings_share_and_the_history_are_marked_for_the_cache(
    service: FakeAnthropic, client: openai.AsyncOpenAI
) -> None:
    service.script = [TEXT, TEXT]
    await client.chat.completions.create(model="claude-x", messages=[SYSTEM, USER])
    assistant: Any = {"role": "assistant", "content": "a"}
    turns: Any = [SYSTEM, USER, assistant, USER, assistant, USER]
    await client.chat.completions.create(model="claude-x", messages=turns, tools=[TOOL])
    single, later = service.bodies
    assert single["system"][-1]["cache_control"] == MARK
    assert "cache_control" not in single["messages"][0]["content"][0]
    assert later["system"][-1]["cache_control"] == MARK
    assert ["cache_control" in turn["content"][-1] for turn in later["messages"]] == [
        *(False, False, True, False, True)
    ]


async def test_a_schema_is_enforced_by_the_service(service: FakeAnthropic, client: openai.AsyncOpenAI) -> None:
    service.script = [[{"type": "text", "text": '{"a": 1}'}]]
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": False}
    wanted: Any = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}
    await client.chat.completions.create(model="claude-x", messages=[USER], response_format=wanted)
    assert service.bodies[0]["output_config"] == {"format": {"type": "json_schema", "schema": schema}}


async def test_what_the_service_lacks_is_refused_by_name(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as error:
        await client.chat.completions.create(model="claude-x", messages=[USER], n=2)
    assert error.value.param == "n"


async def test_a_request_that_it_refuses_fails_in_its_words(
    service: FakeAnthropic, client: openai.AsyncOpenAI
) -> None:
    first: Any = {"role": "assistant", "content": "I begin."}
    with pytest.raises(openai.BadRequestError, match="first message must use the user role"):
        await client.chat.completions.create(model="claude-x", messages=[first, USER])


async def test_a_service_that_throttles_is_waited_for(
    service: FakeAnthropic, gateway: Gateway, clock: Clock
) -> None:
    limited = {"type": "error", "error": {"type": "rate_limit_error", "message": "slow down"}}
    service.script = [Refusal(429, limited, {"retry-after": "3"}), Refusal(529, OVERLOADED), TEXT]
    asked = gateway.begin({"model": "claude-x", "messages": [USER]})
    for num_calls in (1, 2):
        await gateway.until(lambda n=num_calls: len(service.bodies) == n)  # type: ignore[misc]
        while not asked.done() and len(service.bodies) == num_calls:
            clock.advance(0.2)
            await asyncio.sleep(0.01)
    assert ((await asked).status, len(service.bodies)) == (200, 3)


async def test_one_that_throttles_for_long_is_told_to_the_client(
    service: FakeAnthropic, client: openai.AsyncOpenAI
) -> None:
    service.script = [Refusal(429, OVERLOADED, {"retry-after": "120"})]
    with pytest.raises(openai.RateLimitError) as error:
        await client.chat.completions.create(model="claude-x", messages=[USER])
    assert float(error.value.response.headers["retry-after"]) >= 120


async def test_an_error_in_a_stream_is_an_error_to_the_client(
    service: FakeAnthropic, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(message: dict[str, Any]) -> Any:
        yield {"type": "message_start", "message": message | {"content": []}}
        yield {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "Hel"}}
        yield OVERLOADED

    monkeypatch.setattr("tests.path.fake_anthropic.events", broken)
    service.script = [TEXT]
    answer = await gateway.ask({"model": "claude-x", "messages": [USER], "stream": True})
    assert b"Overloaded" in answer.body
    assert answer.is_cut


async def test_messages_pass_as_they_are_with_our_key(service: FakeAnthropic, gateway: Gateway) -> None:
    service.script = [TEXT]
    body = {"model": "claude-x", "max_tokens": 5, "messages": [{"role": "user", "content": "go"}]}
    body["messages"][0]["content"] = [{"type": "text", "text": "go"}]  # type: ignore[index]
    answer = await gateway.ask(body, "/v1/messages", x_claude_code_session_id="s", anthropic_beta="b")
    assert orjson.loads(answer.body)["content"] == TEXT
    assert service.bodies == [body]
    assert service.headers[0]["anthropic-beta"] == "b"
    assert not any(name.lower().startswith("x-claude") for name in service.headers[0])


async def test_the_provider_is_not_probed_and_health_says_what_is_not_controlled(
    service: FakeAnthropic, gateway: Gateway
) -> None:
    assert service.bodies == []
    health = orjson.loads(await (await gateway.get("/health")).read())
    (engine,) = health["engines"]
    assert (engine["models"], engine["is_rented"]) == (["claude-x"], True)
    assert "KV cache" in engine["advice"][0]["problem"]


async def test_the_doctor_says_the_same(
    service: FakeAnthropic, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KEY", KEY)
    entry = {"url": f"anthropic://127.0.0.1:{service.port}", "api_key": "env:KEY"}
    assert await examine_engines(Settings.model_validate({"engines": [entry]})) == 0
    told = capsys.readouterr().out
    assert "claude-x" in told
    assert "tells nothing of its KV cache" in told


class Found(BaseModel):
    path: str


@Tool.define
async def look(path: str = "") -> str:
    """Look."""
    return f"seen {path}"


async def test_a_batch_of_agents_runs_on_it(service: FakeAnthropic, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    service.script = [CALL, [{"type": "text", "text": '{"path": "a"}'}]]
    async with asyncio.timeout(DEADLINE_S):
        (result,) = await BatchAgent.run(
            task="Look.",
            inputs=[{}],
            tools=[look],
            output_schema=Found,
            max_turns=2,
            backend=f"anthropic://127.0.0.1:{service.port}",
        )
    assert result.output == Found(path="a")
    assert (result.usage.cached_tokens, result.turns) == (200, 2)
    assert service.bodies[1]["tool_choice"] == {"type": "auto"}
