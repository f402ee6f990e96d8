"""Limits of keys over real sockets: who is refused, in which words, and what is counted of what happened."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.path.batches import Connect, asks, create, over, rows_of
from tests.path.conftest import Gateway, Start
from tests.path.fake_engine import (
    DONE,
    FakeEngine,
    chunk,
    completion,
    cuts_after,
    finish,
    replies,
    stalls_after,
    streams,
)
from tests.path.faults import CLIENT, ENGINE, fault, metrics_of, outcomes
from tests.path.secured import by, keys
from tests.path.toolkit import Bench, Says, says

ASK: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
LONG = {"window_s": 1e9, "budget_window_s": 1e9}
"""Windows that do not slide on while a test runs."""
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": ASK,
    "/v1/completions": {"model": "m", "prompt": "hi"},
    "/v1/responses": {"model": "m", "input": "hi"},
    "/v1/messages": {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]},
    "/v1/embeddings": {"model": "m", "input": "hi"},
}


async def used(gateway: Gateway, limit: str, tenant: str = "a") -> float:
    async with gateway.get("/v1/turngate/limits", **by(tenant)) as response:
        rows = (await response.json())["limits"]
    return next(float(row["used"]) for row in rows if row["limit"] == limit)


@pytest.mark.parametrize("path", BODIES)
async def test_a_request_over_its_limit_is_refused_in_its_own_dialect(
    start: Start, engine: FakeEngine, path: str
) -> None:
    engine.plays = [replies(200, completion())] * 2
    gateway = await start(engine, keys=keys("a", "b", limits={"requests": 1, **LONG}))
    first = await gateway.ask(BODIES[path], path, **by("a"))
    assert (first.status, first.body) == (200, orjson.dumps(completion()))
    assert first.headers["x-ratelimit-remaining-requests"] == "0"
    second = await gateway.ask(BODIES[path], path, **by("a"))
    assert second.status == 429
    assert int(second.headers["Retry-After"]) >= 1
    assert second.headers["x-ratelimit-limit-requests"] == "1"
    told = orjson.loads(second.body)
    assert "limits.requests" in told["error"]["message"]
    assert told["error"]["type"] == "rate_limit_error"
    assert len(engine.calls) == 1
    other = await gateway.ask(BODIES[path], path, **by("b"))
    assert other.status == 200
    page = metrics_of(gateway)
    assert 'turngate_limited_total{limit="requests"} 1.0' in page
    assert "turngate_outcomes_total" in page
    assert 'outcome="rejected_limit"' in page


async def test_a_place_is_held_while_a_request_waits_or_runs_and_given_back_however_it_ends(
    start: Start, engine: FakeEngine
) -> None:
    ending = asyncio.Event()
    engine.plays = [
        stalls_after(),
        cuts_after(chunk(content="x")),
        stalls_after(until=ending, then=replies(500, {})),
    ]
    gateway = await start(engine, keys=keys("a", limits={"concurrency": 1}), limits={"attempts": 1})
    leaving = gateway.begin(ASK, **by("a"))
    await engine.has_seen(1)
    assert (await gateway.ask(ASK, **by("a"))).status == 429
    leaving.cancel()
    await gateway.is_empty()
    cut = await gateway.ask(ASK | {"stream": True}, **by("a"))
    assert cut.is_cut
    failing = gateway.begin(ASK, **by("a"))
    await engine.has_seen(3)
    assert (await gateway.ask(ASK, **by("a"))).status == 429
    ending.set()
    assert (await failing).status >= 500
    assert (await gateway.ask(ASK, **by("a"))).status == 200
    assert await used(gateway, "concurrency") == 0


@pytest.mark.parametrize("stream", [False, True])
async def test_tokens_are_counted_as_the_engine_reports_them(
    start: Start, engine: FakeEngine, stream: bool
) -> None:
    gateway = await start(engine, keys=keys("a", limits={"tokens": 100_000, **LONG}))
    answer = await gateway.ask(ASK | {"stream": stream}, **by("a"))
    assert answer.status == 200
    assert int(answer.headers["x-ratelimit-remaining-tokens"]) < 100_000
    assert await used(gateway, "tokens") == pytest.approx(9, abs=0.1)


async def test_a_client_that_leaves_early_is_charged_what_was_estimated(start: Start, engine: FakeEngine) -> None:
    engine.plays = [stalls_after(chunk(content="x"))]
    gateway = await start(engine, keys=keys("a", limits={"tokens": 100_000, **LONG}))
    async with gateway.post(ASK | {"stream": True}, **by("a")) as response:
        await response.content.readany()
    await gateway.is_empty()
    assert await used(gateway, "tokens") > 1_000


NUM_PIECES = 4_000
THOUGHT, SECOND = chunk(reasoning_content="word "), chunk(content="word ").replace(b'"index":0', b'"index":1')


def block(**event: Any) -> bytes:
    return f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()


START = block(type="message_start", message={"model": "m", "usage": {"input_tokens": 7, "output_tokens": 1}})
PIECE = block(type="content_block_delta", index=0, delta={"type": "text_delta", "text": "word "})
SHAPES: dict[str, tuple[str, dict[str, Any], bytes, bytes]] = {
    "text": ("/v1/chat/completions", ASK, chunk(content="word "), finish()),
    "reasoning": ("/v1/chat/completions", ASK, THOUGHT, finish()),
    "two answers": ("/v1/chat/completions", ASK | {"n": 2}, SECOND, finish()),
    "anthropic": (
        "/v1/messages",
        ASK | {"max_tokens": 99_999},
        PIECE,
        block(type="message_delta", delta={"stop_reason": "end_turn"}),
    ),
}


@fault(
    CLIENT,
    "leaves before the usage of its answer",
    "its limits are charged the estimate, or what was relayed if that is more",
    outcomes("answered"),
)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("pieces_in_event", [1, 50])
async def test_what_was_relayed_is_charged_although_the_usage_never_came(
    start: Start, engine: FakeEngine, shape: str, pieces_in_event: int
) -> None:
    path, ask, piece, end = SHAPES[shape]
    begin = START if shape == "anthropic" else b""
    piece = piece.replace(b"word ", b"word " * pieces_in_event)
    parts = [begin, *[piece] * (NUM_PIECES // pieces_in_event), end]
    engine.plays = [stalls_after(*parts)] * 48
    gateway = await start(engine, keys=keys("a", limits={"budget_tokens": 10_000, **LONG}))
    for _ in range(48):
        async with gateway.post(ask | {"stream": True}, path, **by("a")) as response:
            if response.status == 429:
                break
            read = b""
            while end not in read[-1000:]:
                read += await response.content.readany()
        await gateway.is_empty()
    assert len(engine.calls) <= 3
    assert await used(gateway, "budget_tokens") == pytest.approx(NUM_PIECES * len(engine.calls), rel=0.3)


async def test_each_of_several_answers_is_in_the_estimate(start: Start, engine: FakeEngine) -> None:
    engine.plays = [stalls_after()] * 9
    gateway = await start(engine, keys=keys("a", limits={"tokens": 50_000, **LONG}))
    running = gateway.begin(ASK | {"n": 40, "max_tokens": 1_000}, **by("a"))
    await engine.has_seen(1)
    assert await used(gateway, "tokens") > 40_000
    assert (await gateway.ask(ASK | {"n": 40, "max_tokens": 1_000}, **by("a"))).status == 429
    running.cancel()


@fault(
    ENGINE,
    "reports a usage that cannot be",
    "limits are charged at most the model's length and the client's bound",
    outcomes("answered"),
)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("told", [2**63 - 1, 10**30, 40_000, -(10**9)])
async def test_a_usage_that_cannot_be_is_not_believed(
    start: Start, engine: FakeEngine, stream: bool, told: int
) -> None:
    said = {"prompt_tokens": told, "completion_tokens": told, "prompt_tokens_details": {"cached_tokens": told}}
    no_choice, choices = b'"choices":[],"usage":' + json.dumps(said).encode(), chunk().partition(b'"choices":')
    event = choices[0] + no_choice + b"}\n\n"
    whole = json.dumps(completion() | {"usage": said}).encode()
    engine.plays = [streams([chunk(content="x"), finish(), event, DONE]) if stream else replies(200, whole)]
    gateway = await start(engine, keys=keys("a", limits={"budget_tokens": 10**9, **LONG}))
    assert (await gateway.ask(ASK | {"stream": stream, "max_tokens": 50}, **by("a"))).status == 200
    assert 0 < await used(gateway, "budget_tokens") <= engine.max_model_len + 50


CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
PROMPTS: dict[str, Any] = {"model": "m", "max_tokens": 100}
WAYS: list[tuple[str, dict[str, Any], int]] = [
    *((CHAT, ASK | {"max_tokens": 100, key: n}, 4_800) for key in ("n", "best_of") for n in (48, 48.0, "48")),
    (CHAT, ASK | {"max_completion_tokens": 1, "max_tokens": 5_000}, 5_000),
    (CHAT, ASK | {"max_completion_tokens": 5_000, "max_tokens": 1}, 5_000),
    *((CHAT, ASK | {"max_tokens": bound}, 5_000) for bound in (-1, 0, "5000", 5_000.0, None)),
    (COMPLETIONS, PROMPTS | {"prompt": [[1.0], [2.0]] * 24}, 4_800),
    (COMPLETIONS, PROMPTS | {"prompt": [["1"], ["2"]] * 24}, 4_800),
    (COMPLETIONS, PROMPTS | {"prompt": ["a", [2]] * 24}, 4_800),
    (COMPLETIONS, PROMPTS | {"prompt": "a", "prompt_embeds": ["AA=="] * 48}, 4_800),
]
"""Requests for many tokens, each as some engine takes it, and the tokens of the answer."""


@pytest.mark.parametrize(("path", "body", "num_tokens"), WAYS, ids=str)
async def test_in_whatever_way_an_answer_is_made_long_it_is_charged(
    start: Start, engine: FakeEngine, path: str, body: dict[str, Any], num_tokens: int
) -> None:
    engine.plays = [replies(200, completion() | {"usage": {"prompt_tokens": 7, "completion_tokens": num_tokens}})]
    gateway = await start(engine, keys=keys("a", limits={"budget_tokens": 10**9, **LONG}))
    assert (await gateway.ask(body, path, **by("a"))).status == 200
    assert await used(gateway, "budget_tokens") == pytest.approx(num_tokens + 7)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_bound_that_the_gateway_does_not_know_makes_nothing_free_that_was_relayed(
    start: Start, engine: FakeEngine, stream: bool
) -> None:
    said = {"prompt_tokens": 7, "completion_tokens": 5_000}
    event = b'data: {"choices":[],"usage":' + json.dumps(said).encode() + b"}\n\n"
    parts = [chunk(content="word ")] * 5_000 + [finish(), event, DONE]
    whole = completion("word" * 5_000) | {"usage": said}
    engine.plays = [streams(parts) if stream else replies(200, whole)]
    gateway = await start(engine, keys=keys("a", limits={"budget_tokens": 10**9, **LONG}))
    body = ASK | {"stream": stream, "max_tokens": 1, "max_new_tokens": 5_000}
    assert (await gateway.ask(body, **by("a"))).status == 200
    assert await used(gateway, "budget_tokens") == pytest.approx(5_007)


async def test_the_usage_of_one_of_several_answers_is_not_that_of_all(start: Start, engine: FakeEngine) -> None:
    def piece(index: int, num_tokens: int, end: str | None = None) -> bytes:
        choice = {"index": index, "delta": {"content": "word "}, "finish_reason": end}
        said = {"prompt_tokens": 7, "completion_tokens": num_tokens}
        return b"data: " + json.dumps({"choices": [choice], "usage": said}).encode() + b"\n\n"

    last = piece(0, 1, "stop")
    engine.plays = [stalls_after(*(piece(i, n) for n in range(1, 101) for i in range(1, 48)), last)]
    gateway = await start(engine, keys=keys("a", limits={"budget_tokens": 10**9, **LONG}))
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = ASK | {"n": 48, "max_tokens": 100, "stream": True, "stream_options": options}
    async with gateway.post(body, **by("a")) as response:
        read = b""
        while last not in read[-1000:]:
            read += await response.content.readany()
    await gateway.is_empty()
    assert await used(gateway, "budget_tokens") == pytest.approx(4_800, rel=0.3)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, ASK | {"max_tokens": 1_000, "n": 40}),
        (CHAT, ASK | {"max_tokens": 1_000, "n": "40"}),
        (COMPLETIONS, {"model": "m", "prompt": ["hi"] * 40, "max_tokens": 1_000}),
        ("/v1/responses", {"model": "m", "input": "hi", "max_output_tokens": 40_000, "background": True}),
    ],
    ids=str,
)
async def test_what_a_client_may_leave_to_run_is_in_the_estimate(
    start: Start, engine: FakeEngine, path: str, body: dict[str, Any]
) -> None:
    engine.max_model_len, engine.otherwise = 100_000, stalls_after()
    gateway = await start(engine, keys=keys("a", limits={"tokens": 50_000, **LONG}))
    running = gateway.begin(body, path, **by("a"))
    await engine.has_seen(1)
    running.cancel()
    await gateway.is_empty()
    assert await used(gateway, "tokens") > 30_000


async def test_an_answer_in_the_background_costs_the_most_that_it_may_be(start: Start, engine: FakeEngine) -> None:
    queued: dict[str, Any] = {
        "id": "resp_1",
        "object": "response",
        "status": "queued",
        "output": [],
        "usage": None,
    }
    engine.plays = [replies(200, queued)] * 2
    gateway = await start(engine, keys=keys("a", limits={"tokens": 10**9, **LONG}))
    ask = {"model": "m", "input": "hi", "background": True}
    assert (await gateway.ask(ask | {"max_output_tokens": 9_000}, "/v1/responses", **by("a"))).status == 200
    assert await used(gateway, "tokens") == pytest.approx(9_000, rel=0.01)
    assert (await gateway.ask(ask, "/v1/responses", **by("a"))).status == 200
    assert await used(gateway, "tokens") == pytest.approx(9_000 + engine.max_model_len, rel=0.01)
    wrong = await gateway.ask(ask | {"background": "yes"}, "/v1/responses", **by("a"))
    assert (wrong.status, orjson.loads(wrong.body)["error"]["param"]) == (400, "background")


async def test_embeddings_cost_what_the_engine_says_and_no_output(start: Start, engine: FakeEngine) -> None:
    said = {"object": "list", "data": [], "usage": {"prompt_tokens": 20, "total_tokens": 20}}
    engine.plays = [replies(200, said), replies(200, {"tokens": [1]})]
    gateway = await start(engine, keys=keys("a", limits={"tokens": 10**9, **LONG}))
    assert (await gateway.ask({"model": "m", "input": "hi " * 20}, "/v1/embeddings", **by("a"))).status == 200
    assert await used(gateway, "tokens") == 20
    assert (await gateway.ask({"model": "m", "prompt": "hi"}, "/tokenize", **by("a"))).status == 200
    assert await used(gateway, "tokens") < 30


async def test_what_no_engine_did_costs_nothing(start: Start, engine: FakeEngine) -> None:
    engine.plays = [replies(400, {"error": {"message": "no", "type": "invalid_request_error"}})]
    gateway = await start(
        engine, keys=keys("a", limits={"tokens": 100_000, **LONG}), models={"answer_any_model": False}
    )
    assert (await gateway.ask(ASK, **by("a"))).status == 400
    assert (await gateway.ask(ASK | {"model": "other"}, **by("a"))).status == 404
    assert (await gateway.ask(ASK | {"messages": 7}, **by("a"))).status == 400
    assert await used(gateway, "tokens") == 0


async def test_a_token_limit_refuses_before_the_engine_is_asked(start: Start, engine: FakeEngine) -> None:
    engine.plays = [replies(200, completion() | {"usage": {"prompt_tokens": 5_000, "completion_tokens": 1}})]
    gateway = await start(engine, keys=keys("a", limits={"tokens": 5_000, **LONG}))
    assert (await gateway.ask(ASK, **by("a"))).status == 200
    refused = await gateway.ask(ASK, **by("a"))
    assert refused.status == 429
    assert "limits.tokens" in orjson.loads(refused.body)["error"]["message"]
    assert len(engine.calls) == 1


async def test_a_budget_is_spent_by_the_price_of_the_model(start: Start, engine: FakeEngine) -> None:
    engine.max_model_len = 2**20
    engine.plays = [replies(200, completion() | {"usage": {"prompt_tokens": 1_000_000, "completion_tokens": 0}})]
    gateway = await start(engine, keys=keys("a", limits={"budget_cost": 2, **LONG}), prices={"*": {"prompt": 2.5}})
    assert (await gateway.ask(ASK, **by("a"))).status == 200
    assert await used(gateway, "budget_cost") == pytest.approx(2.5)
    refused = await gateway.ask(ASK, **by("a"))
    assert orjson.loads(refused.body)["error"]["code"] == "insufficient_quota"
    assert int(refused.headers["Retry-After"]) > 3_600


async def test_every_model_call_of_an_answer_with_tools_is_counted(start: Start, engine: FakeEngine) -> None:
    bench = Bench()
    engine.plays = [says(Says(calls=(("call_search_1", "search", '{"q": "x"}'),))), says(Says("done"))]
    gateway = await start(
        engine, tools=bench.settings(), keys=keys("a", limits={"tokens": 100_000, "requests": 9, **LONG})
    )
    assert (await gateway.ask(ASK, **by("a"))).status == 200
    assert len(engine.calls) == 2
    assert await used(gateway, "tokens") == pytest.approx(30, abs=0.1)
    assert await used(gateway, "requests") == pytest.approx(1, abs=0.01)


async def test_a_list_of_prompts_is_one_request_and_all_its_tokens(start: Start, engine: FakeEngine) -> None:
    async def echoes(call: Any) -> Any:
        num = len(call.body["prompt"])
        choices = [{"index": n, "text": "x", "finish_reason": "stop"} for n in range(num)]
        usage = {"prompt_tokens": 10 * num, "completion_tokens": num, "total_tokens": 11 * num}
        return await call.reply(200, {"id": "c", "object": "text_completion", "choices": choices, "usage": usage})

    engine.plays = [echoes] * 99
    limits = {"requests": 1, "concurrency": 1, "tokens": 1_000_000, **LONG}
    gateway = await start(engine, keys=keys("a", limits=limits), policy={"slots_per_replica": 32})
    body = {"model": "m", "prompt": [f"prompt {n}" for n in range(12)], "max_tokens": 4}
    assert (await gateway.ask(body, "/v1/completions", **by("a"))).status == 200
    assert len(engine.calls) > 1
    assert await used(gateway, "requests") == pytest.approx(1, abs=0.01)
    assert await used(gateway, "tokens") == pytest.approx(132, abs=0.5)


async def test_lines_of_a_batch_are_paid_from_the_budget_of_the_key_that_made_it(
    start: Start, engine: FakeEngine, sdk: Connect, tmp_path: Path
) -> None:
    limits = {"requests": 3, "concurrency": 1, "budget_tokens": 100_000, **LONG}
    gateway = await start(
        engine, keys=keys("a", limits=limits, models=["m"]), batches={"directory": str(tmp_path)}
    )
    client = sdk(gateway, by("a")["Authorization"].removeprefix("Bearer "))
    batch = await over(client, await create(client, [asks(f"line-{n}") for n in range(5)]))
    assert batch.request_counts is not None
    assert (batch.status, batch.request_counts.completed) == ("completed", 5)
    assert len(await rows_of(client, batch.output_file_id)) == 5
    assert await used(gateway, "budget_tokens") == pytest.approx(45, abs=0.5)
    assert await used(gateway, "requests") == 0


async def test_a_key_uses_and_sees_its_own_models_only(start: Start) -> None:
    small, large = FakeEngine(model="small"), FakeEngine(model="large")
    aliases = {"gpt-big": "large", "gpt-small": "small"}
    gateway = await start(small, large, keys=keys("a", models=["sm*"]), models={"aliases": aliases})
    for path, body in BODIES.items():
        if path == "/v1/responses":
            continue
        for name in ("large", "gpt-big"):
            refused = await gateway.ask(body | {"model": name}, path, **by("a"))
            assert refused.status == 403, path
            assert "may not use the model" in orjson.loads(refused.body)["error"]["message"]
    assert (await gateway.ask(ASK | {"model": "gpt-small"}, **by("a"))).status == 200
    assert large.calls == []
    async with gateway.get("/v1/models", **by("a")) as response:
        assert {row["root"] for row in (await response.json())["data"]} == {"small"}
    async with gateway.get("/v1/models/large", **by("a")) as response:
        assert response.status == 404


async def test_the_view_of_limits_is_of_the_own_key_only(start: Start, engine: FakeEngine) -> None:
    gateway = await start(engine, keys=keys("a", "b", limits={"requests": 5}))
    async with gateway.get("/v1/turngate/limits", **by("a")) as response:
        assert {row["key"] for row in (await response.json())["limits"]} == {"key-a"}
