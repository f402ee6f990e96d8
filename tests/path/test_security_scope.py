"""What a key may choose beside its model: adapters, workers, stored answers. An engine sees nothing else of it."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from tests.path.conftest import Start
from tests.path.fake_engine import FakeEngine
from tests.path.secured import by, keys

ASK: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
CHAT, EMBEDDINGS, TOKENIZE = "/v1/chat/completions", "/v1/embeddings", "/tokenize"
BODIES: dict[str, dict[str, Any]] = {
    CHAT: ASK,
    EMBEDDINGS: {"model": "m", "input": "hi"},
    TOKENIZE: {"model": "m", "prompt": "hi"},
}
CHOICES: dict[str, Any] = {
    "kv_transfer_params": {"remote_host": "10.0.0.9"},
    "ec_transfer_params": {"remote_host": "10.0.0.9"},
    "bootstrap_host": "10.0.0.9",
    "bootstrap_port": 9000,
    "bootstrap_room": 7,
    "routed_dp_rank": 1,
    "data_parallel_rank": 1,
    "disagg_prefill_dp_rank": 1,
}
HEADERS = {
    "X-Override-Priority": "9",
    "x-override-max-new-tokens": "9",
    "X-Data-Parallel-Rank": "1",
    "X-Dynamo-Worker-Instance-Id": "9",
}


@pytest.mark.parametrize("kind", ["vllm", "sglang", "openai"])
@pytest.mark.parametrize("path", BODIES)
async def test_a_worker_or_a_transfer_is_chosen_by_nobody_who_may_not_prioritise(
    start: Start, engine: FakeEngine, kind: str, path: str
) -> None:
    gateway = await start(engine, kind=kind, keys=[*keys("a"), *keys("vip", may_prioritise=True)])
    assert (await gateway.ask(BODIES[path] | CHOICES, path, **HEADERS, **by("a"))).status == 200
    sent = engine.calls[-1]
    assert CHOICES.keys().isdisjoint(sent.body)
    assert {name.lower() for name in HEADERS}.isdisjoint(name.lower() for name in sent.headers)
    assert (await gateway.ask(BODIES[path] | CHOICES, path, **HEADERS, **by("vip"))).status == 200
    assert CHOICES.items() <= engine.calls[-1].body.items()
    assert engine.calls[-1].headers["x-override-max-new-tokens"] == "9"


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize(
    "choice",
    [
        {"models": ["m", "large"]},
        {"models": "large"},
        {"models": [7]},
        {"lora_path": "of-another-team"},
        {"lora_path": [None, "of-another-team"]},
        {"lora_path": {"a": 1}},
    ],
    ids=str,
)
async def test_an_adapter_or_a_second_model_is_in_the_scope_of_the_key_too(
    start: Start, engine: FakeEngine, path: str, choice: dict[str, Any]
) -> None:
    gateway = await start(engine, keys=[*keys("a", models=["m", "own-*"]), *keys("b")])
    refused = await gateway.ask(BODIES[path] | choice, path, **by("a"))
    [name] = choice
    assert (refused.status, orjson.loads(refused.body)["error"]["param"]) == (403, name)
    assert engine.calls == []
    allowed = {"models": ["m"], "lora_path": ["own-adapter", None]}
    assert (await gateway.ask(BODIES[path] | allowed, path, **by("a"))).status == 200
    assert allowed.items() <= engine.calls[-1].body.items()
    assert (await gateway.ask(BODIES[path] | choice, path, **by("b"))).status == 200


async def test_with_keys_an_answer_whose_tenant_is_not_known_is_nobody_s(start: Start, engine: FakeEngine) -> None:
    follow = {"model": "m", "input": "and?", "previous_response_id": "resp_of_whom"}
    gateway = await start(engine, keys=keys("a"))
    refused = await gateway.ask(follow, "/v1/responses", **by("a"))
    assert (refused.status, orjson.loads(refused.body)["error"]["type"]) == (404, "not_found_error")
    assert engine.calls == []
    gateway = await start(engine)
    assert (await gateway.ask(follow, "/v1/responses")).status == 200


async def test_an_id_that_two_tenants_give_is_two_ids_for_an_engine(start: Start, engine: FakeEngine) -> None:
    gateway = await start(engine, keys=keys("a", "b"))
    for tenant in "aba":
        answer = await gateway.ask(ASK, **by(tenant), X_Request_Id="7")
        assert answer.headers["X-Request-Id"] == "7"
    first, other, again = (call.headers["X-Request-Id"] for call in engine.calls)
    assert first != other
    assert first == again
    assert all(one.endswith("-7") for one in (first, other))
    gateway = await start(engine)
    await gateway.ask(ASK, X_Request_Id="7")
    assert engine.calls[-1].headers["X-Request-Id"] == "7"
