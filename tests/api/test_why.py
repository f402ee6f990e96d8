"""Laws of the explanation: the parts sum to the measured time, and a known cause comes first with its remedy."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.api.why import WORK, amount, explained, joined_why, parts_ms
from policies.fleet import FleetView, ReplicaView

UP = ReplicaView("gpu1", True, 4, 4, 0, 100_000, 98_000, gate_held_s=5.0, gate_saved_s=9.0, engine_slots=4)
FLEET = FleetView(replicas=[UP])


def row(ended_ago_s: float, total_ms: float, session: str = "s1", **more: Any) -> dict[str, Any]:
    used = {"prompt_tokens": 1000, "cached_tokens": 600, "output_tokens": 50, "outcome": "answered", "turn": 1}
    return {"id": "r", "session": session, "ended_ago_s": ended_ago_s, "total_ms": total_ms} | used | more


def spent(**parts: float) -> dict[str, Any]:
    return {"time_ms": parts}


def explain(*rows: dict[str, Any], wanted: str = "s1", fleet: FleetView = FLEET) -> dict[str, Any]:
    page = explained(wanted, rows, fleet)
    assert page is not None
    return page


def test_the_parts_of_a_request_sum_to_its_total_and_what_was_computed_again_is_apart() -> None:
    parts = parts_ms(
        row(0, 1000.0, recomputed_tokens=100, **spent(gate=100.0, prefill=300.0, beside=100.0, decode=500.0))
    )
    shown = {
        "gate": 100.0,
        "prefill": 150.0,
        "beside": 100.0,
        "recompute": 50.0,
        "decode": 500.0,
        "gateway": 100.0,
    }
    assert parts == pytest.approx(shown)
    assert sum(parts.values()) == pytest.approx(1000.0)


def test_the_split_of_a_session_sums_to_the_time_from_its_first_request_to_its_last_answer() -> None:
    rows = [
        row(7.0, 3000.0, called=["search"], **spent(gate=1000.0, decode=2000.0)),
        row(1.0, 2000.0, turn=2, **spent(engine_queue=500.0, prefill=500.0, decode=1000.0)),
        row(0.0, 500.0, turn=3, **spent(decode=500.0)),
    ]
    page = explain(*rows)
    assert page["measured_ms"] == 10_000.0
    assert sum(page["split"].values()) == pytest.approx(10_000.0)
    assert page["tools"] == {"search": 4000.0}
    assert page["split"]["client"] == 500.0
    assert [(turn["began_ms"], turn.get("then"), turn.get("then_ms")) for turn in page["timeline"]] == [
        (0.0, "search", 4000.0),
        (7000.0, None, 500.0),
        (9500.0, None, None),
    ]


def test_requests_of_a_session_that_run_at_the_same_time_count_once() -> None:
    page = explain(
        row(1.0, 4000.0, **spent(decode=4000.0)),
        row(2.0, 1000.0, **spent(decode=1000.0)),
        row(0.0, 2000.0, **spent(prefill=2000.0)),
    )
    assert page["measured_ms"] == 5000.0
    assert page["split"] == {"decode": 4000.0, "prefill": 1000.0}


def test_tools_of_the_gateway_that_run_at_once_share_their_time_by_name() -> None:
    tools = [{"name": "search", "ms": 900.0}, {"name": "fetch", "ms": 300.0}]
    page = explain(row(0.0, 2000.0, rounds=[{"tools": tools}], **spent(tools=1000.0, decode=1000.0)))
    assert page["tools"] == {"search": 750.0, "fetch": 250.0}


@pytest.mark.parametrize(
    ("rows", "fleet", "cause", "remedy"),
    [
        (
            [row(0, 9000, waited_for="room", **spent(gate=8000.0, decode=1000.0))],
            FLEET,
            "room",
            "1.1k tokens of KV",
        ),
        ([row(0, 9000, waited_for="slot", **spent(gate=3000.0, decode=6000.0))], FLEET, "slot", "--max-num-seqs"),
        ([row(0, 9000, waited_for="share", **spent(gate=8000.0))], FLEET, "share", "keys[].weight"),
        ([row(0, 9000, **spent(engine_queue=3000.0, decode=6000.0))], FLEET, "engine_queue", "gpu1 runs 4 calls"),
        ([row(0, 9000, **spent(prefill=8000.0, beside=7000.0))], FLEET, "beside", "--max-num-batched-tokens"),
        (
            [row(0, 9000, recomputed_tokens=400, **spent(prefill=9000.0))],
            FLEET,
            "recompute",
            "400 tokens of earlier",
        ),
        (
            [row(0, 9000, **spent(engine_queue=8e3, queue_beside=7e3))],
            FLEET,
            "beside",
            "calls for 78% of the time",
        ),
        ([row(0, 9000, **spent(prefill=9000.0))], FLEET, "prefill", "400 of 1.0k tokens"),
        ([row(0, 9000, **spent(decode=9000.0))], FLEET, "decode", "50 tokens, 6 per second"),
        (
            [row(9, 1000, called=["search"], **spent(decode=1000.0)), row(0, 3000, **spent(decode=3000.0))],
            FLEET,
            "tools",
            "Tool `search` takes 60%",
        ),
        (
            [row(0, 9000, waited_for="slot", notes=["gpu2 failed before its first byte: 502"], **spent(gate=9e3))],
            FLEET,
            "failed",
            "gpu2 failed or is down",
        ),
        (
            [row(0, 9000, **spent(engine_queue=9000.0))],
            FleetView(replicas=[UP, ReplicaView("gpu3", False, 4, 0, 0, None, None)]),
            "failed",
            "gpu3 failed or is down",
        ),
        ([row(9, 1000, **spent(decode=1e3)), row(0, 1000, **spent(decode=1e3))], FLEET, "client", "client took"),
        ([row(0, 9000)], FLEET, "gateway", "cluster.workers"),
    ],
)
def test_a_known_cause_comes_first_with_its_remedy(
    rows: list[dict[str, Any]], fleet: FleetView, cause: str, remedy: str
) -> None:
    page = explain(*rows, fleet=fleet)
    assert page["cause"] == cause
    assert remedy in page["remedy"]


def test_a_gate_that_costs_more_than_it_saves_is_said_to() -> None:
    costly = ReplicaView("gpu1", True, 4, 4, 0, 100_000, 98_000, gate_held_s=50.0, gate_saved_s=9.0)
    page = explain(row(0, 9000, waited_for="room", **spent(gate=9e3)), fleet=FleetView(replicas=[costly]))
    assert "policy.name: observe" in page["remedy"]


def test_the_pages_of_several_members_are_one_with_the_cause_of_their_sum() -> None:
    one = explain(row(0, 1000, **spent(decode=1000.0)), wanted="")
    other = explain(row(0, 9000, session="s2", **spent(engine_queue=9000.0)), wanted="")
    joined = joined_why([one, other])
    assert joined["split"] == {"decode": 1000.0, "engine_queue": 9000.0}
    assert (joined["turns"], joined["measured_ms"], joined["cause"]) == (2, 10_000.0, "engine_queue")
    assert [session["session"] for session in joined["sessions"]] == ["s2", "s1"]


def test_of_nothing_there_is_no_explanation_and_of_a_first_request_that_runs_only_its_phase() -> None:
    assert explained("s1", [], FLEET) is None
    assert explained("", [], FLEET) is not None
    page = explained("s1", [], FLEET, [{"session": "s1", "phase": "queued", "phase_s": 3.0, "turn": 1}])
    assert page is not None
    assert page["remedy"] == "No request has ended yet: ask again when one has."
    assert set(WORK) <= {"prefill", "decode", "client"}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (999, "999"),
        (1_000, "1.0k"),
        (99_900, "99.9k"),
        (99_960, "100k"),
        (250_000, "250k"),
        (1.2e6, "1.2M"),
        (3e9, "3.0G"),
    ],
)
def test_amounts_are_short(value: float, text: str) -> None:
    assert amount(value) == text
