"""Several prompts in one request to the embedded engine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import orjson
import pytest

from gateway.config.settings import Embedded
from gateway.embedded.server import InProcessEngine

PROMPTS = [f"Prompt {n}: " + "word " * n for n in range(12)]


@pytest.fixture
async def url() -> AsyncIterator[str]:
    engine = InProcessEngine(Embedded(speed=1000, capacity_tokens=8_192))
    yield f"http://127.0.0.1:{await engine.start()}/v1/completions"
    await engine.stop()


async def ask(url: str, **body: Any) -> tuple[int, bytes]:
    async with aiohttp.ClientSession() as session, session.post(url, json=body) as response:
        return response.status, await response.read()


async def test_each_prompt_is_answered_as_if_it_had_come_alone(url: str) -> None:
    alone = [orjson.loads((await ask(url, prompt=prompt))[1]) for prompt in PROMPTS]
    status, raw = await ask(url, prompt=PROMPTS)
    body = orjson.loads(raw)
    assert status == 200
    assert [choice["index"] for choice in body["choices"]] == list(range(12))
    assert [choice["text"] for choice in body["choices"]] == [one["choices"][0]["text"] for one in alone]
    for key in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert body["usage"][key] == sum(one["usage"][key] for one in alone)


async def test_a_stream_has_every_choice_and_then_the_usage(url: str) -> None:
    _, raw = await ask(url, prompt=PROMPTS, stream=True, stream_options={"include_usage": True})
    *events, done, _ = raw.split(b"\n\n")
    assert done == b"data: [DONE]"
    parsed = [orjson.loads(event[6:]) for event in events]
    whole = orjson.loads((await ask(url, prompt=PROMPTS))[1])
    choices = sorted(
        (choice for event in parsed for choice in event["choices"]), key=lambda one: int(one["index"])
    )
    assert choices == whole["choices"]
    assert parsed[-1]["usage"]["total_tokens"] == whole["usage"]["total_tokens"]


async def test_one_prompt_that_does_not_fit_fails_all(url: str) -> None:
    status, raw = await ask(url, prompt=["short", "word " * 9_000])
    assert status == 400
    assert "maximum context length" in orjson.loads(raw)["error"]["message"]
