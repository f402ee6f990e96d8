"""Laws of Dynamo's file, against pages and answers of 1.6.1."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.engines.base import CHAT, MESSAGES, RESPONSES, Abilities, OutgoingRequest
from gateway.engines.dynamo import MAX_CREDIT_S, Dynamo
from policies.types import NO_LIMITS, Hints, QueueLimits
from tests.engines.recorded import pages, text

DYNAMO = Dynamo()
HINTS = Hints(urgency=80, remaining_turns=0, expected_output_tokens=120, session_id="s1", parent_id="p1")
WORKERS = ["11710274605511433170", "14878983530417185799", "3082979183884705254", "7451613640964316113"]
EVENT = text("dynamo-1.6-four", "stream.txt").split("\n\n")[1].encode() + b"\n\n"


def abilities(num_pools: int = 4) -> Abilities:
    return Abilities(version="1.6.1", can_address_pools=True, num_pools=num_pools, honours_priority=True)


def test_each_worker_is_a_pool_of_the_models_size() -> None:
    report = DYNAMO.parse_report(pages("dynamo-1.6-four"))
    assert [pool.name for pool in report.pools] == WORKERS
    assert {(p.capacity_tokens, p.block_tokens, p.slots) for p in report.pools} == {(40000, 16, 64)}
    assert report.prefix_hits_tokens == 2176


def test_a_single_worker_is_the_engine_itself() -> None:
    report = DYNAMO.parse_report(pages("dynamo-1.6-one"))
    assert [pool.name for pool in report.pools] == [""]
    assert report.pools[0].capacity_tokens == 40000


def test_a_workers_own_page_gives_its_load() -> None:
    worker = text("dynamo-1.6-four", "worker.txt").replace(
        'num_requests_running{engine="0",model_name="mock"} 0',
        'num_requests_running{engine="0",model_name="mock"} 3',
    )
    report = DYNAMO.parse_report(pages("dynamo-1.6-four") | {"http://gpu1:8081/metrics": worker})
    assert [pool.running for pool in report.pools] == [None, None, 3, None]


def busy(**thresholds: float | None) -> dict[str, str]:
    """Two workers with 375 of their 1,000 blocks in use each."""
    unset = dict.fromkeys((f"active_{name}" for name in ("decode_blocks_threshold", *_PREFILL)), None)
    row = {"model": "mock"} | unset | {f"active_{name}": value for name, value in thresholds.items()}
    return pages("dynamo-1.6-busy") | {"/busy_threshold": orjson.dumps({"thresholds": [row]}).decode()}


_PREFILL = ("prefill_tokens_threshold", "prefill_tokens_threshold_frac")


def test_thresholds_of_the_router_are_limits_of_each_worker() -> None:
    (one, other) = DYNAMO.parse_report(pages("dynamo-1.6-busy")).pools
    assert one.limits == other.limits == QueueLimits(prefill_tokens=4096)
    (one, other) = DYNAMO.parse_report(busy(prefill_tokens_threshold=3000)).pools
    assert one.limits == QueueLimits(prefill_tokens=3000)


@pytest.mark.parametrize(("threshold", "is_full"), [(0.3, True), (0.4, False), (None, False)])
def test_a_worker_above_the_threshold_of_its_blocks_is_full(threshold: float | None, is_full: bool) -> None:
    (one, other) = DYNAMO.parse_report(busy(decode_blocks_threshold=threshold)).pools
    assert one.limits == other.limits == QueueLimits(is_full=is_full)


def test_no_credit_makes_workers_that_are_sglang_preempt_what_runs() -> None:
    worker = {"http://gpu1:8081/metrics": 'sglang:num_running_reqs{engine="0"} 0\n'}
    found = Abilities()
    DYNAMO.learn(pages("dynamo-1.6-four") | worker, found)
    sent = dict(DYNAMO.outgoing(OutgoingRequest(CHAT, {}, HINTS), found).headers)
    assert int(sent["x-dynamo-request-priority"]) == 10
    DYNAMO.learn(pages("dynamo-1.6-four"), found)
    sent = dict(DYNAMO.outgoing(OutgoingRequest(CHAT, {}, HINTS), found).headers)
    assert int(sent["x-dynamo-request-priority"]) == MAX_CREDIT_S


def test_a_frontend_without_thresholds_has_no_limits() -> None:
    assert {pool.limits for pool in DYNAMO.parse_report(pages("dynamo-1.6-four")).pools} == {NO_LIMITS}
    assert {pool.limits for pool in DYNAMO.parse_report(busy()).pools} == {NO_LIMITS}


def test_a_refusal_of_a_busy_worker_is_known_by_its_text() -> None:
    assert DYNAMO.is_queue_full("Service temporarily overloaded")
    assert not DYNAMO.is_queue_full("no instances found")


def test_workers_of_several_models_count_as_one_pool_of_unknown_size() -> None:
    page = pages("dynamo-1.6-four") | {"/v1/models": '{"data":[{"id":"a"},{"id":"b"}]}'}
    (pool,) = DYNAMO.parse_report(page).pools
    assert (pool.name, pool.capacity_tokens) == ("", None)


def test_split_prefill_and_decode_count_as_one_pool() -> None:
    page = pages("dynamo-1.6-four")
    page["/health"] = page["/health"].replace('"component":"backend"', '"component":"prefill"', 1)
    (pool,) = DYNAMO.parse_report(page).pools
    assert (pool.name, pool.capacity_tokens) == ("", None)


def test_a_frontend_without_workers_serves_nothing() -> None:
    assert DYNAMO.parse_report({"/v1/models": '{"data":[]}', "/health": '{"instances":[]}'}).pools == ()


@pytest.mark.parametrize(("release", "honours"), [("dynamo-1.6-four", True), ("dynamo-1.6-round-robin", False)])
def test_only_the_kv_router_has_a_queue(release: str, honours: bool) -> None:
    learned = DYNAMO.abilities()
    DYNAMO.learn(pages(release), learned)
    assert learned.honours_priority is honours
    assert learned.version == "1.6.1"


def test_hints_go_by_header_and_output_length_by_nvext() -> None:
    sent = DYNAMO.outgoing(OutgoingRequest(CHAT, {}, HINTS), abilities(1))
    assert dict(sent.headers) == {
        "x-dynamo-session-id": "s1",
        "x-dynamo-parent-session-id": "p1",
        "x-dynamo-request-strict-priority": "4",
        "x-dynamo-request-priority": str(MAX_CREDIT_S),
    }
    assert sent.body == {"nvext": {"agent_hints": {"osl": 120}}}
    assert sent.hint_names == ("session", "priority", "osl")
    assert not sent.reads_back


def test_nearly_done_goes_before_hardly_begun() -> None:
    credits = [
        int(
            dict(DYNAMO.outgoing(OutgoingRequest(CHAT, {}, Hints(remaining_turns=n)), abilities()).headers)[
                "x-dynamo-request-priority"
            ]
        )
        for n in (0, 1, 3, 10)
    ]
    assert credits == [60, 30, 15, 5]


def test_a_worker_is_addressed_by_its_id_as_text() -> None:
    sent = DYNAMO.outgoing(OutgoingRequest(CHAT, {}, Hints(), pool=WORKERS[0]), abilities())
    assert (sent.pin, WORKERS[0]) in sent.headers
    assert not sent.reads_back


def test_the_serving_worker_is_asked_for_only_when_the_router_chooses_and_answers() -> None:
    unpinned = DYNAMO.outgoing(OutgoingRequest(CHAT, {}, Hints()), abilities())
    assert unpinned.body == {"nvext": {"extra_fields": ["worker_id"]}}
    assert unpinned.reads_back
    assert not DYNAMO.outgoing(OutgoingRequest(CHAT, {}, Hints()), abilities(1)).reads_back
    assert not DYNAMO.outgoing(OutgoingRequest(MESSAGES, {}, Hints()), abilities()).reads_back
    own = {"nvext": {"extra_fields": ["timing"]}}
    assert not DYNAMO.outgoing(OutgoingRequest(CHAT, own, Hints()), abilities()).reads_back


def test_a_worker_that_is_gone_is_dropped_for_that_call_only() -> None:
    known = abilities()
    sent = DYNAMO.outgoing(OutgoingRequest(RESPONSES, {}, HINTS, pool="12345"), known)
    refused = DYNAMO.refused_fields(400, "Invalid request", sent)
    assert refused == {"x-dynamo-worker-instance-id"}
    known.remember_refusal(refused, sent)
    assert known.refused_fields == set()
    assert not DYNAMO.refused_fields(
        400, "Invalid request", DYNAMO.outgoing(OutgoingRequest(CHAT, {}, HINTS), known)
    )


def test_a_refused_hint_is_left_out_and_the_rest_stays() -> None:
    known = abilities()
    sent = DYNAMO.outgoing(OutgoingRequest(CHAT, {}, HINTS), known)
    refused = DYNAMO.refused_fields(400, "unknown field `osl`, expected one of `priority` at line 1", sent)
    assert refused == {"nvext.agent_hints.osl"}
    known.remember_refusal(refused, sent)
    assert DYNAMO.outgoing(OutgoingRequest(CHAT, {}, HINTS), known).body == {
        "nvext": {"extra_fields": ["worker_id"]}
    }


def test_a_mistake_of_the_client_costs_no_hint() -> None:
    sent = DYNAMO.outgoing(OutgoingRequest(CHAT, {"nvext": {"bogus": 1}}, HINTS), abilities())
    message = "unknown field `bogus`, expected one of `annotations`, `extra_fields`, `agent_hints` at line 1"
    assert DYNAMO.refused_fields(400, message, sent) == frozenset()
    assert DYNAMO.refused_fields(500, "unknown field `osl`", sent) == frozenset()


def test_a_client_that_names_its_session_keeps_its_name() -> None:
    sent = DYNAMO.outgoing(OutgoingRequest(CHAT, {}, HINTS, headers={"x-session-id": "mine"}), abilities())
    assert "x-dynamo-session-id" not in dict(sent.headers)


def test_ranks_and_workers_of_a_client_count_only_if_it_is_entitled() -> None:
    headers = {"x-dynamo-request-priority": "9", "x-worker-instance-id": "7"}
    entitled = DYNAMO.outgoing(
        OutgoingRequest(CHAT, {}, HINTS, pool=WORKERS[0], may_prioritise=True, headers=headers), abilities()
    )
    assert not entitled.drop_headers
    assert dict(entitled.headers).keys() == {"x-dynamo-session-id", "x-dynamo-parent-session-id"}
    other = DYNAMO.outgoing(OutgoingRequest(CHAT, {}, HINTS, pool=WORKERS[0], headers=headers), abilities())
    assert other.drop_headers == headers.keys()
    assert {"x-dynamo-request-priority", other.pin} <= dict(other.headers).keys()


def test_ranks_in_the_body_are_overridden_by_our_headers_unless_entitled() -> None:
    body = {"nvext": {"agent_hints": {"priority": 999}, "backend_instance_id": 7}}
    entitled = DYNAMO.outgoing(
        OutgoingRequest(CHAT, body, HINTS, pool=WORKERS[0], may_prioritise=True), abilities()
    )
    assert dict(entitled.headers).keys() == {"x-dynamo-session-id", "x-dynamo-parent-session-id"}
    other = DYNAMO.outgoing(OutgoingRequest(CHAT, body, HINTS, pool=WORKERS[0]), abilities())
    assert {"x-dynamo-request-priority", other.pin} <= dict(other.headers).keys()


def test_the_worker_that_served_is_read_exactly() -> None:
    event = orjson.loads(EVENT.removeprefix(b"data: "))
    assert DYNAMO.served_by(event) in WORKERS
    assert DYNAMO.served_by({"nvext": {"timing": {}}}) is None


def test_only_the_worker_is_taken_out_of_an_event() -> None:
    assert b'"nvext"' in EVENT
    cleaned = DYNAMO.without_read_back(EVENT)
    start = EVENT.index(b',"nvext"')
    assert cleaned == EVENT[:start] + b"}\n\n"
    assert DYNAMO.without_read_back(b"data: [DONE]\n\n") == b"data: [DONE]\n\n"


JSON_TEXT: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.text() | st.just(',"nvext":{"worker_id":{"a":1}}') | st.integers(-(2**53), 2**53),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=9), JSON_TEXT, min_size=1, max_size=4), st.integers(0, 2**64 - 1))
def test_whatever_an_event_holds_comes_back_byte_for_byte(answer: dict[str, Any], worker: int) -> None:
    plain = orjson.dumps(answer)
    read_back = b',"nvext":{"worker_id":{"prefill_worker_id":%d,"decode_worker_id":%d}}' % (worker, worker)
    assert DYNAMO.without_read_back(plain[:-1] + read_back + b"}") == plain


def test_the_rendered_prompt_is_read_from_the_annotation() -> None:
    prompt = DYNAMO.rendered("m", text("dynamo-1.6-four", "stream.txt"))
    assert 0 < prompt.find("turngatetoolmark") < prompt.find("turngatesystemmark")
    assert DYNAMO.rendered("m", '{"message":"Bad Request"}') == ""


def test_a_batch_has_the_lowest_tier_and_no_credit() -> None:
    sent = dict(
        DYNAMO.outgoing(OutgoingRequest(CHAT, {}, Hints(urgency=-20, remaining_turns=0)), abilities(1)).headers
    )
    assert sent["x-dynamo-request-strict-priority"] == sent["x-dynamo-request-priority"] == "0"
