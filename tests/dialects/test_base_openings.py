"""Openings and failures that the gateway writes, as the official SDK reads them."""

from __future__ import annotations

from collections.abc import AsyncIterator

import openai
import orjson
import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletionChunk
from openai.types.responses import ResponseCreatedEvent, ResponseFailedEvent, ResponseInProgressEvent

from gateway.core import sse
from gateway.core.errors import Failure
from gateway.core.fields import Json
from gateway.core.transport import Request, Responder
from gateway.dialects import BY_PATH
from gateway.transport.aiohttp_server import AiohttpServer

CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": False}
FAILURE = Failure(503, "server_error", "No engine is left.")


class Player:
    """A server that plays `stream` to each request, and a client of it."""

    def __init__(self) -> None:
        self.stream: list[bytes] = []
        self._server = AiohttpServer(self._play)

    async def _play(self, request: Request, responder: Responder) -> None:
        await responder.open_stream(200, [("Content-Type", "text/event-stream")])
        for event in self.stream:
            await responder.write(event)
        await responder.end()

    async def start(self) -> None:
        port = await self._server.start("127.0.0.1", 0)
        self.client = openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="x", max_retries=0)

    async def stop(self) -> None:
        await self.client.close()
        await self._server.stop(grace_s=0)


@pytest.fixture
async def player() -> AsyncIterator[Player]:
    player = Player()
    await player.start()
    yield player
    await player.stop()


def keep_alive(path: str) -> bytes:
    return BY_PATH[path].opening("turngate-1", "m", 1_700_000_000, {}).keep_alive()


def data(event: bytes) -> Json:
    parsed: Json = orjson.loads(sse.data_of(event) or b"null")
    return parsed


def chunk(delta: Json, finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    body = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
    return sse.event(orjson.dumps(body))


ANSWER = [
    chunk({"role": "assistant", "content": ""}),
    chunk({"content": "hi"}),
    chunk(
        {
            "tool_calls": [
                {"index": 0, "id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
            ]
        }
    ),
    chunk({}, "tool_calls"),
    sse.DONE,
]


def test_keep_alives_are_valid_by_the_sdks_own_types() -> None:
    ChatCompletionChunk.model_validate(data(keep_alive(CHAT)), strict=True)
    begun = BY_PATH[RESPONSES].opening("resp_1", "m", 1_700_000_000, {"input": "x", "tools": [TOOL], "top_p": 0.5})
    ResponseCreatedEvent.model_validate(data(begun.keep_alive()))
    ResponseInProgressEvent.model_validate(data(begun.keep_alive()))
    ResponseFailedEvent.model_validate(data(begun.error_event(FAILURE)))
    ResponseFailedEvent.model_validate(data(BY_PATH[RESPONSES].error_event(FAILURE)))
    assert Completion.model_construct(**data(keep_alive(COMPLETIONS))).choices


async def test_chat_answers_are_the_same_after_keep_alives(player: Player) -> None:
    results = []
    for player.stream in (ANSWER, [keep_alive(CHAT)] * 3 + ANSWER):
        async with player.client.chat.completions.stream(model="m", messages=[]) as stream:
            completion = await stream.get_final_completion()
        results.append(completion.choices[0].model_dump())
    assert results[0] == results[1]
    assert results[0]["message"]["role"] == "assistant"
    assert results[0]["message"]["tool_calls"][0]["function"]["name"] == "f"


async def test_completions_and_responses_read_keep_alives_as_nothing(player: Player) -> None:
    player.stream = [keep_alive(COMPLETIONS), sse.DONE]
    async for piece in await player.client.completions.create(model="m", prompt="x", stream=True):
        assert piece.choices[0].text == ""
    player.stream = [keep_alive(RESPONSES)]
    kinds = [event.type async for event in await player.client.responses.create(model="m", input="x", stream=True)]
    assert kinds == ["response.created"]


async def test_an_error_event_raises_in_chat(player: Player) -> None:
    player.stream = [keep_alive(CHAT), BY_PATH[CHAT].error_event(FAILURE)]
    with pytest.raises(openai.APIError, match="No engine is left"):
        async for _ in await player.client.chat.completions.create(model="m", messages=[], stream=True):
            pass


async def test_an_error_event_is_a_failed_response(player: Player) -> None:
    player.stream = [keep_alive(RESPONSES), BY_PATH[RESPONSES].error_event(FAILURE)]
    events = [event async for event in await player.client.responses.create(model="m", input="x", stream=True)]
    assert isinstance(events[-1], ResponseFailedEvent)
    assert events[-1].response.error is not None
    assert events[-1].response.error.message == "No engine is left."
