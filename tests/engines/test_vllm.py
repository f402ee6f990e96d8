"""Laws of vLLM's file, against pages of 0.32."""

from __future__ import annotations

import json

import pytest

from gateway.engines.base import CHAT, MESSAGES, RESPONSES, Abilities, Outgoing, OutgoingRequest, PolledPool
from gateway.engines.vllm import SERVER_INFO, Vllm
from policies.types import NO_LIMITS, Hints, QueueLimits
from tests.engines.recorded import pages, text

VLLM = Vllm()
HINTS = Hints(urgency=40, session_id="s1")


def new() -> Abilities:
    return Abilities(version="0.32.0", can_address_pools=True, lower_goes_first=True)


def old() -> Abilities:
    return Abilities(version="0.11.2", lower_goes_first=True)


def test_a_poll_gives_capacity_load_and_prefix_counters() -> None:
    report = VLLM.parse_report(pages("vllm-0.32"))
    assert report.models == ("tiny",)
    assert report.max_model_len == {"tiny": 32768}
    assert report.pools == (PolledPool("", capacity_tokens=64000, block_tokens=32, running=0, waiting=0),)
    assert (report.prefix_queries_tokens, report.prefix_hits_tokens) == (313228, 241792)
    assert report.caches_prefixes is True


def test_it_states_where_each_rank_publishes_its_kv_events() -> None:
    stated = {
        "0": {"endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:5567"},
        "1": {"endpoint": "tcp://*:5558", "replay_endpoint": None},
        "2": {"endpoint": "tcp://10.0.0.5:5559"},
    }
    abilities = new()
    Vllm().learn(pages("vllm-0.32") | {"/kv_event_sources": json.dumps(stated)}, abilities)
    assert abilities.kv_event_ports == ((5557, 5567), (5558, None))


def test_what_a_server_in_dev_mode_states_of_its_scheduler_is_known() -> None:
    limited = pages("vllm-0.32") | {SERVER_INFO: text("vllm-0.32", "server_info_limited.json")}
    (pool,) = VLLM.parse_report(limited).pools
    assert pool.limits == QueueLimits(calls=5, prompt_tokens=6000)
    ranks = pages("vllm-0.32-ranks") | {SERVER_INFO: limited[SERVER_INFO]}
    assert {pool.limits for pool in VLLM.parse_report(ranks).pools} == {QueueLimits(calls=2, prompt_tokens=3000)}
    abilities = new()
    VLLM.learn(limited, abilities)
    assert abilities.honours_priority
    VLLM.learn({SERVER_INFO: limited[SERVER_INFO].replace('"priority"', '"fcfs"')}, abilities)
    assert abilities.honours_priority is False


def test_a_server_that_states_nothing_has_no_limits() -> None:
    (pool,) = VLLM.parse_report(pages("vllm-0.32")).pools
    assert pool.limits == NO_LIMITS


@pytest.mark.parametrize(
    "text",
    [
        "The engine is currently busy and cannot accept new requests. Please try again later.",
        "The engine has reached its prefill token backlog limit. Please try again later.",
    ],
)
def test_a_refusal_for_a_full_queue_is_known_by_its_text(text: str) -> None:
    assert VLLM.is_queue_full(text)
    assert not VLLM.is_queue_full("EngineCore encountered an issue.")


def test_prefix_caching_that_is_off_is_seen() -> None:
    report = VLLM.parse_report(pages("vllm-0.32-plain"))
    assert report.caches_prefixes is False
    assert "--enable-prefix-caching" in [found.remedy for found in VLLM.advice(report, new())]


def test_each_data_parallel_rank_is_a_pool() -> None:
    report = VLLM.parse_report(pages("vllm-0.32-ranks"))
    assert report.pools == (PolledPool("0", 9600, 32, None, 0, 0), PolledPool("1", 9600, 32, None, 0, 0))


def test_ranks_are_in_the_order_of_their_numbers() -> None:
    page = pages("vllm-0.32-ranks")
    page["/metrics"] = page["/metrics"].replace('engine="1"', 'engine="10"') + page["/metrics"].replace(
        '"0"', '"2"'
    )
    assert [pool.name for pool in VLLM.parse_report(page).pools] == ["0", "1", "2", "10"]


def test_capacity_of_older_releases_is_blocks_times_size() -> None:
    page = {"/metrics": 'vllm:cache_config_info{block_size="16",num_gpu_blocks="100",engine="0"} 1.0'}
    assert VLLM.parse_report(page).pools[0].capacity_tokens == 1600
    page = {"/metrics": 'vllm:cache_config_info{block_size="16",num_gpu_blocks="None"} 1.0'}
    assert VLLM.parse_report(page).pools[0].capacity_tokens is None


def test_without_metrics_a_served_model_still_has_a_pool() -> None:
    assert VLLM.parse_report({"/v1/models": '{"data":[{"id":"m"}]}'}).pools == (PolledPool(""),)


def test_version_and_paths_are_learned() -> None:
    abilities = VLLM.abilities()
    VLLM.learn(pages("vllm-0.32"), abilities)
    assert abilities.version == "0.32.0"
    assert abilities.can_address_pools
    assert abilities.paths is not None
    assert {"/tokenize", MESSAGES} <= abilities.paths


def test_the_rendered_prompt_is_read_from_token_strings() -> None:
    prompt = VLLM.rendered("m", text("vllm-0.32", "tokenize.json"))
    assert 0 < prompt.find("turngatesystemmark") < prompt.find("turngatetoolmark")
    assert VLLM.rendered("m", '{"tokens":[1],"token_strs":null}') == ""


def test_priority_goes_as_a_header_lower_first() -> None:
    sent = VLLM.outgoing(OutgoingRequest(MESSAGES, {}, HINTS), new())
    assert sent.headers == (("X-Session-ID", "s1"), ("X-Vllm-Priority", "-40"))
    assert sent.body == {}
    assert sent.hint_names == ("session", "priority")


def test_older_releases_get_priority_in_the_body() -> None:
    assert VLLM.outgoing(OutgoingRequest(CHAT, {}, HINTS), old()).body == {"priority": -40}
    assert VLLM.outgoing(OutgoingRequest(MESSAGES, {}, HINTS), old()).body == {}


def test_a_refused_priority_is_not_sent_again() -> None:
    abilities = old()
    sent = VLLM.outgoing(OutgoingRequest(CHAT, {}, HINTS), abilities)
    refused = VLLM.refused_fields(400, "Got priority -40 but Priority scheduling is not enabled.", sent)
    assert refused == {"priority"}
    abilities.remember_refusal(refused, sent)
    assert VLLM.outgoing(OutgoingRequest(CHAT, {}, HINTS), abilities).body == {}


@pytest.mark.parametrize(("body", "headers"), [({"priority": -9}, {}), ({}, {"X-Vllm-Priority": "-9"})])
def test_a_clients_own_priority_counts_only_if_it_is_entitled(
    body: dict[str, int], headers: dict[str, str]
) -> None:
    headers |= {name.lower(): value for name, value in headers.items()}
    entitled = VLLM.outgoing(OutgoingRequest(CHAT, body, HINTS, may_prioritise=True, headers=headers), new())
    assert entitled.headers == (("X-Session-ID", "s1"),)
    assert not entitled.drop | entitled.drop_headers
    other = VLLM.outgoing(OutgoingRequest(CHAT, body, HINTS, headers=headers), new())
    assert ("X-Vllm-Priority", "-40") in other.headers
    assert other.drop | other.drop_headers == ({"priority"} if body else {"x-vllm-priority"})


def test_a_session_id_of_the_client_stays() -> None:
    assert (
        VLLM.outgoing(OutgoingRequest(CHAT, {"session_id": "mine"}, Hints(session_id="s1")), new()) == Outgoing()
    )
    own = {"x-session-id": "mine"}
    assert VLLM.outgoing(OutgoingRequest(CHAT, {}, Hints(session_id="s1"), headers=own), new()) == Outgoing()


def test_a_rank_is_addressed_where_vllm_reads_it() -> None:
    sent = VLLM.outgoing(OutgoingRequest(CHAT, {}, Hints(), pool="3"), new())
    assert sent.headers == (("X-data-parallel-rank", "3"),)
    assert VLLM.outgoing(OutgoingRequest(RESPONSES, {}, Hints(), pool="3"), new()).pin == ""


def test_a_refused_rank_is_dropped_for_that_call_only() -> None:
    abilities = new()
    sent = VLLM.outgoing(OutgoingRequest(CHAT, {}, Hints(), pool="5"), abilities)
    refused = VLLM.refused_fields(400, "data_parallel_rank 5 is out of range [0, 1).", sent)
    assert refused == {sent.pin}
    abilities.remember_refusal(refused, sent)
    assert abilities.refused_fields == set()


def test_nothing_is_added_to_what_is_no_conversation() -> None:
    assert VLLM.outgoing(OutgoingRequest("/v1/embeddings", {"priority": 1}, HINTS, pool="1"), new()) == Outgoing()


def test_only_what_waits_for_room_counts_as_waiting() -> None:
    page = pages("vllm-0.32")
    deferred = 'vllm:num_requests_waiting_by_reason{engine="0",model_name="tiny",reason="deferred"}'
    whole = 'vllm:num_requests_waiting{engine="0",model_name="tiny"}'
    page["/metrics"] = (
        page["/metrics"].replace(f"{deferred} 0.0", f"{deferred} 3.0").replace(f"{whole} 0.0", f"{whole} 3.0")
    )
    assert VLLM.parse_report(page).pools[0].waiting == 0
    page["/metrics"] = page["/metrics"].replace("_by_reason", "_by_something")
    assert VLLM.parse_report(page).pools[0].waiting == 3


def test_a_batch_goes_after_what_has_no_priority() -> None:
    sent = VLLM.outgoing(OutgoingRequest(CHAT, {}, Hints(urgency=-30)), new())
    assert sent.headers == (("X-Vllm-Priority", "30"),)
