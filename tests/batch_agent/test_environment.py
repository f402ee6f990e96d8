from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import BaseModel

from batch_agent import BatchAgent, Tool
from batch_agent.environment import gateway_url
from tests.batch_agent.scripted import Asked, Scripted, calls, says


class Found(BaseModel):
    path: str


@Tool.define
async def look(path: str) -> str:
    """Look at a file."""
    return f"seen {path}"


@pytest.mark.parametrize("given", ["http://a:1", "http://a:1/", "http://a:1/v1", "http://a:1/v1/"])
async def test_a_gateway_is_named_with_or_without_its_version(given: str) -> None:
    async with gateway_url(given) as url:
        assert url == "http://a:1/v1"


async def test_what_is_named_goes_before_the_environment_and_that_before_a_backend(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "http://environment/v1")
    async with gateway_url("http://named", "vllm://a:1") as url:
        assert url == "http://named/v1"
    async with gateway_url("", "vllm://a:1") as url:
        assert url == "http://environment/v1"
    monkeypatch.delenv("OPENAI_BASE_URL")
    async with gateway_url("", "http://backend") as url:
        assert url == "http://backend/v1"


@pytest.mark.parametrize(
    ("backend", "fault"), [("", "gateway="), ("vllm://host", "host:8000"), ("unknown://a:1", "unknown")]
)
async def test_the_error_without_a_gateway_says_what_to_write(backend: str, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        async with gateway_url("", backend):
            pass


@pytest.mark.parametrize("given", ["localhost:8080", "127.0.0.1:8080/v1", "ftp://a:1"])
async def test_a_gateway_that_is_no_url_is_refused_before_anything_is_sent(given: str) -> None:
    with pytest.raises(ValueError, match="http://"):
        await BatchAgent.run(task="x", inputs=[{}], model="m", gateway=given)


async def test_an_engine_that_does_not_answer_is_told_at_once() -> None:
    with pytest.raises(ConnectionError, match=r"vllm://127\.0\.0\.1:9"):
        await BatchAgent.run(task="x", inputs=[{}], backend="vllm://127.0.0.1:9")


async def test_a_gateway_in_this_process_serves_the_batch(gateway: Scripted) -> None:
    def script(asked: Asked) -> Any:
        if asked.body.get("max_tokens") == 1:
            return says("probe")
        return says('{"path": "a"}') if asked.num_turns else calls("look", '{"path": "a"}')

    gateway.script = script
    results = await BatchAgent.run(
        task="{n}",
        inputs=[{"n": n} for n in range(5)],
        tools=[look],
        output_schema=Found,
        backend=f"vllm://127.0.0.1:{gateway.port}",
        max_turns=3,
    )
    assert [result.output for result in results] == [Found(path="a")] * 5
    assert not any(name.lower().startswith("x-turngate-") for asked in gateway.asked for name in asked.headers)


async def test_a_script_needs_no_engine_to_be_tried() -> None:
    """The embedded engine answers what the task scripts."""
    script = [{"tool_calls": [{"name": "look", "arguments": {"path": "a"}}]}, {"content": '{"path": "b"}'}]
    (result,) = await BatchAgent.run(
        task="{script}",
        inputs=[{"script": f"embedded_script: {json.dumps(script)}"}],
        tools=[look],
        output_schema=Found,
        backend="embedded",
        max_turns=3,
        transcript=True,
    )
    assert result.output == Found(path="b")
    assert result.transcript is not None
    assert "seen a" in result.transcript[-2]["content"]
    assert result.usage.cached_tokens > 0
