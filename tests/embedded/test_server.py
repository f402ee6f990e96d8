"""The embedded engine over real HTTP. Long because it goes through every endpoint of an engine."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import aiohttp
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway.embedded.model import EngineSpec
from gateway.embedded.server import EmbeddedEngine, EmbeddedSettings
from gateway.transport.aiohttp_server import AiohttpServer
from tests.deadline import DEADLINE_S

SETTINGS = EmbeddedSettings(EngineSpec(num_blocks=1000, max_num_seqs=4), model="tiny", speed=20.0)
TOOL = {"type": "function", "function": {"name": "ls", "parameters": {"type": "object"}}}
SCRIPT = {
    "content": "Let me look.\n",
    "tool_calls": [{"name": "ls", "arguments": {"path": '/tmp/"é"'}}, {"name": "ls", "arguments": "{}"}],
}
USER = {"role": "user", "content": "hello " * 40}


class Running:
    """An engine behind a real server, and clients of it."""

    def __init__(self, engine: EmbeddedEngine, port: int, http: aiohttp.ClientSession) -> None:
        self.engine = engine
        self.http = http
        self.sdk = openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0)

    async def post(self, path: str, body: Any) -> tuple[int, Any]:
        async with self.http.post(path, json=body) as reply:
            return reply.status, await reply.json()

    async def chat(self, *messages: dict[str, Any], **more: Any) -> Any:
        status, answer = await self.post(
            "/v1/chat/completions", {"model": "tiny", "messages": messages, "max_tokens": 16, **more}
        )
        assert status == 200, answer
        return answer

    async def events(self, path: str = "/v1/chat/completions", **body: Any) -> list[Any]:
        body = {"model": "tiny", "messages": [USER], "stream": True, **body}
        async with self.http.post(path, json=body) as reply:
            assert reply.status == 200, await reply.text()
            assert reply.content_type == "text/event-stream"
            raw = await reply.text()
        assert raw.endswith("data: [DONE]\n\n")
        return [json.loads(event.removeprefix("data: ")) for event in raw.split("\n\n")[:-2]]

    async def metrics(self) -> dict[str, float]:
        async with self.http.get("/metrics") as reply:
            families = text_string_to_metric_families(await reply.text())
            return {sample.name: sample.value for family in families for sample in family.samples}

    async def becomes_idle(self) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while self.engine.model.num_running + self.engine.model.num_waiting:
                await asyncio.sleep(0.005)


async def started(settings: EmbeddedSettings) -> AsyncIterator[Running]:
    engine = EmbeddedEngine(settings)
    await engine.start()
    server = AiohttpServer(engine.handler)
    port = await server.start("127.0.0.1", 0)
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as http:
        running = Running(engine, port, http)
        yield running
        await running.sdk.close()
    await server.stop(0)
    await engine.stop()


@pytest.fixture
async def running() -> AsyncIterator[Running]:
    async for one in started(SETTINGS):
        yield one


@pytest.fixture
async def unhurried() -> AsyncIterator[Running]:
    """Its longest answers outlast a test."""
    async for one in started(replace(SETTINGS, speed=1.0)):
        yield one


async def test_a_whole_answer_reports_its_usage_and_the_same_request_says_the_same(running: Running) -> None:
    first, second = [await running.chat(USER, temperature=0) for _ in range(2)]
    assert first["object"] == "chat.completion"
    assert first["choices"] == second["choices"]
    assert first["choices"][0]["finish_reason"] == "length"
    usage = first["usage"]
    assert usage["completion_tokens"] == 16
    assert usage["total_tokens"] == usage["prompt_tokens"] + 16
    assert usage["prompt_tokens_details"] == {"cached_tokens": 0}
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] == (usage["prompt_tokens"] - 1) // 16 * 16


async def test_the_next_turn_of_a_session_finds_prompt_and_answer_cached(running: Running) -> None:
    first = await running.chat(
        USER, max_tokens=200, tools=[TOOL], embedded_script={**SCRIPT, "output_tokens": 100}
    )
    turns = [USER, first["choices"][0]["message"], {"role": "tool", "tool_call_id": "x", "content": "a b c"}]
    second = await running.chat(*turns, tools=[TOOL])
    known = first["usage"]["total_tokens"] - 1
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] == known // 16 * 16


async def test_a_stream_opens_with_the_role_and_ends_with_one_finish_reason_usage_and_done(
    running: Running,
) -> None:
    events = await running.events(max_tokens=16, stream_options={"include_usage": True})
    whole = await running.chat(USER)
    assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    text = "".join(e["choices"][0]["delta"].get("content", "") for e in events if e["choices"])
    assert text == whole["choices"][0]["message"]["content"]
    assert [e["choices"][0]["finish_reason"] for e in events if e["choices"]][-1] == "length"
    assert sum(e["choices"][0]["finish_reason"] is not None for e in events if e["choices"]) == 1
    assert events[-1]["choices"] == []
    assert events[-1]["usage"]["completion_tokens"] == 16
    assert len({event["id"] for event in events}) == 1
    assert len(events) > 8


async def test_usage_is_not_streamed_unless_asked_for(running: Running) -> None:
    assert all("usage" not in event for event in await running.events(max_tokens=4))


async def test_scripted_tool_calls_stream_name_first_then_arguments_in_pieces(running: Running) -> None:
    events = await running.events(tools=[TOOL], embedded_script=SCRIPT)
    deltas = [d for e in events for d in e["choices"][0]["delta"].get("tool_calls", ())]
    for index, arguments in enumerate(['{"path":"/tmp/\\"é\\""}', "{}"]):
        head, *pieces = [d for d in deltas if d["index"] == index]
        assert (head["id"].startswith("call_"), head["type"], head["function"]["name"]) == (True, "function", "ls")
        assert all("id" not in piece for piece in pieces)
        assert "".join(piece["function"]["arguments"] for piece in pieces) == arguments
    assert events[-1]["choices"][0]["finish_reason"] == "tool_calls"


async def test_the_sdk_reads_the_same_tool_calls_streamed_and_whole(running: Running) -> None:
    asked: Any = {"model": "tiny", "messages": [USER], "tools": [TOOL], "extra_body": {"embedded_script": SCRIPT}}
    whole = (await running.sdk.chat.completions.create(**asked)).choices[0]
    async with running.sdk.chat.completions.stream(**asked) as stream:
        streamed = (await stream.get_final_completion()).choices[0]
    for choice in (whole, streamed):
        assert choice.message.content == SCRIPT["content"]
        assert [c.function.arguments for c in choice.message.tool_calls or ()] == ['{"path":"/tmp/\\"é\\""}', "{}"]
        assert choice.finish_reason == "tool_calls"


async def test_a_scripted_call_id_is_the_same_streamed_and_whole(running: Running) -> None:
    script = {"tool_calls": [{"name": "ls", "arguments": "{}", "id": "functions.ls:0"}]}
    asked: Any = {"model": "tiny", "messages": [USER], "tools": [TOOL], "extra_body": {"embedded_script": script}}
    whole = (await running.sdk.chat.completions.create(**asked)).choices[0]
    async with running.sdk.chat.completions.stream(**asked) as stream:
        streamed = (await stream.get_final_completion()).choices[0]
    assert [c.id for choice in (whole, streamed) for c in choice.message.tool_calls or ()] == [
        "functions.ls:0"
    ] * 2


@pytest.mark.parametrize("as_ids", [False, True])
async def test_completions_take_text_or_token_ids(running: Running, as_ids: bool) -> None:
    prompt: Any = "Once upon a time " * 10
    _, tokens = await running.post("/tokenize", {"model": "tiny", "prompt": prompt})
    body = {"model": "tiny", "prompt": tokens["tokens"] if as_ids else prompt, "max_tokens": 8, "ignore_eos": True}
    status, answer = await running.post("/v1/completions", body)
    assert (status, answer["usage"]["prompt_tokens"]) == (200, tokens["count"])
    events = await running.events("/v1/completions", **body)
    assert "".join(e["choices"][0]["text"] for e in events) == answer["choices"][0]["text"]
    assert events[-1]["choices"][0]["finish_reason"] == answer["choices"][0]["finish_reason"] == "length"


async def test_detokenize_inverts_tokenize_and_chat_is_tokenized_as_it_is_rendered(running: Running) -> None:
    chat: dict[str, Any] = {
        "model": "tiny",
        "messages": [{"role": "system", "content": "Sys."}, USER],
        "tools": [TOOL],
    }
    _, tokens = await running.post("/tokenize", chat)
    _, text = await running.post("/detokenize", {"model": "tiny", "tokens": tokens["tokens"]})
    assert text["prompt"].index("Sys.") < text["prompt"].index('"ls"') < text["prompt"].index("hello")
    assert text["prompt"].endswith("<|im_start|>assistant\n")
    answer = await running.chat(*chat["messages"], tools=[TOOL])
    assert answer["usage"]["prompt_tokens"] == tokens["count"]


@pytest.mark.parametrize(
    ("path", "body", "status", "says"),
    [
        ("/v1/chat/completions", {"model": "other", "messages": [USER]}, 404, "`other` does not exist"),
        (
            "/v1/chat/completions",
            {"messages": [USER], "max_tokens": 16_000},
            400,
            "maximum context length is 16000",
        ),
        (
            "/v1/chat/completions",
            {"messages": [{**USER, "content": "x " * 40_000}]},
            400,
            "maximum context length",
        ),
        ("/v1/chat/completions", {"messages": []}, 400, "messages"),
        ("/v1/chat/completions", {"messages": [USER], "n": 0}, 400, "n must be"),
        ("/v1/chat/completions", {"messages": [USER], "best_of": 2}, 400, "best_of"),
        ("/v1/chat/completions", {"messages": [USER], "stop": [""]}, 400, "stop"),
        ("/v1/chat/completions", {"messages": [USER], "tool_choice": "required"}, 400, "offers no tools"),
        (
            "/v1/chat/completions",
            {
                "messages": [USER],
                "tools": [TOOL],
                "tool_choice": {"type": "function", "function": {"name": "x"}},
            },
            400,
            "'x'",
        ),
        ("/v1/chat/completions", {"messages": [USER], "response_format": {"type": "xml"}}, 400, "json_schema"),
        (
            "/v1/chat/completions",
            {"messages": [USER], "structured_outputs": {"grammar": "root ::= x"}},
            400,
            "grammar",
        ),
        ("/v1/chat/completions", {"messages": [USER], "guided_json": {"type": "x"}}, 400, "'x' is unknown"),
        (
            "/v1/chat/completions",
            {"messages": [USER], "guided_regex": "a", "guided_choice": ["a"]},
            400,
            "Only one kind",
        ),
        ("/v1/embeddings", {"input": []}, 400, "input"),
        ("/v1/embeddings", {"input": "a", "dimensions": 10**6}, 400, "dimensions"),
        ("/v1/responses", {"input": ""}, 400, "input"),
        ("/v1/responses", {"input": "x", "previous_response_id": "r"}, 400, "stores no responses"),
        ("/v1/responses", {"input": [{"type": "item_reference", "id": "x"}]}, 400, "item_reference"),
        ("/v1/responses", {"input": "x", "background": True}, 400, "background"),
        ("/v1/chat/completions", {"messages": [USER], "max_tokens": 0}, 400, "at least 1"),
        ("/v1/chat/completions", {"messages": [USER], "priority": "high"}, 400, "priority"),
        (
            "/v1/chat/completions",
            {"messages": [USER], "stream_options": {"include_usage": True}},
            400,
            "stream=True",
        ),
        ("/v1/chat/completions", {"messages": [USER], "embedded_script": 3}, 400, "embedded_script"),
        ("/v1/chat/completions", [], 400, "JSON object"),
        ("/v1/completions", {"prompt": ["a", [1]]}, 400, "one text"),
        ("/v1/completions", {"prompt": [255]}, 400, "no token"),
        ("/detokenize", {"tokens": [255]}, 400, "no token"),
        ("/v1/rerank", {"input": "x"}, 404, "does not serve /v1/rerank"),
        ("/v1/models", {}, 405, "POST"),
    ],
)
async def test_refusals_have_openais_shape(running: Running, path: str, body: Any, status: int, says: str) -> None:
    got, answer = await running.post(path, body)
    assert (got, answer["error"]["code"]) == (status, status)
    assert says in answer["error"]["message"]
    assert {"type", "param"} < answer["error"].keys()


@pytest.mark.parametrize(
    ("more", "status", "kind"),
    [({}, 400, "invalid_request_error"), ({"model": "x", "max_tokens": 1}, 404, "not_found_error")],
)
async def test_messages_are_refused_in_anthropics_shape(
    running: Running, more: Any, status: int, kind: str
) -> None:
    got, answer = await running.post("/v1/messages", {"messages": [USER], **more})
    assert (got, answer["type"], answer["error"]["type"]) == (status, "error", kind)


async def test_with_priority_scheduling_the_lowest_number_is_answered_first() -> None:
    spec = EngineSpec(num_blocks=1000, max_num_seqs=1, priority_scheduling=True)
    async for running in started(replace(SETTINGS, spec=spec, speed=1.0)):
        order: list[int] = []

        async def ask(running: Running, order: list[int], priority: int) -> None:
            await running.chat(USER, priority=priority)
            order.append(priority)

        async with asyncio.TaskGroup() as clients, asyncio.timeout(DEADLINE_S):
            first = clients.create_task(running.chat(USER, max_tokens=10_000, ignore_eos=True, priority=-9))
            for num_waiting, priority in enumerate((7, 3, 0, 5)):
                while running.engine.model.num_waiting < num_waiting or not running.engine.model.num_running:
                    await asyncio.sleep(0.001)
                clients.create_task(ask(running, order, priority))
            while running.engine.model.num_waiting < 4:
                await asyncio.sleep(0.001)
            first.cancel()
        assert order == [0, 3, 5, 7]


async def test_the_engine_reports_its_version_and_paths(running: Running) -> None:
    async with running.http.get("/v1/models") as reply:
        [card] = (await reply.json())["data"]
    assert (card["id"], card["max_model_len"]) == ("tiny", 16_000)
    async with running.http.get("/health") as reply:
        assert (reply.status, await reply.read()) == (200, b"")
    async with running.http.get("/version") as reply:
        assert "embedded" in (await reply.json())["version"]
    async with running.http.get("/openapi.json") as reply:
        paths = (await reply.json())["paths"]
    assert "/v1/chat/completions" in paths
    assert {"/v1/responses", "/v1/messages", "/v1/messages/count_tokens", "/v1/embeddings"} <= paths.keys()
    async with running.http.get("/metrics") as reply:
        page = await reply.text()
    assert 'block_size="16"' in page
    assert 'num_gpu_blocks="1000"' in page


async def test_metrics_carry_vllms_names_and_count_what_answers_said(running: Running) -> None:
    answers = [await running.chat(USER) for _ in range(3)]
    usage = [answer["usage"] for answer in answers]
    metrics = await running.metrics()
    assert metrics["vllm:prompt_tokens_total"] == sum(u["prompt_tokens"] for u in usage)
    cached = sum(u["prompt_tokens_details"]["cached_tokens"] for u in usage)
    assert metrics["vllm:prefix_cache_hits_total"] == metrics["vllm:prompt_tokens_cached_total"] == cached
    assert metrics["vllm:prefix_cache_queries_total"] == metrics["vllm:prompt_tokens_total"]
    assert metrics["vllm:generation_tokens_total"] == 48
    assert metrics["vllm:request_success_total"] == metrics["vllm:time_to_first_token_seconds_count"] == 3
    idle = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "num_preemptions_total")
    assert [metrics[f"vllm:{name}"] for name in idle] == [0, 0, 0, 0]


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_stops_the_work_running_or_queued(unhurried: Running, stream: bool) -> None:
    body = {"model": "tiny", "messages": [USER], "max_tokens": 10_000, "ignore_eos": True, "stream": stream}

    async def ask() -> None:
        async with unhurried.http.post("/v1/chat/completions", json=body) as reply:
            await reply.read()

    clients = [asyncio.create_task(ask()) for _ in range(6)]
    async with asyncio.timeout(DEADLINE_S):
        while (unhurried.engine.model.num_running, unhurried.engine.model.num_waiting) != (4, 2):
            await asyncio.sleep(0.005)
    for client in clients:
        client.cancel()
    await asyncio.gather(*clients, return_exceptions=True)
    await unhurried.becomes_idle()
    assert unhurried.engine.model.pool.num_used == 0


async def test_a_stopped_engine_cuts_streams_and_refuses_the_rest(unhurried: Running) -> None:
    body = {"model": "tiny", "messages": [USER], "max_tokens": 10_000, "ignore_eos": True, "stream": True}
    async with unhurried.http.post("/v1/chat/completions", json=body) as reply:
        await reply.content.readany()
        await unhurried.engine.stop()
        with pytest.raises(aiohttp.ClientError):
            await reply.read()
    status, answer = await unhurried.post("/v1/chat/completions", {"model": "tiny", "messages": [USER]})
    assert (status, answer["error"]["code"]) == (503, 503)
    async with unhurried.http.get("/health") as health:
        assert health.status == 503
