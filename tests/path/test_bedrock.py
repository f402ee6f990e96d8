"""Chat completions in front of Bedrock's Converse API, with the official SDK."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import openai
import orjson
import pytest

from tests.path.batches import Connect
from tests.path.conftest import Gateway, Start
from tests.path.fake_bedrock import BEARER, KEY_ID, REGION, SECRET, FakeBedrock
from tests.path.fake_service import Refusal

USER: Any = {"role": "user", "content": "go"}
SYSTEM: Any = {"role": "system", "content": "Be brief."}
TOOL: Any = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
TEXT = [{"text": "Hello there."}]
CALL = [
    {"reasoningContent": {"reasoningText": {"text": "Hm.", "signature": "s"}}},
    {"text": "I look."},
    {"toolUse": {"toolUseId": "t1", "name": "look", "input": {"path": "a b"}}},
    {"toolUse": {"toolUseId": "t2", "name": "look", "input": {}}},
]
CLAUDE, PLAIN = "us.anthropic.y-v1:0", "meta.plain-v1:0"
POINT = {"cachePoint": {"type": "default"}}


@pytest.fixture
async def service(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> AsyncIterator[FakeBedrock]:
    for name, value in {
        "AWS_ACCESS_KEY_ID": KEY_ID,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_DEFAULT_REGION": REGION,
        "AWS_CONFIG_FILE": str(tmp_path / "none"),
        "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "none"),
        "AWS_EC2_METADATA_DISABLED": "true",
        "BEARER": BEARER,
    }.items():
        monkeypatch.setenv(name, value)
    service = FakeBedrock()
    await service.start()
    yield service
    await service.stop()


Serve = Callable[..., Awaitable[Gateway]]


@pytest.fixture
def serve(start: Start, service: FakeBedrock) -> Serve:
    async def serve(models: str = f"{CLAUDE},{PLAIN}", **entry: str) -> Gateway:
        url = f"bedrock://127.0.0.1:{service.port}/{models}"
        return await start(engines=[{"url": url} | entry], probing={"hints": True, "interval_s": 3600})

    return serve


@pytest.fixture
async def client(serve: Serve, sdk: Connect) -> openai.AsyncOpenAI:
    return sdk(await serve())


async def test_an_answer_is_a_chat_completion(service: FakeBedrock, client: openai.AsyncOpenAI) -> None:
    service.script = [TEXT]
    answer = await client.chat.completions.create(
        model=CLAUDE, messages=[SYSTEM, USER], max_tokens=50, temperature=0.5, stop="x"
    )
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == ("Hello there.", "stop")
    assert (answer.model, answer.usage and answer.usage.prompt_tokens) == (CLAUDE, 125)
    assert service.bodies[0]["inferenceConfig"] == {"maxTokens": 50, "temperature": 0.5, "stopSequences": ["x"]}


@pytest.mark.parametrize("streams", [False, True])
async def test_calls_of_tools_come_and_go_back(
    service: FakeBedrock, client: openai.AsyncOpenAI, streams: bool
) -> None:
    service.script = [CALL, TEXT]
    messages: list[Any] = [SYSTEM, USER]
    asked: Any = {"model": CLAUDE, "tools": [TOOL], "messages": messages}
    if streams:
        async with client.chat.completions.stream(**asked, stream_options={"include_usage": True}) as stream:
            first = await stream.get_final_completion()
    else:
        first = await client.chat.completions.create(**asked)
    message: Any = first.choices[0].message
    assert (first.choices[0].finish_reason, message.content) == ("tool_calls", "I look.")
    assert first.usage is not None
    assert first.usage.prompt_tokens_details is not None
    assert (first.usage.prompt_tokens, first.usage.prompt_tokens_details.cached_tokens) == (125, 100)
    assert [(call.id, call.function.arguments) for call in message.tool_calls] == [
        ("t1", '{"path":"a b"}'),
        ("t2", "{}"),
    ]
    messages += [
        message.model_dump(exclude_none=True),
        *({"role": "tool", "tool_call_id": call.id, "content": ""} for call in message.tool_calls),
    ]
    second = await client.chat.completions.create(**asked, tool_choice="none")
    assert second.choices[0].message.content == "Hello there."
    told = service.bodies[1]["messages"][2]["content"]
    assert [block["toolResult"]["toolUseId"] for block in told if "toolResult" in block] == ["t1", "t2"]
    assert "toolConfig" in service.bodies[1]


async def test_shared_prefix_and_history_are_marked_for_the_cache(
    service: FakeBedrock, client: openai.AsyncOpenAI
) -> None:
    service.script = [TEXT]
    await client.chat.completions.create(model=CLAUDE, messages=[SYSTEM, USER], tools=[TOOL])
    (body,) = service.bodies
    assert (body["system"][-1], body["messages"][0]["content"][-1]) == (POINT, POINT)


async def test_a_model_that_cannot_cache_is_asked_without_markers_from_then_on(
    service: FakeBedrock, client: openai.AsyncOpenAI
) -> None:
    service.script = [TEXT, TEXT]
    for _ in range(2):
        await client.chat.completions.create(model=PLAIN, messages=[SYSTEM, USER])
    assert [POINT in body["system"] for body in service.bodies] == [True, False, False]


async def test_an_image_goes_as_its_bytes(service: FakeBedrock, client: openai.AsyncOpenAI) -> None:
    service.script = [TEXT]
    image: Any = {"type": "image_url", "image_url": {"url": "data:image/png;base64,QUJD"}}
    await client.chat.completions.create(model=CLAUDE, messages=[{"role": "user", "content": [image]}])
    assert service.bodies[0]["messages"][0]["content"] == [
        {"image": {"format": "png", "source": {"bytes": "QUJD"}}}
    ]
    image["image_url"]["url"] = "https://images.example/x.png"
    with pytest.raises(openai.BadRequestError, match="data URLs"):
        await client.chat.completions.create(model=CLAUDE, messages=[{"role": "user", "content": [image]}])


async def test_a_schema_is_enforced_by_the_service(service: FakeBedrock, client: openai.AsyncOpenAI) -> None:
    service.script = [TEXT]
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    wanted: Any = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}
    await client.chat.completions.create(model=CLAUDE, messages=[USER], response_format=wanted)
    told = service.bodies[0]["outputConfig"]["textFormat"]["structure"]["jsonSchema"]
    assert (told["name"], orjson.loads(told["schema"])) == ("s", schema)


async def test_models_are_those_of_the_address_or_of_the_account(service: FakeBedrock, serve: Serve) -> None:
    named, found = await serve(), await serve("")
    assert [gateway.app.parts.monitor.engines[0].report.models for gateway in (named, found)] == [
        (CLAUDE, PLAIN),
        ("amazon.x-v1:0", "us.anthropic.y-v1:0"),
    ]


async def test_a_bearer_key_needs_no_signature(
    service: FakeBedrock, serve: Serve, sdk: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    service.script = [TEXT]
    client = sdk(await serve(api_key="env:BEARER"))
    assert (await client.chat.completions.create(model=CLAUDE, messages=[USER])).choices


async def test_without_credentials_it_is_said_that_there_are_none(
    serve: Serve, sdk: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    with pytest.raises(openai.InternalServerError, match="api_key"):
        await sdk(await serve()).chat.completions.create(model=CLAUDE, messages=[USER])


@pytest.mark.parametrize(("status", "kind"), [(400, openai.BadRequestError), (404, openai.NotFoundError)])
async def test_its_errors_reach_the_client_in_openais_envelope(
    service: FakeBedrock, client: openai.AsyncOpenAI, status: int, kind: type[openai.APIStatusError]
) -> None:
    service.script = [Refusal(status, {"message": "That is wrong."})]
    with pytest.raises(kind, match=r"That is wrong\.") as error:
        await client.chat.completions.create(model=CLAUDE, messages=[USER])
    assert error.value.type is not None


async def test_an_exception_in_a_stream_is_an_error_to_the_client(
    service: FakeBedrock, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(content: Any, reason: str) -> Any:
        yield "messageStart", {"role": "assistant"}
        yield "contentBlockDelta", {"contentBlockIndex": 0, "delta": {"text": "Hel"}}
        yield "modelStreamErrorException", {"message": "It broke."}

    monkeypatch.setattr("tests.path.fake_bedrock.events", broken)
    service.script = [TEXT]
    answer = await (await serve()).ask({"model": CLAUDE, "messages": [USER], "stream": True})
    assert (b"It broke." in answer.body, answer.is_cut) == (True, True)
