"""Laws of SGLang's file. Pages are in the shape of its documentation (0.5), not recorded: none runs here."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from gateway.engines.base import CHAT, MESSAGES, Abilities, Asked, Pool
from gateway.engines.sglang import SGLang
from policies.types import Hints

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


def test_higher_goes_first_unless_the_server_flips_it() -> None:
    assert SGLANG.outgoing(Asked(CHAT, {}, HINTS), learned()).body == {"priority": 40, "session_id": "s1"}
    flipped = learned(schedule_low_priority_values_first=True)
    assert SGLANG.outgoing(Asked(CHAT, {}, HINTS), flipped).body["priority"] == -40


def test_what_the_server_was_not_started_for_is_not_sent() -> None:
    bare = learned(enable_priority_scheduling=False, enable_session_radix_cache=False)
    assert SGLANG.outgoing(Asked(CHAT, {}, HINTS), bare).body == {}
    assert SGLANG.outgoing(Asked(CHAT, {}, HINTS), SGLANG.abilities()).body == {}
    assert SGLANG.outgoing(Asked(MESSAGES, {}, HINTS), learned()).body == {}


def test_a_clients_own_priority_counts_only_if_it_is_entitled() -> None:
    body = {"priority": 9, "session_id": "mine"}
    assert SGLANG.outgoing(Asked(CHAT, body, HINTS, may_prioritise=True), learned()).body == {}
    assert SGLANG.outgoing(Asked(CHAT, body, HINTS), learned()).body == {"priority": 40}
    bare = learned(enable_priority_scheduling=False)
    assert SGLANG.outgoing(Asked(CHAT, body, HINTS), bare).drop == {"priority"}


def test_each_rank_of_the_load_page_is_a_pool() -> None:
    page = {
        "/v1/models": MODELS,
        "/v1/loads": orjson.dumps({"loads": [load(0), load(1, max_running_requests=7)]}).decode(),
        "/server_info": orjson.dumps(INFO).decode(),
    }
    assert SGLANG.parse_report(page).pools == (
        Pool("0", 9000, 1, 128, 2, 1),
        Pool("1", 9000, 1, 7, 2, 1),
    )


def test_without_a_load_page_the_arguments_give_the_capacity() -> None:
    page = {"/v1/models": MODELS, "/get_server_info": orjson.dumps(INFO).decode()}
    report = SGLANG.parse_report(page)
    assert report.pools == (Pool("", 20480, 1, 128),)
    assert report.max_model_len == {"m": 4096}
    assert report.caches_prefixes is True


def test_prefix_hits_come_from_metrics() -> None:
    metrics = 'sglang:prompt_tokens_total{model_name="m"} 100.0\nsglang:cached_tokens_total{model_name="m"} 60.0\n'
    report = SGLANG.parse_report({"/v1/models": MODELS, "/metrics": metrics})
    assert (report.prefix_queries_tokens, report.prefix_hits_tokens) == (100, 60)


def test_a_rank_is_addressed_by_header() -> None:
    sent = SGLANG.outgoing(Asked(CHAT, {}, Hints(), pool="1"), learned())
    assert sent.headers == (("X-Data-Parallel-Rank", "1"),)
    assert sent.pin == "X-Data-Parallel-Rank"


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
