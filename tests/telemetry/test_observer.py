"""Laws of what is observed: counted once, labels bounded, no content, receipts only to their tenant."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import cast

import pytest
from prometheus_client import CollectorRegistry

from gateway.config.settings import Logging
from gateway.core.errors import Failure, Outcome
from gateway.core.transport import Request
from gateway.exchange import Payload, Recognition, Timings
from gateway.telemetry import logs
from gateway.telemetry.metrics import MAX_LABEL_SETS, Counter, FleetGauges
from gateway.telemetry.observer import Observer, Recomputation
from policies.engine_queue import EngineTime
from policies.fleet import FleetView
from policies.types import (
    Tick,
    TurnKind,
    Usage,
    WaitCause,
    Waited,
)
from tests.telemetry.observed import FLEET, Asked, Engines, exchange, observer


def sample(seen: Observer, name: str, **labels: str) -> float | None:
    return seen.metrics.registry.get_sample_value(f"turngate_{name}", labels)


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    """The log as text; the process's own handlers come back afterwards."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers = []
    stream = io.StringIO()
    logs.setup(Logging(), stream)
    yield stream
    root.handlers, root.level = handlers, level


def test_a_finished_exchange_is_counted_with_its_outcome_turn_and_times() -> None:
    seen = observer()
    seen.finished(exchange())
    assert sample(seen, "outcomes_total", outcome="answered", path="chat") == 1
    assert sample(seen, "turns_total", kind="agent", reason="resident") == 1
    assert sample(seen, "wait_seconds_sum", reason="resident") == pytest.approx(2.0)
    assert sample(seen, "ttft_seconds_sum", turn="later") == pytest.approx(2.5)
    assert sample(seen, "overhead_seconds_sum") == pytest.approx(0.01)
    assert sample(seen, "prompt_tokens_total", model="m", tenant="a") == 1000
    assert sample(seen, "output_tokens_total", model="m", tenant="a") == 50
    assert sample(seen, "tenant_wait_seconds_total", tenant="a") == pytest.approx(2.0)
    assert sample(seen, "cached_tokens_total", replica="a", kind="expected") == 900
    assert sample(seen, "cached_tokens_total", replica="a", kind="actual") == 800


def test_tenants_and_models_beyond_the_bound_are_counted_together() -> None:
    seen = observer()
    for number in range(MAX_LABEL_SETS + 5):
        seen.finished(exchange(tenant=f"t{number}"))
    assert sample(seen, "prompt_tokens_total", model="other", tenant="other") == 5_000
    assert sample(seen, "tenant_wait_seconds_total", tenant="other") == pytest.approx(10.0)


def test_a_request_that_was_refused_at_the_door_is_counted_without_a_turn() -> None:
    seen = observer()
    seen.finished(
        exchange(
            recognition=None, dispatch=None, outcome=Outcome.BAD_REQUEST, timings=Timings(1.0, finished_at=1.1)
        )
    )
    assert sample(seen, "outcomes_total", outcome="bad_request", path="chat") == 1
    assert sample(seen, "overhead_seconds_count") == 0
    assert b"turngate_turns_total{" not in seen.metrics.exposition()


def test_first_later_and_side_turns_are_timed_apart() -> None:
    seen = observer()
    for index, kind in ((0, TurnKind.AGENT), (3, TurnKind.AGENT), (0, TurnKind.SIDE), (0, TurnKind.SINGLE)):
        seen.finished(exchange(recognition=Recognition("s", "f", None, index, kind, "chain", 1.0, False, (), 0)))
    counts = {turn: sample(seen, "ttft_seconds_count", turn=turn) for turn in ("first", "later", "side")}
    assert counts == {"first": 2, "later": 1, "side": 1}


def test_an_engine_that_does_not_report_cached_tokens_counts_neither_expected_nor_actual() -> None:
    seen = observer()
    silent = exchange()
    silent.reply.usage = Usage(1000, None, 50)
    seen.finished(silent)
    assert sample(seen, "cached_tokens_total", replica="a", kind="expected") is None


def test_the_fleet_is_read_at_the_scrape() -> None:
    seen = observer()
    assert sample(seen, "sessions", state="running") == 3
    assert sample(seen, "sessions", state="idle") == 0
    assert sample(seen, "families") == 2
    assert sample(seen, "queue_depth", hold="residency") == 4
    assert sample(seen, "slots", replica="a") == 8
    assert sample(seen, "slots_used", replica="a") == 3
    assert sample(seen, "replica_up", replica="b") == 0
    assert sample(seen, "engine_up", engine="a") == 1
    kinds = {
        kind: sample(seen, "residency_tokens", replica="a", kind=kind)
        for kind in ("used", "capacity", "ceiling", "stated")
    }
    assert kinds == {"used": 600, "capacity": 1000, "ceiling": 850, "stated": 1100}
    assert sample(seen, "residency_tokens", replica="b", kind="capacity") is None
    assert sample(seen, "gate_seconds_total", replica="a", kind="held") == 35
    assert sample(seen, "gate_seconds_total", replica="a", kind="saved") == 412


def test_what_a_gate_saved_stands_still_while_the_gate_slows_turns_down() -> None:
    saved_s = iter((10.0, 7.0, 12.0))
    gauges = FleetGauges(
        lambda: FleetView(replicas=[replace(FLEET.replicas[0], gate_saved_s=next(saved_s))]), Engines([])
    )
    families = [
        next(family for family in gauges.collect() if family.name == "turngate_gate_seconds") for _ in range(3)
    ]
    assert [
        {sample.labels["kind"]: sample.value for sample in family.samples}["saved"] for family in families
    ] == [10.0, 10.0, 12.0]


def test_what_the_path_tells_is_counted() -> None:
    seen = observer()
    seen.hinted("vllm", ["priority", "session"], "sent")
    seen.retried("engine_cut")
    seen.record_decisions(Tick(), [], 5.0, 0.002)
    assert sample(seen, "hints_total", engine="vllm", hint="priority", result="sent") == 1
    assert sample(seen, "retries_total", cause="engine_cut") == 1
    assert sample(seen, "policy_seconds_sum") == pytest.approx(0.002)


def test_label_sets_are_bounded_and_the_rest_is_one_other() -> None:
    registry = CollectorRegistry()
    registry.register(counted := Counter("c", "c", ["name"], max_label_sets=2))
    for name in ("a", "b", "c", "d", "a"):
        counted.add(1, name)
    values = {name: registry.get_sample_value("c_total", {"name": name}) for name in ("a", "b", "c", "other")}
    assert values == {"a": 2, "b": 1, "c": None, "other": 2}


def test_neither_a_session_nor_the_client_s_word_for_a_model_is_ever_a_label() -> None:
    seen = observer()
    seen.finished(exchange(tenant="tenant-x", model="model-x"))
    page = seen.metrics.exposition().decode()
    assert not any(word in page for word in ("model-x", "s1", "f1"))


@pytest.mark.parametrize(
    ("prompts_and_cached", "recomputed"),
    [
        ([(1000, 0), (1200, 990)], [0, 0]),  # a shortfall below one block is rounding
        ([(1000, 500), (1200, 400)], [0, 600]),
        ([(1000, 500), (300, 100)], [0, 200]),  # compacted: no more than the new prompt counts
        ([(1000, 0), (1200, 0)], [0, 0]),  # an engine that always says 0 does not report
        ([(1000, 0), (1200, 1000), (1400, 0)], [0, 0, 1200]),
    ],
)
def test_recomputed_is_what_an_earlier_turn_had_and_the_cache_lost(
    prompts_and_cached: list[tuple[int, int]], recomputed: list[int]
) -> None:
    counting = Recomputation()
    assert [counting.of("s", "a", prompt, cached) for prompt, cached in prompts_and_cached] == recomputed


def test_recomputation_forgets_the_least_recent_session_first() -> None:
    counting = Recomputation(max_sessions=2)
    for session in ("a", "b", "a", "c"):
        counting.of(session, "r", 1000, 1000)
    assert [counting.of(session, "r", 1000, 0) for session in ("a", "b")] == [1000, 0]


def test_headers_say_who_where_why_and_carry_the_clients_own_id() -> None:
    assert dict(observer().receipt_headers(exchange())) == {
        "X-Turngate-Receipt": "x1",
        "X-Request-Id": "client-id",
        "X-Turngate-Session": "s1",
        "X-Turngate-Family": "f1",
        "X-Turngate-Engine": "a",
        "X-Turngate-Reason": "resident",
        "X-Turngate-Queue-Ms": "2000",
    }


def test_headers_before_a_decision_say_only_what_is_known() -> None:
    unknown = exchange(recognition=None, dispatch=None, request=cast(Request, Asked({})))
    assert dict(observer().receipt_headers(unknown)) == {"X-Turngate-Receipt": "x1", "X-Request-Id": "x1"}


def test_a_receipt_tells_the_decision_and_the_measurements_without_empty_fields() -> None:
    seen = observer()
    seen.finished(exchange())
    told = seen.receipt("x1", "a")
    assert told is not None
    assert (
        told.items()
        >= {
            "session": "s1",
            "turn": 2,
            "source": "chain",
            "replica": "a",
            "reason": "resident",
            "expected_cached_tokens": 900,
            "cached_tokens": 800,
            "queue_ms": 2000.0,
            "ttft_ms": 2500.0,
            "outcome": "answered",
        }.items()
    )
    assert None not in told.values()


def test_the_first_byte_of_a_plain_answer_is_its_last_and_counts_as_none() -> None:
    seen = observer()
    seen.finished(exchange(payload=Payload(requested_model="gpt-5", engine_model="m")))
    told = seen.receipt("x1", "a")
    assert told is not None
    assert "ttft_ms" not in told
    assert told["total_ms"] == 3000.0
    assert sample(seen, "ttft_seconds_count", turn="later") is None


def test_a_receipt_says_where_the_time_went_and_for_what_it_waited_behind_its_own_tenant_s_sessions() -> None:
    seen = observer()
    asked = exchange()
    behind = (("s7", "a"), ("s8", "b"))
    asked.spent.saw_gate(2.0, Waited(WaitCause.ROOM, 2.0, 0.0, 0.0, behind, 5, 1.5))
    asked.spent.saw_engine(EngineTime(0.3, 0.15, 0.5, 0.05))
    seen.finished(asked)
    own, any_ = seen.receipt("x1", "a"), seen.receipt("x1", None)
    assert own is not None
    assert any_ is not None
    spent = {"gate": 2000.0, "engine_queue": 300.0, "prefill": 150.0, "beside": 50.0, "decode": 500.0}
    assert own["time_ms"] == spent
    assert (own["waited_for"], own["wait_estimate_ms"], own["waited_before"]) == ("room", 1500.0, 5)
    assert (own["waited_behind"], own["waited_behind_others"]) == (["s7"], 1)
    assert (any_["waited_behind"], any_["waited_behind_others"]) == (["s7", "s8"], 0)


def test_the_time_of_requests_is_counted_by_part_and_parts_sum_to_it() -> None:
    seen = observer()
    for cached_tokens in (900, 100):  # the second one lost its prefix: 800 of 900 computed tokens
        asked = exchange()
        asked.reply.usage = Usage(1000, cached_tokens, 50)
        asked.spent.saw_gate(2.0, None)
        asked.spent.saw_engine(EngineTime(0.3, 1.0, 0.5, 0.1))
        asked.spent.saw_tools(0.25)
        seen.finished(asked)
    shown = {
        part: sample(seen, "time_seconds_total", part=part)
        for part in ("gate", "engine_queue", "prefill", "beside", "recompute", "decode", "tools", "failed")
    }
    assert shown == {
        "gate": 4.0,
        "engine_queue": 0.6,
        "decode": 1.0,
        "tools": 0.5,
        "failed": 0.0,
        "beside": 0.2,
        "recompute": pytest.approx(0.9),
        "prefill": pytest.approx(0.9),
    }


def test_a_receipt_is_for_its_own_tenant_only() -> None:
    seen = observer()
    seen.finished(exchange())
    assert seen.receipt("x1", "b") is None


def test_one_line_is_logged_per_exchange_and_it_holds_no_content(log: io.StringIO) -> None:
    asked = exchange(payload=Payload(b"my secret prompt", {"messages": ["my secret prompt"]}, "gpt-5"))
    asked.reply.written.append("a secret answer")
    observer().finished(asked)
    line = log.getvalue()
    assert line.count("\n") == 1
    assert all(
        part in line
        for part in (" info request id=x1 ", "outcome=answered", "session=s1", "queue_ms=2000.0", "model=gpt-5")
    )
    assert "secret" not in line


def test_a_refusal_says_what_was_wrong_and_who_asked_but_not_in_its_words(log: io.StringIO) -> None:
    failure = Failure(400, "invalid_request_error", "`mess` is unknown", param="messages", code="bad")
    observer().finished(exchange(failure=failure, key_id="ci", outcome=Outcome.BAD_REQUEST))
    line = log.getvalue()
    assert all(f" {part} " in line for part in ("status=400", "code=bad", "param=messages", "key=ci"))
    assert "mess`" not in line


def test_trouble_is_logged_as_a_warning(log: io.StringIO) -> None:
    observer().finished(exchange(outcome=Outcome.ENGINE_CUT))
    assert " warning request " in log.getvalue()


def test_text_that_could_break_a_line_is_quoted(log: io.StringIO) -> None:
    observer().finished(exchange(model='two\nlines "x"', notes=["max_tokens lowered"]))
    line = log.getvalue()
    assert line.count("\n") == 1
    assert r'model="two\\u000alines \"x\""' in line
    assert 'notes="max_tokens lowered"' in line


def test_json_lines_hold_the_same_fields(log: io.StringIO) -> None:
    logs.setup(Logging(format="json"), log)
    observer().finished(exchange())
    line = json.loads(log.getvalue())
    assert (line["level"], line["outcome"], line["session"], line["ttft_ms"]) == ("info", "answered", "s1", 2500.0)
