"""What a key may choose beside its model: adapters, workers, stored answers. An engine sees nothing else of it."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from tests.path.conftest import Answer, Gateway, Start, rest_of
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
    "priority": 9,
    "nvext": {"backend_instance_id": 9, "dp_rank": 1, "agent_hints": {"priority": 9, "latency_sensitivity": 9}},
    "vllm_xargs": {"kv_transfer_params": "x", "ec_transfer_params": "x"},
}
KEPT: dict[str, Any] = {"nvext": {"agent_hints": {"osl": 7}, "x": [1]}, "vllm_xargs": {"step": 1}}
"""Beside which choices stand."""
HEADERS = {
    "X-Override-Priority": "9",
    "x-override-max-new-tokens": "9",
    "X-Data-Parallel-Rank": "1",
    "X-Dynamo-Worker-Instance-Id": "9",
    "X-Dynamo-Routing-Mode": "disaggregated",
    "X-Prefill-Dp-Rank": "1",
    "X_Override_Priority": "9",
    "X_Data_Parallel_Rank": "1",
    "X-Prefiller-Host-Port": "10.0.0.9:80",
    "X-Encoder-Hosts-Ports": "10.0.0.9:80",
    "X-Data-Parallel-Host-Port": "10.0.0.9:80",
    "X-Gateway-Destination-Endpoint": "10.0.0.9:80",
    "X-Gateway-Inference-Objective": "first",
    "X-Llm-D-Inference-Fairness-Id": "of-another-team",
    "X-Smg-Target-Worker": "9",
    "X-Smg-Priority": "system",
}


async def asked(gateway: Gateway, body: dict[str, Any], path: str, tenant: str) -> Answer:
    async with gateway.client.post(gateway.url(path), json=body, headers={**HEADERS, **by(tenant)}) as response:
        return await rest_of(response)


@pytest.mark.parametrize("kind", ["vllm", "sglang", "dynamo", "openai"])
@pytest.mark.parametrize("path", BODIES)
async def test_a_worker_or_a_transfer_is_chosen_by_nobody_who_may_not_prioritise(
    start: Start, engine: FakeEngine, kind: str, path: str
) -> None:
    gateway = await start(engine, kind=kind, keys=[*keys("a"), *keys("vip", may_prioritise=True)])
    assert (await asked(gateway, BODIES[path] | CHOICES, path, "a")).status == 200
    sent = engine.calls[-1]
    sent.body.pop("priority", None)  # of the gateway's own, as the next one is
    assert all(value in ({}, {"agent_hints": {}}) for key, value in sent.body.items() if key in CHOICES)
    assert {name.lower() for name in HEADERS}.isdisjoint(name.lower() for name in sent.headers)
    assert (await asked(gateway, BODIES[path] | CHOICES, path, "vip")).status == 200
    assert CHOICES.items() <= engine.calls[-1].body.items()
    assert engine.calls[-1].headers["x-override-max-new-tokens"] == "9"


async def test_only_what_chooses_a_worker_is_left_out_of_an_object(start: Start, engine: FakeEngine) -> None:
    gateway = await start(engine, kind="openai", keys=keys("a"))
    chosen = {key: CHOICES[key] | KEPT[key] for key in KEPT}
    chosen["nvext"] |= {"agent_hints": CHOICES["nvext"]["agent_hints"] | KEPT["nvext"]["agent_hints"]}
    for body in (KEPT, chosen):
        assert (await gateway.ask(ASK | body, **by("a"))).status == 200
        assert engine.calls[-1].body == ASK | KEPT


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("key", ["Model", "MODEL", "modeL", "Models", "model\u017f", "LORA_PATH"])
async def test_a_model_is_named_in_lower_case_as_some_servers_read_any(
    start: Start, engine: FakeEngine, path: str, key: str
) -> None:
    gateway = await start(engine, kind="openai", keys=keys("a", models=["m"]))
    refused = await gateway.ask(BODIES[path] | {key: "large"}, path, **by("a"))
    assert (refused.status, orjson.loads(refused.body)["error"]["param"]) == (400, key)
    assert engine.calls == []


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


@pytest.mark.parametrize("key", ["request_id", "rid"])
async def test_an_id_of_a_request_in_a_body_is_its_tenant_s_too(
    start: Start, engine: FakeEngine, key: str
) -> None:
    gateway = await start(engine, keys=keys("a", "b"))
    for given in ("job-7", "resp_7", ["job-7", 7], {"a": 1}):
        for tenant in "aba":
            assert (await gateway.ask(ASK | {key: given}, **by(tenant))).status == 200
        first, other, again = (call.body[key] for call in engine.calls[-3:])
        assert first == again
        assert first is None or first != other
        if isinstance(given, str):
            assert first.startswith("resp_") == given.startswith("resp_")
            assert first.endswith("-" + given.removeprefix("resp_"))
    gateway = await start(engine)
    await gateway.ask(ASK | {key: "job-7"})
    assert engine.calls[-1].body[key] == "job-7"


async def test_the_account_of_a_client_is_not_named_to_an_engine(start: Start, engine: FakeEngine) -> None:
    gateway = await start(engine, kind="openai", keys=keys("a"))
    own = {"OpenAI_Organization": "org-of-a-client", "OpenAI_Project": "proj-of-a-client"}
    assert (await gateway.ask(ASK, **own, **by("a"))).status == 200
    assert not any(name.lower().startswith("openai") for name in engine.calls[-1].headers)


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
