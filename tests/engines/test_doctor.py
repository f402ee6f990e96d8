"""Laws of the report on engines."""

from __future__ import annotations

from dataclasses import replace

import orjson
import pytest

from gateway.engines import doctor
from gateway.engines.base import EngineAddress, KvEventSource
from gateway.engines.kinds import adapter_of
from gateway.engines.poller import RunningEngine
from tests.engines.recorded import pages


def running(kind: str, release: str) -> RunningEngine:
    engine, served = adapter_of(kind), pages(release)
    abilities = engine.abilities()
    engine.learn(served, abilities)
    report = engine.parse_report(served)
    abilities.num_pools = len(report.pools)
    address = EngineAddress(kind, "http://gpu1:8000", "secret", name="gpu1:8000")
    return RunningEngine(address, engine, abilities, report, is_up=True, problem="")


def test_the_report_says_what_an_engine_is_and_honours() -> None:
    engine = running("dynamo", "dynamo-1.6-four")
    row = orjson.loads(orjson.dumps(doctor.health_row(engine)))
    assert (row["kind"], row["version"], row["is_up"]) == ("dynamo", "1.6.1", True)
    assert row["models"] == ["mock"]
    assert [pool["capacity_tokens"] for pool in row["pools"]] == [40000] * 4
    assert row["honours"] == {"priority": True, "pool_addressing": True, "refused_fields": []}
    assert row["reports_cached_tokens"] is None
    facts = {line.split("  ")[1]: line for line in doctor.as_text([engine]).splitlines()[1:]}
    assert facts["priority"].endswith(" yes, while its router queues (--router-queue-threshold)")
    assert facts["tools"].endswith(" not known")
    assert "/v1/messages" in facts["serves"]


def test_the_row_in_health_can_be_sent_and_holds_no_secret() -> None:
    body = orjson.dumps(doctor.health_row(running("vllm", "vllm-0.32")))
    assert b"secret" not in body


def test_the_text_names_flags_that_should_be_on() -> None:
    engine = running("vllm", "vllm-0.32-plain")
    text = doctor.as_text([engine])
    assert "plain (context 8,192 tokens)" in text
    assert "9,600 tokens, blocks of 32" in text
    assert "--enable-prefix-caching" in text
    assert "used if it has --scheduling-policy priority" in text
    assert "try: --scheduling-policy priority" not in text
    engine.abilities.honours_priority = False
    assert "try: --scheduling-policy priority" in doctor.as_text([engine])


@pytest.mark.parametrize(
    ("problem", "remedy"),
    [
        ("http://gpu1:8000 does not accept connections", "start it"),
        ("GET /v1/models answered 401", "give the engine its key"),
        ("GET /v1/models answered 404", "without a path"),
        ("GET /v1/models answered 500", None),
    ],
)
def test_an_engine_that_is_down_says_why_and_what_to_try_and_gets_no_advice_about_flags(
    problem: str, remedy: str | None
) -> None:
    engine = running("vllm", "vllm-0.32")
    engine.is_up, engine.problem = False, problem
    first, *rest = doctor.as_text([engine]).splitlines()
    assert first == f"gpu1:8000  vllm 0.32.0  DOWN: {problem}"
    assert [remedy in line for line in rest if remedy] == ([True] if remedy else [])
    assert doctor.health_row(engine)["advice"] == []


def test_an_engine_of_another_kind_than_its_address_says_is_pointed_out() -> None:
    engine = adapter_of("vllm")
    for prefix, expected in (("dynamo_frontend_", "dynamo://"), ("turngate_", "no engine"), ("vllm:", None)):
        abilities = engine.abilities()
        engine.learn({"/metrics": f"# HELP x\n{prefix}x 1\n"}, abilities)
        one = replace(running("vllm", "vllm-0.32"), abilities=abilities)
        advice = [f"{found.problem} {found.remedy}" for found in doctor.advice_of(one)]
        assert any(expected in text for text in advice) if expected else not abilities.looks_like


def test_the_embedded_engine_goes_by_its_own_name_and_gets_no_advice_about_flags() -> None:
    row = doctor.health_row(running("embedded", "vllm-0.32-plain"))
    assert (row["kind"], row["advice"]) == ("embedded", [])


def test_pools_that_count_as_one_are_pointed_out() -> None:
    engine = running("vllm", "vllm-0.32")
    engine.abilities.num_pools = 8
    engine.abilities.can_address_pools = False
    assert "its 8 KV pools cannot be addressed and count as one" in doctor.as_text([engine])


def test_an_unknown_size_says_what_happens_instead() -> None:
    engine = running("vllm", "vllm-0.32")
    engine.report = replace(engine.report, pools=(replace(engine.report.pools[0], capacity_tokens=None),))
    assert "size not known" in doctor.as_text([engine])


def test_the_text_says_whether_kv_events_arrive() -> None:
    engine = running("vllm", "vllm-0.32")
    assert "KV events" not in doctor.as_text([engine])
    engine.address = replace(engine.address, kv_events=(KvEventSource("tcp://gpu1:5557"),))
    assert "none heard yet" in doctor.as_text([engine])
    engine.kv_events.num_batches = 3
    assert "3 batches heard" in doctor.as_text([engine])
    engine.kv_events.problem = "tcp://gpu1:5557: Address already in use"
    assert "already in use" in doctor.as_text([engine])


def test_an_engine_that_refuses_tools_is_shown_with_its_flag() -> None:
    engine = running("vllm", "vllm-0.32")
    engine.abilities.takes_tools = False
    text = doctor.as_text([engine])
    assert "it refuses requests that offer tools: no agent can work" in text
    assert "--enable-auto-tool-choice --tool-call-parser" in text


def test_every_kind_of_engine_has_a_flag_for_tools() -> None:
    for kind in ("vllm", "sglang", "dynamo", "openai"):
        engine = running("vllm", "vllm-0.32")
        engine.adapter = adapter_of(kind)
        engine.abilities = replace(engine.adapter.abilities(), takes_tools=False)
        assert "tool" in doctor.as_text([engine])


def test_a_pool_for_hardly_one_context_is_pointed_out() -> None:
    engine = running("vllm", "vllm-0.32-plain")
    assert "a KV pool holds only 1.2 contexts of full length (8,192 tokens)" in doctor.as_text([engine])


def test_prefill_in_one_piece_is_pointed_out() -> None:
    engine = running("vllm", "vllm-0.32")
    assert "long prompt" not in doctor.as_text([engine])
    engine.report = replace(engine.report, chunks_prefill=False)
    assert "all other requests wait while it prefills a long prompt" in doctor.as_text([engine])


@pytest.mark.parametrize(("url", "is_rented"), [("https://api.openai.com", True), ("http://gpu1:8080", False)])
def test_the_report_says_whether_an_engine_is_rented(url: str, is_rented: bool) -> None:
    engine = running("openai", "vllm-0.32")
    engine.address = replace(engine.address, base_url=url)
    assert doctor.health_row(engine)["is_rented"] is is_rented
    text = doctor.as_text([engine])
    assert ("each token costs money" in text) is is_rented
    assert ("if it is vLLM, SGLang or Dynamo, say so" in text) is not is_rented
    assert ("name its kind: vllm+https://" in text) is is_rented
