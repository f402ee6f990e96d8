"""What a real SGLang does with priorities, places, salts and a full queue."""

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Awaitable
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from tests.real.gateway import Gateway, engine_url, gateway
from tests.real.sglang import Sglang, SglangOptions, sglang_server
from tests.real.wire import long_answer

pytestmark = pytest.mark.asyncio(loop_scope="module")

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
SAID = [{"role": "user", "content": "Say something."}]
LEVELS = {"", "-1", "0", "1", "2", "3"}
MANY = {"policy__slots_per_replica": 16}
"""More than the engine runs and queues: so it queues, and refuses, by itself."""
LAST_TURN = {"X-Turngate-Session": "agent", "X-Turngate-Remaining-Turns": "0"}
TOOL = {"type": "function", "function": {"name": "bash", "parameters": {"type": "object", "properties": {}}}}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def narrow() -> AsyncIterator[Sglang]:
    """It runs one request, and queues three."""
    async with sglang_server(SglangOptions(max_running=1, max_queued_requests=3)) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def plain() -> AsyncIterator[Sglang]:
    """As the flag alone makes it that ranks requests: it preempts, and one without a priority is the lowest."""
    flags = ("--enable-metrics", "--enable-cache-report", "--enable-priority-scheduling")
    async with sglang_server(SglangOptions(max_running=1, flags=flags)) as running:
        yield running


async def post(base_url: str, path: str, body: dict[str, Any], **headers: str) -> tuple[int, dict[str, Any]]:
    async with aiohttp.ClientSession() as http, http.post(base_url + path, json=body, headers=headers) as response:
        return response.status, await response.json()


async def timed(asked: Awaitable[tuple[int, dict[str, Any]]]) -> tuple[int, float]:
    status, _ = await asked
    return status, time.monotonic()


async def until_waiting(engine: Sglang, num: int) -> None:
    async with asyncio.timeout(60), aiohttp.ClientSession() as http:
        while True:
            async with http.get(f"{engine.base_url}/v1/loads") as response:
                (load,) = (await response.json())["loads"]
            if load["num_waiting_reqs"] == num:
                return
            await asyncio.sleep(0.02)


async def test_turns_that_queue_there_go_in_the_gateway_s_order_and_what_runs_is_not_preempted(
    narrow: Sglang,
) -> None:
    """The runner has a side request's level, the last to come an agent's highest. A request without a level, which
    is all that `/v1/messages` has, is above the lowest. The latest goes first, and all wait for the runner."""
    short = {"model": narrow.model, "messages": SAID, "max_tokens": 40, "ignore_eos": True}
    long = short | {"max_tokens": 400}
    async with gateway(engine_url("sglang", narrow.base_url), **MANY) as front, asyncio.TaskGroup() as group:
        runner = group.create_task(timed(post(front.base_url, CHAT, long)))
        await asyncio.sleep(0.5)
        waiting = []
        for num, asked in enumerate(
            (
                post(narrow.base_url, CHAT, short | {"priority": -1}),
                post(narrow.base_url, MESSAGES, short),
                post(front.base_url, CHAT, short | {"tools": [TOOL]}, **LAST_TURN),
            ),
            1,
        ):
            waiting.append(group.create_task(timed(asked)))
            await until_waiting(narrow, num)
    done = [task.result() for task in (runner, *reversed(waiting))]
    assert [status for status, _ in done] == [200] * 4
    assert [at_s for _, at_s in done] == sorted(at_s for _, at_s in done)


async def test_where_nothing_ranks_a_request_that_runs_it_is_not_preempted_for_one_of_the_gateway_s(
    plain: Sglang,
) -> None:
    """SGLang takes the runner, which has no priority, for the lowest there is."""
    long = {"model": plain.model, "messages": SAID, "max_tokens": 200, "stream": True}
    short = {"model": plain.model, "messages": SAID, "max_tokens": 2, "tools": [TOOL]}
    async with (
        gateway(engine_url("sglang", plain.base_url), **MANY) as front,
        aiohttp.ClientSession() as http,
        http.post(front.base_url + MESSAGES, json=long) as runner,
    ):
        await runner.content.readany()
        asked = asyncio.create_task(timed(post(front.base_url, CHAT, short, **LAST_TURN)))
        text = await runner.text()
        ended_s = time.monotonic()
        status, answered_s = await asked
    assert "message_stop" in text
    assert status == 200
    assert answered_s > ended_s


async def test_its_metrics_know_few_levels(narrow: Sglang) -> None:
    async with gateway(engine_url("sglang", narrow.base_url)) as front:
        body = {"model": narrow.model, "messages": SAID, "tools": [TOOL], "max_tokens": 2}
        for remaining in (200, 50, 10, 3, 1, 0):
            asked = {"X-Turngate-Session": "levels", "X-Turngate-Remaining-Turns": str(remaining)}
            assert (await post(front.base_url, CHAT, body, **asked))[0] == 200
    async with aiohttp.ClientSession() as http, http.get(narrow.metrics_url) as response:
        page = await response.text()
    assert set(re.findall(r'priority="([^"]*)"', page)) <= LEVELS
    assert len(page) < 200_000


async def test_calls_that_its_queue_would_refuse_wait_at_the_gate(narrow: Sglang) -> None:
    """Twelve at once are more than it runs and queues. The later ones outrank those that it has queued, which it
    would then refuse."""
    async with gateway(engine_url("sglang", narrow.base_url), **MANY) as front:

        async def ask(number: int) -> int:
            body = {"model": narrow.model, "messages": SAID, "max_tokens": 60, "ignore_eos": True}
            if number >= 6:
                body |= {"tools": [TOOL], "stream": True}
            headers = {"X-Turngate-Session": f"s{number}", "X-Turngate-Remaining-Turns": str(12 - number)}
            async with (
                aiohttp.ClientSession() as http,
                http.post(front.base_url + CHAT, json=body, headers=headers) as response,
            ):
                text = await response.text()
                assert '"error":' not in text, text
                return response.status

        assert await asyncio.gather(*map(ask, range(12))) == [200] * 12
        assert await front.metric("turngate_engine_faults_total", kind="full") == 0


async def test_a_queue_that_others_fill_costs_no_request(narrow: Sglang) -> None:
    short = {"model": narrow.model, "messages": SAID, "max_tokens": 30, "ignore_eos": True}
    async with (
        gateway(engine_url("sglang", narrow.base_url), **MANY) as front,
        asyncio.TaskGroup() as group,
        long_answer(narrow.base_url, narrow.model),
    ):
        asked = [group.create_task(post(narrow.base_url, CHAT, short | {"priority": 3})) for _ in range(3)]
        await until_waiting(narrow, 3)
        asked += [group.create_task(post(front.base_url, CHAT, short)) for _ in range(3)]
        while not await front.metric("turngate_queue_depth"):
            await asyncio.sleep(0.02)
    assert [task.result()[0] for task in asked] == [200] * 6


async def test_a_client_chooses_no_rank(narrow: Sglang) -> None:
    body = {"model": narrow.model, "messages": SAID, "max_tokens": 2, "routed_dp_rank": 7}
    status, said = await post(narrow.base_url, CHAT, body)
    assert (status, "routed_dp_rank" in json.dumps(said)) == (400, True)
    async with gateway(engine_url("sglang", narrow.base_url)) as front:
        assert (await post(front.base_url, CHAT, body))[0] == 200


async def test_isolated_tenants_share_no_prefix_in_responses(
    sglang_process: Sglang, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder, keys = tmp_path_factory.mktemp("keys"), []
    for name in "ab":
        (folder / name).write_text(f"sk-{name}-{'x' * 40}")
        keys.append({"key": f"file:{folder / name}", "tenant": name, "isolate_cache": True})
    body = {"model": sglang_process.model, "input": "A long secret of a tenant. " * 60, "max_output_tokens": 2}

    async def cached_tokens(front: Gateway, name: str) -> int:
        key = (folder / name).read_text()
        status, answer = await post(front.base_url, RESPONSES, body, Authorization=f"Bearer {key}")
        assert status == 200, answer
        return int(answer["usage"]["input_tokens_details"]["cached_tokens"])

    async with gateway(engine_url("sglang", sglang_process.base_url), keys=keys) as front:
        found = [await cached_tokens(front, name) for name in "aba"]
    assert found[0] < 50
    assert found[1] < 50
    assert found[2] > 200
