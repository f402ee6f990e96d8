"""The launchers and the shim themselves, without a gateway."""

import asyncio
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from pytest_aiohttp.plugin import AiohttpServer

from tests.deadline import DEADLINE_S
from tests.real.dynamo import Dynamo, DynamoOptions, dynamo_stack
from tests.real.process import ServerFailedError, server
from tests.real.rewrites import anonymous, replayed, scripted
from tests.real.scripts import Call, answer_to, steps
from tests.real.shim import shim
from tests.real.vllm import Vllm

LIST_FILES = Call("bash", {"command": "ls"})
BASH_TOOL = {
    "type": "function",
    "function": {
        "name": "bash",
        "parameters": {"type": "object", "properties": {"command": {"type": "string"}}},
    },
}


def chat(model: str, **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "List the files. " * 20}]
    return {"model": model, "messages": messages, "tools": [BASH_TOOL], "max_tokens": 200, **fields}


async def post(base_url: str, body: dict[str, Any], headers: dict[str, str] | None = None) -> Any:
    url = f"{base_url}/v1/chat/completions"
    async with aiohttp.ClientSession() as session, session.post(url, json=body, headers=headers) as response:
        assert response.status == 200, await response.text()
        return await response.json()


async def metric(metrics_url: str, name: str) -> float:
    """Sum over the labels of one Prometheus sample."""
    async with aiohttp.ClientSession() as session, session.get(metrics_url) as response:
        lines = (await response.text()).splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name + "{"))


async def until_metric(metrics_url: str, name: str, value: float, deadline_s: float = 120) -> None:
    async with asyncio.timeout(deadline_s):
        while await metric(metrics_url, name) != value:
            await asyncio.sleep(0.05)


async def test_vllm_emits_a_scripted_tool_call_and_reports_the_cached_prefix(vllm: Vllm) -> None:
    async with shim(vllm.base_url, scripted(steps(LIST_FILES))) as link:
        first = await post(link.base_url, chat(vllm.model))
        second = await post(link.base_url, chat(vllm.model))
    call = first["choices"][0]["message"]["tool_calls"][0]["function"]
    assert (call["name"], json.loads(call["arguments"])) == ("bash", {"command": "ls"})
    assert first["choices"][0]["finish_reason"] == "tool_calls"
    num_prompt_tokens = second["usage"]["prompt_tokens"]
    whole_blocks = (num_prompt_tokens - 1) // vllm.options.block_tokens * vllm.options.block_tokens
    assert first["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] == whole_blocks


async def test_a_client_that_leaves_the_shim_stops_the_engine(vllm: Vllm) -> None:
    async with shim(vllm.base_url) as link:
        request = asyncio.create_task(
            post(link.base_url, chat(vllm.model, max_tokens=20000, ignore_eos=True, tool_choice="none"))
        )
        await until_metric(vllm.metrics_url, "vllm:num_requests_running", 1)
        request.cancel()
        await until_metric(vllm.metrics_url, "vllm:num_requests_running", 0)
        assert [exchange.has_client_left for exchange in link.exchanges] == [True]


async def test_the_shim_relays_each_chunk_as_it_comes(aiohttp_server: AiohttpServer) -> None:
    has_client_read_first = asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b"data: 1\n\n")
        await has_client_read_first.wait()
        await response.write(b"data: 2\n\n")
        return response

    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    upstream = await aiohttp_server(app)
    async with shim(str(upstream.make_url("")).rstrip("/")) as link, aiohttp.ClientSession() as session:
        async with session.post(f"{link.base_url}/v1/chat/completions", json=chat("any")) as response:
            assert await response.content.readany() == b"data: 1\n\n"
            has_client_read_first.set()
            assert await response.content.read() == b"data: 2\n\n"
        (exchange,) = link.exchanges
    assert [chunk for _, chunk in exchange.chunks] == [b"data: 1\n\n", b"data: 2\n\n"]


async def test_the_shim_can_hide_who_the_client_is(vllm: Vllm) -> None:
    identity = {"x-session-id": "s", "thread-id": "t", "X-Codex-Window-Id": "w", "x-kept": "yes"}
    async with shim(vllm.base_url, anonymous()) as link:
        await post(link.base_url, chat(vllm.model, max_tokens=2, prompt_cache_key="k"), identity)
        (exchange,) = link.exchanges
    forwarded = {name.lower() for name, _ in exchange.forwarded.headers}
    assert "x-kept" in forwarded
    assert forwarded.isdisjoint({"x-session-id", "thread-id", "x-codex-window-id", "user-agent"})
    assert "prompt_cache_key" in json.loads(exchange.received.body)
    assert "prompt_cache_key" not in json.loads(exchange.forwarded.body)


async def test_dynamo_replays_a_scripted_tool_call() -> None:
    options = DynamoOptions(speedup_ratio=1000, replies=(answer_to({}, LIST_FILES),))
    async with dynamo_stack(options) as dynamo, shim(dynamo.base_url, replayed(steps(LIST_FILES))) as link:
        answer = await post(link.base_url, chat(dynamo.model))
    call = answer["choices"][0]["message"]["tool_calls"][0]["function"]
    assert (call["name"], json.loads(call["arguments"])) == ("bash", {"command": "ls"})


async def test_each_dynamo_worker_tells_its_own_load(dynamo: Dynamo) -> None:
    body = chat(dynamo.model, max_tokens=5, ignore_eos=True, nvext={"extra_fields": ["worker_id"]})
    async with aiohttp.ClientSession() as session, session.get(f"{dynamo.base_url}/health") as response:
        instances = (await response.json())["instances"]
    worker_ids = {i["instance_id"] for i in instances if i["endpoint"] == "generate"}
    assert len(worker_ids) == len(dynamo.workers) == 2
    answer = await post(dynamo.base_url, body)
    assert answer["nvext"]["worker_id"]["decode_worker_id"] in worker_ids
    for worker in dynamo.workers:
        assert await metric(worker.metrics_url, "vllm:num_requests_running") == 0


async def test_a_server_that_dies_at_start_tells_its_last_words(tmp_path: Path) -> None:
    async def never(_: aiohttp.ClientSession) -> bool:
        return False

    async with server("doomed", ["sh", "-c", "echo out of memory; exit 3"], {}, tmp_path) as doomed:
        with pytest.raises(ServerFailedError, match=r"doomed exited with 3(.|\n)*out of memory"):
            await doomed.wait_until_ready(never, deadline_s=10)


def is_alive(pid: int) -> bool:
    """A zombie is not: it waits for its parent, which is not ours to be."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


async def test_leaving_a_server_ends_its_children_too(tmp_path: Path) -> None:
    async with server("parent", ["sh", "-c", "sleep 1000 & echo $!; wait"], {}, tmp_path) as parent:
        while not (text := parent.log_file.read_text()):
            await asyncio.sleep(0.02)
    async with asyncio.timeout(DEADLINE_S):
        while is_alive(int(text)):
            await asyncio.sleep(0.02)
