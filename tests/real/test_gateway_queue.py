"""A client that waits for a slot is kept by events that raw readers, the openai SDK and its helpers all accept."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from openai import AsyncOpenAI

from tests.real.sglang import Sglang
from tests.real.vllm import Vllm
from tests.real.wire import Wire, data_of, events, long_answer, wire

pytestmark = pytest.mark.asyncio(loop_scope="module")

ONE_SLOT = {"policy__slots_per_replica": 1, "stream__silent_queue_s": 0.2, "stream__keep_alive_s": 0.2}
MIN_KEEP_ALIVES = 2
DEADLINE_S = 180.0
ASK: Any = [{"role": "user", "content": "Say something."}]
STREAMS = {
    "/v1/chat/completions": {"messages": ASK, "max_tokens": 6},
    "/v1/completions": {"prompt": "def", "max_tokens": 6},
    "/v1/responses": {"input": "Say", "max_output_tokens": 6},
    "/v1/messages": {"messages": ASK, "max_tokens": 6},
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def on_vllm(vllm_process: Vllm) -> AsyncIterator[Wire]:
    async with wire("vllm", vllm_process.base_url, vllm_process.model, **ONE_SLOT) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def on_sglang(sglang_process: Sglang) -> AsyncIterator[Wire]:
    async with wire("sglang", sglang_process.base_url, sglang_process.model, **ONE_SLOT) as running:
        yield running


@pytest.fixture(params=["vllm", "sglang"])
def queue(request: pytest.FixtureRequest) -> Wire:
    found: Wire = request.getfixturevalue(f"on_{request.param}")
    return found


def is_keep_alive(event: bytes) -> bool:
    """Told by the data, which a comment has not: an empty delta under an id of ours, or a ping."""
    data = data_of(event)
    if data["type" if "type" in data else "object"] == "ping":
        return event == b'event: ping\ndata: {"type":"ping"}\n\n'
    answer_id: str = data.get("response", data)["id"]
    says = [choice.get("delta") or choice.get("text") for choice in data.get("choices", [])]
    return answer_id.startswith(("turngate-", "resp_tg")) and not any(says)


def unnamed(event: bytes) -> Any:
    """What it says, whatever answer it names and whatever its number is."""
    data = data_of(event)
    for about in (data, data.get("response", {})) if data is not None else ():
        for key in ("id", "created", "created_at", "model", "sequence_number"):
            about.pop(key, None)
    return data


def begins(event: bytes) -> bool:
    data = data_of(event)
    return data is not None and data.get("type") == "response.created"


def is_usage(event: bytes) -> bool:
    data = data_of(event)
    return data is not None and data.get("choices") == []


@pytest.mark.parametrize("path", STREAMS)
async def test_keep_alives_come_whole_before_the_engines_bytes_and_never_between(queue: Wire, path: str) -> None:
    body = STREAMS[path] | {"model": queue.model, "stream": True}
    headers = {"X-Request-Id": f"waits-{path}"}
    async with (
        long_answer(queue.gateway.base_url, queue.model) as blocker,
        aiohttp.ClientSession() as session,
        asyncio.timeout(DEADLINE_S),
        session.post(queue.gateway.base_url + path, json=body, headers=headers) as response,
    ):
        assert response.status == 200
        received = b""
        while received.count(b"\n\n") < MIN_KEEP_ALIVES:
            received += await response.content.readany()
        blocker.close()
        received += await response.content.read()
    (call,) = queue.calls(f"waits-{path}")
    sent = [event for event in events(call.response_body) if not is_usage(event) and not begins(event)]
    got = events(received)
    ours = got[: len(got) - len(sent)]
    assert len(ours) >= MIN_KEEP_ALIVES
    assert all(map(is_keep_alive, ours))
    assert [unnamed(event) for event in got[len(ours) :]] == [unnamed(event) for event in sent]
    if path == "/v1/messages":
        assert got[len(ours) :] == sent
    elif path == "/v1/responses":
        assert [data_of(event)["sequence_number"] for event in got] == list(range(len(got)))


@pytest.mark.parametrize("how", ["chat events", "chat helper", "responses events", "responses helper"])
async def test_the_sdk_accepts_keep_alives(on_vllm: Wire, how: str) -> None:
    queue = on_vllm
    async with (
        AsyncOpenAI(base_url=f"{queue.gateway.base_url}/v1", api_key="any", max_retries=0) as client,
        long_answer(queue.gateway.base_url, queue.model) as blocker,
        asyncio.timeout(DEADLINE_S),
    ):
        fields: Any = {"model": queue.model, "extra_body": {"structured_outputs": {"choice": ["All is well."]}}}
        num_early = 0
        text = ""
        if how == "chat helper":
            async with client.chat.completions.stream(messages=ASK, **fields) as stream:
                async for event in stream:
                    if event.type == "chunk" and (num_early := num_early + 1) == MIN_KEEP_ALIVES:
                        blocker.close()
                text = (await stream.get_final_completion()).choices[0].message.content or ""
        elif how == "responses helper":
            async with client.responses.stream(input="Say", **fields) as events_of:
                async for _ in events_of:
                    if (num_early := num_early + 1) == MIN_KEEP_ALIVES:
                        blocker.close()
                text = (await events_of.get_final_response()).output_text
        else:
            made = (
                client.chat.completions.create(messages=ASK, stream=True, **fields)
                if how == "chat events"
                else client.responses.create(input="Say", stream=True, **fields)
            )
            async for part in await made:
                if (num_early := num_early + 1) == MIN_KEEP_ALIVES:
                    blocker.close()
                if how == "chat events":
                    text += "".join(choice.delta.content or "" for choice in part.choices)
                elif part.type == "response.completed":
                    text = part.response.output_text
    assert text == "All is well."
