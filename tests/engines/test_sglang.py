"""Laws of SGLang's file. Pages are recorded of 0.5.23, or in the shape of its documentation."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from gateway.engines.base import (
    CHAT,
    COMPLETIONS,
    EMBEDDINGS,
    MESSAGES,
    RESPONSES,
    Abilities,
    OutgoingRequest,
    PolledPool,
)
from gateway.engines.sglang import SGLang
from policies.types import Hints, QueueLimits
from tests.engines.recorded import pages

SGLANG = SGLang()
HINTS = Hints(urgency=40, session_id="s1")
MODELS = '{"data":[{"id":"m","max_model_len":4096}]}'
INFO: dict[str, Any] = {
    "version": "0.5.23",
    "enable_priority_scheduling": True,
    "schedule_low_priority_values_first": False,
    "enable_cache_report": True,
    "enable_session_radix_cache": True,
    "disable_radix_cache": False,
    "page_size": 1,
    "max_running_requests": 128,
    "max_total_num_tokens": 20480,
}


def learned(**info: Any) -> Abilities:
    abilities = SGLANG.abilities()
    SGLANG.learn({"/server_info": orjson.dumps(INFO | info).decode()}, abilities)
    return abilities


def load(rank: int, **more: int) -> dict[str, int]:
    return {"dp_rank": rank, "num_running_reqs": 2, "num_waiting_reqs": 1, "max_total_num_tokens": 9000} | more


def test_flags_are_learned_from_the_servers_own_arguments() -> None:
    abilities = learned()
    assert abilities.version == "0.5.23"
    assert abilities.honours_priority
    assert abilities.reports_cached_tokens
    assert abilities.can_address_pools
    assert abilities.refused_fields == set()


def test_it_states_where_each_rank_publishes_its_kv_events() -> None:
    stated = {"endpoint_host": "*", "endpoint_port_base": 5557, "replay_endpoint_port_base": 5567, "dp_size": 2}
    assert learned(kv_events=stated).kv_event_ports == ((5557, 5567), (5558, 5568))
    del stated["replay_endpoint_port_base"]
    assert learned(kv_events=stated).kv_event_ports == ((5557, None), (5558, None))
    assert learned(kv_events=stated | {"endpoint_host": "10.0.0.5"}).kv_event_ports == ()
    assert learned().kv_event_ports == ()


def priority(urgency: int, abilities: Abilities, path: str = CHAT) -> object:
    return SGLANG.outgoing(OutgoingRequest(path, {}, Hints(urgency=urgency)), abilities).body.get("priority")


def test_higher_goes_first_unless_the_server_flips_it() -> None:
    assert SGLANG.outgoing(OutgoingRequest(CHAT, {}, HINTS), learned()).body == {"priority": 3, "session_id": "s1"}
    flipped = learned(schedule_low_priority_values_first=True)
    assert SGLANG.outgoing(OutgoingRequest(CHAT, {}, HINTS), flipped).body["priority"] == -3


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, RESPONSES, MESSAGES, EMBEDDINGS])
def test_every_call_has_a_priority_as_one_without_is_the_lowest_there_is(path: str) -> None:
    for urgency in (-100, 0, 100):
        assert isinstance(priority(urgency, learned(), path), int)
    assert priority(0, learned(), path) == 0


def test_in_messages_only_a_header_can_rank_a_call() -> None:
    sent = SGLANG.outgoing(OutgoingRequest(MESSAGES, {}, HINTS), learned())
    assert (sent.headers, sent.body) == ((("x-override-priority", "3"),), {"priority": 3})


def test_priorities_are_few_keep_the_order_and_are_too_near_to_preempt() -> None:
    sent = [priority(urgency, learned()) for urgency in range(-100, 101)]
    assert sent == sorted(sent)  # type: ignore[type-var]
    levels = {level for level in sent if isinstance(level, int)}
    assert 3 <= len(levels) <= 5
    assert max(levels) - min(levels) <= 10
    batch, side, agent, last, higher_class = (priority(urgency, learned()) for urgency in (-20, 0, 20, 80, 10))
    assert batch < side < agent < last  # type: ignore[operator]
    assert side < higher_class  # type: ignore[operator]


def test_a_hint_for_which_the_server_was_not_started_is_not_sent() -> None:
    bare = learned(enable_priority_scheduling=False, enable_session_radix_cache=False)
    for path in (CHAT, MESSAGES, EMBEDDINGS):
        sent = SGLANG.outgoing(OutgoingRequest(path, {}, HINTS), bare)
        assert (sent.body, sent.headers) == ({}, ())
        sent = SGLANG.outgoing(OutgoingRequest(path, {}, HINTS), SGLANG.abilities())
        assert (sent.body, sent.headers) == ({}, ())


def test_a_clients_own_priority_counts_only_if_it_is_entitled() -> None:
    body = {"priority": 9, "session_id": "mine"}
    assert SGLANG.outgoing(OutgoingRequest(CHAT, body, HINTS, may_prioritise=True), learned()).body == {}
    assert SGLANG.outgoing(OutgoingRequest(CHAT, body, HINTS), learned()).body == {"priority": 3}
    bare = learned(enable_priority_scheduling=False)
    assert SGLANG.outgoing(OutgoingRequest(CHAT, body, HINTS), bare).drop == {"priority"}
    unset: dict[str, Any] = {"priority": None, "session_id": "mine"}
    assert SGLANG.outgoing(OutgoingRequest(CHAT, unset, HINTS, may_prioritise=True), learned()).body == {
        "priority": 3
    }


@pytest.mark.parametrize("path", [CHAT, MESSAGES, EMBEDDINGS])
def test_who_may_not_rank_or_place_itself_does_so_by_no_name(path: str) -> None:
    headers = {"x-override-priority": "9", "x-override-routed-dp-rank": "1", "x-data-parallel-rank": "1"}
    body = {"routed_dp_rank": 1, "data_parallel_rank": 1}
    sent = SGLANG.outgoing(OutgoingRequest(path, body, HINTS, "0", headers=headers), learned())
    assert (sent.drop, sent.drop_headers) == (frozenset(body), frozenset(headers))
    honoured = SGLANG.outgoing(
        OutgoingRequest(path, body, HINTS, "0", may_prioritise=True, headers=headers), learned()
    )
    assert (honoured.drop, honoured.drop_headers, honoured.pin) == (frozenset(), frozenset(), "")
    assert "priority" not in honoured.body


def test_each_rank_of_the_load_page_is_a_pool() -> None:
    page = {
        "/v1/models": MODELS,
        "/v1/loads": orjson.dumps({"loads": [load(0), load(1, max_running_requests=7)]}).decode(),
        "/server_info": orjson.dumps(INFO).decode(),
    }
    assert SGLANG.parse_report(page).pools == (
        PolledPool("0", 9000, 1, 128, 2, 1),
        PolledPool("1", 9000, 1, 7, 2, 1),
    )


def test_without_a_load_page_the_arguments_give_the_capacity() -> None:
    page = {"/v1/models": MODELS, "/get_server_info": orjson.dumps(INFO).decode()}
    report = SGLANG.parse_report(page)
    assert report.pools == (PolledPool("", 20480, 1, 128),)
    assert report.max_model_len == {"m": 4096}
    assert report.caches_prefixes is True


def test_prefix_hits_come_from_metrics() -> None:
    metrics = 'sglang:prompt_tokens_total{model_name="m"} 100.0\nsglang:cached_tokens_total{model_name="m"} 60.0\n'
    report = SGLANG.parse_report({"/v1/models": MODELS, "/metrics": metrics})
    assert (report.prefix_queries_tokens, report.prefix_hits_tokens) == (100, 60)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, MESSAGES, RESPONSES])
def test_a_rank_is_addressed_by_header(path: str) -> None:
    sent = SGLANG.outgoing(OutgoingRequest(path, {}, Hints(), pool="1"), learned(default_priority_value=0))
    assert ("X-Data-Parallel-Rank", "1") in sent.headers
    assert sent.pin == "X-Data-Parallel-Rank"


def test_responses_pin_and_salt_from_the_release_on_that_was_seen_to_do_so() -> None:
    before = learned(version="0.5.22")
    assert SGLANG.outgoing(OutgoingRequest(RESPONSES, {}, Hints(), pool="1"), before).pin == ""
    assert SGLANG.salted_paths(before) == {CHAT, COMPLETIONS}
    assert SGLANG.salted_paths(learned()) == {CHAT, COMPLETIONS, RESPONSES}


def test_a_fresh_server_counts_hits_although_there_was_none_yet() -> None:
    report = SGLANG.parse_report(pages("sglang-0.5.23"))
    assert (report.prefix_queries_tokens, report.prefix_hits_tokens) == (11, 0)
    assert "--enable-metrics" not in remedies(recorded_abilities())
    bare = pages("sglang-0.5.23") | {"/metrics": ""}
    bare["/server_info"] = orjson.dumps(orjson.loads(bare["/server_info"]) | {"enable_metrics": False}).decode()
    assert "--enable-metrics" in {a.remedy for a in SGLANG.advice(SGLANG.parse_report(bare), recorded_abilities())}


def test_the_flag_for_a_shorter_context_is_its_own() -> None:
    (found,) = (
        a.remedy
        for a in SGLANG.advice(SGLANG.parse_report(pages("sglang-0.5.23")), recorded_abilities())
        if "shorter" in a.remedy
    )
    assert "--context-length" in found


def test_a_prompt_is_read_back_from_its_tokens() -> None:
    asked = SGLANG.rendering("m", [{"role": "user", "content": "hi"}], [])
    assert asked is not None
    assert asked[0] in recorded_abilities().paths  # type: ignore[operator]
    again = SGLANG.rendered("m", '{"tokens":[4088,2777],"count":2,"max_model_len":32768}')
    assert again == ("/v1/detokenize", {"model": "m", "tokens": [4088, 2777], "skip_special_tokens": False})
    assert SGLANG.rendered("m", '{"text":"system\\nhi"}') == "system\nhi"
    assert SGLANG.rendered("m", '{"object":"error","message":"no template"}') == ""


def test_advice_names_the_flags_that_are_missing() -> None:
    bare = learned(enable_priority_scheduling=False, enable_session_radix_cache=False, enable_cache_report=False)
    remedies = {found.remedy for found in SGLANG.advice(SGLANG.parse_report({"/v1/models": MODELS}), bare)}
    assert {"--enable-priority-scheduling", "--enable-session-radix-cache", "--enable-cache-report"} <= remedies


@pytest.mark.parametrize(("policy", "capacity_tokens"), [("write_through", 50_000), ("write_back", 59_000)])
def test_a_host_tier_counts_once_where_it_holds_copies(policy: str, capacity_tokens: int) -> None:
    """Metric by its name in SGLang's metrics_collector.py; it has one sample per tensor-parallel rank."""
    host = 'sglang:hicache_host_total_tokens{tp_rank="0",dp_rank="%d"} %d\n'
    pages = {
        "/v1/models": MODELS,
        "/v1/loads": orjson.dumps({"loads": [load(0), load(1)]}).decode(),
        "/server_info": orjson.dumps(INFO | {"hicache_write_policy": policy}).decode(),
        "/metrics": host % (0, 50_000) + host % (1, 4_000),
    }
    pools = SGLANG.parse_report(pages).pools
    assert pools[0].capacity_tokens == capacity_tokens
    assert pools[1].capacity_tokens == (13_000 if policy == "write_back" else 9_000)


def recorded_abilities(**info: Any) -> Abilities:
    """Of the server that was recorded, started with other flags."""
    found, abilities = pages("sglang-0.5.23"), SGLANG.abilities()
    found["/server_info"] = orjson.dumps(orjson.loads(found["/server_info"]) | info).decode()
    SGLANG.learn(found, abilities)
    return abilities


def remedies(abilities: Abilities) -> set[str]:
    return {found.remedy for found in SGLANG.advice(SGLANG.parse_report(pages("sglang-0.5.23")), abilities)}


def test_a_real_server_is_advised_to_rank_requests_without_a_priority() -> None:
    assert "--default-priority-value 0" in remedies(recorded_abilities())
    assert "--default-priority-value 0" not in remedies(recorded_abilities(default_priority_value=0))
    off = recorded_abilities(enable_priority_scheduling=False)
    assert "--default-priority-value 0" not in remedies(off)
    assert recorded_abilities().preemption_gap == 10


def test_a_server_that_would_preempt_for_the_gateways_priorities_is_advised_not_to() -> None:
    remedy = "--priority-scheduling-preemption-threshold 10"
    assert remedy not in remedies(recorded_abilities())
    near = {"priority_scheduling_preemption_threshold": 2}
    assert remedy in remedies(recorded_abilities(**near))
    assert remedy not in remedies(recorded_abilities(disable_priority_preemption=True, **near))


@pytest.mark.parametrize("gap", [0, 1, 2, 3, 4, 10])
@pytest.mark.parametrize("default", [None, 0, 50])
@pytest.mark.parametrize("is_flipped", [False, True])
def test_no_priority_is_so_high_that_another_call_or_one_without_a_priority_is_preempted_for_it(
    gap: int, default: int | None, is_flipped: bool
) -> None:
    server = recorded_abilities(
        priority_scheduling_preemption_threshold=gap,
        default_priority_value=default,
        schedule_low_priority_values_first=is_flipped,
    )
    ranks = [priority(urgency, server) for urgency in range(-100, 101)]
    sign = -1 if is_flipped else 1
    levels = [sign * rank for rank in ranks if isinstance(rank, int)]
    unset = sign * default if default is not None else (-(2**63) if not is_flipped else -(2**63 - 1))
    assert levels == sorted(levels)
    assert max(levels) - min(min(levels), unset) <= gap
    assert unset - min(levels) <= 1
    assert max(map(abs, levels)) <= 2**63
    if gap:
        assert priority(-20, server) != priority(80, server)


def test_a_server_that_does_not_preempt_is_sent_levels_around_its_default() -> None:
    off = {"disable_priority_preemption": True}
    assert [priority(urgency, recorded_abilities(**off)) for urgency in (-20, 0, 80)] == [-1, 0, 3]
    server = recorded_abilities(default_priority_value=5, **off)
    assert [priority(urgency, server) for urgency in (-20, 0, 80)] == [4, 5, 8]


def test_counts_have_the_time_at_which_the_server_counted() -> None:
    (pool,) = SGLANG.parse_report(pages("sglang-0.5.23")).pools
    assert pool.counted_at == 1795332850.747588


def test_a_queue_that_takes_so_many_requests_is_a_limit_of_each_rank() -> None:
    for stated, waiting in ((None, None), (3, 3)):
        page = pages("sglang-0.5.23")
        page["/server_info"] = orjson.dumps(
            orjson.loads(page["/server_info"]) | {"max_queued_requests": stated}
        ).decode()
        (pool,) = SGLANG.parse_report(page).pools
        assert pool.limits == QueueLimits(waiting=waiting)


def test_the_gate_keeps_the_order_of_paths_whose_calls_the_server_does_not_rank() -> None:
    assert SGLANG.unranked_paths(recorded_abilities()) == {RESPONSES, MESSAGES}
    everywhere = SGLANG.unranked_paths(recorded_abilities(enable_priority_scheduling=False))
    assert {CHAT, COMPLETIONS, RESPONSES, MESSAGES} <= everywhere
    assert SGLANG.unranked_paths(recorded_abilities(priority_scheduling_preemption_threshold=0)) == everywhere


def test_the_slots_of_a_real_server_are_those_that_it_states() -> None:
    (pool,) = SGLANG.parse_report(pages("sglang-0.5.23")).pools
    assert (pool.slots, pool.capacity_tokens, pool.running, pool.waiting) == (32, 20_000, 0, 0)
