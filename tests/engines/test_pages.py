"""Laws of reading metrics pages."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.engines.dynamo import Dynamo
from gateway.engines.openai import OpenAI
from gateway.engines.pages import samples, total
from gateway.engines.sglang import SGLang
from gateway.engines.vllm import Vllm
from tests.engines.recorded import pages

PAGE = """# HELP x_total Help with x_total 1
# TYPE x_total counter
x_total{a="1",b="two \\"quoted\\", } and {braces}"} 3.0
x_total{a="2"} 4
x_created{a="1"} 1.7e9
x_total_count 5
x 6 1795239011
y many
y NaN
y +Inf
"""


def test_a_name_matches_only_itself() -> None:
    assert [s.value for s in samples(PAGE, {"x_total"})] == [3.0, 4.0]
    assert [s.value for s in samples(PAGE, {"x"})] == [6.0]


def test_labels_may_hold_anything() -> None:
    assert samples(PAGE, {"x_total"})[0].labels == {"a": "1", "b": 'two \\"quoted\\", } and {braces}'}


def test_a_value_that_is_no_number_is_left_out() -> None:
    assert samples(PAGE, {"y"}) == []


def test_a_total_is_none_without_the_metric() -> None:
    found = samples(PAGE, {"x_total", "z"})
    assert total(found, "x_total") == 7.0
    assert total(found, "z") is None


def test_the_time_a_counter_was_created_is_no_count() -> None:
    found = samples(pages("vllm-0.32")["/metrics"], {"vllm:prefix_cache_queries_total"})
    assert [s.value for s in found] == [313228.0]


@given(st.text())
def test_no_page_raises(page: str) -> None:
    samples(page, {"x", "{", ""})


KINDS = {"vllm": Vllm(), "sglang": SGLang(), "dynamo": Dynamo(), "openai": OpenAI()}
NUMBERS = ("1", "0", "-5", "NaN", "+Inf", "1e308", "1e400", "9" * 5_000, "x", "\u00b2", "")
NAMES = (
    *("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:prefix_cache_queries_total"),
    *("sglang:prompt_tokens_total", "sglang:hicache_host_total_tokens", "dynamo_frontend_model_total_kv_blocks"),
    *("dynamo_frontend_model_max_num_seqs", "dynamo_frontend_model_kv_cache_block_size"),
)
LINES = st.builds(
    lambda name, label, value: f'{name}{{engine="{label}",dp_rank="{label}",worker_id="{label}"}} {value}\n',
    st.sampled_from(NAMES),
    st.sampled_from(NUMBERS),
    st.sampled_from(NUMBERS),
) | st.builds(
    lambda engine, size, blocks: (
        f'vllm:cache_config_info{{engine="{engine}",block_size="{size}",num_gpu_blocks="{blocks}"}} 1\n'
    ),
    *(st.sampled_from(NUMBERS),) * 3,
)
ODD: st.SearchStrategy[Any] = st.sampled_from([None, True, -1, 0, 10**30, 1e300, "x", "9" * 5_000, [], {}])
ROWS = st.lists(
    st.fixed_dictionaries(
        {"id": ODD | st.just("m"), "max_model_len": ODD, "dp_rank": ODD, "max_total_num_tokens": ODD}
        | {"endpoint": st.just("generate"), "instance_id": ODD, "namespace": ODD, "component": st.just("c")}
    ),
    max_size=3,
)


@pytest.mark.parametrize("kind", KINDS)
@given(st.lists(LINES, max_size=8), ROWS)
def test_no_number_of_a_page_is_an_error(kind: str, lines: list[str], rows: list[Any]) -> None:
    listed = json.dumps({"data": rows, "loads": rows, "instances": rows, "version": "1." + "9" * 5_000 + ".0"})
    paths = ("/v1/models", "/v1/loads", "/health", "/server_info", "/version", "/busy_threshold")
    told = dict.fromkeys(paths, listed) | {"/metrics": "".join(lines)}
    adapter = KINDS[kind]
    adapter.learn(told, adapter.abilities())
    for pool in adapter.parse_report(told).pools:
        assert pool.capacity_tokens is None or isinstance(pool.capacity_tokens, int)


@pytest.mark.parametrize("kind", ["vllm", "sglang", "dynamo"])
def test_pools_without_end_are_taken_for_one(kind: str) -> None:
    """50,000 ranks of a metrics page stopped the gateway."""
    numbers = range(20_000)
    rows = [{"dp_rank": n, "endpoint": "generate", "component": "c", "instance_id": n} for n in numbers]
    told = {
        "/v1/models": '{"data":[{"id":"m"}]}',
        "/metrics": "".join(f'vllm:num_requests_running{{engine="{n}"}} 1\n' for n in numbers),
        "/v1/loads": json.dumps({"loads": rows}),
        "/health": json.dumps({"instances": rows}),
    }
    assert [pool.name for pool in KINDS[kind].parse_report(told).pools] == [""]
