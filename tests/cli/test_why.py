"""Laws of `turngate why`: the timeline of a session as text, or the fleet's split, and the remedy last."""

from __future__ import annotations

from typing import Any

from gateway.api.why import explained
from gateway.cli.why import lines
from tests.api.test_why import FLEET, row, spent


def text(*rows: object, wanted: str) -> list[str]:
    page = explained(wanted, rows, FLEET)  # type: ignore[arg-type]
    assert page is not None
    return list(lines(page))


def test_a_session_is_a_timeline_a_split_that_sums_to_its_time_and_a_remedy() -> None:
    waited: dict[str, Any] = {
        "waited_for": "room",
        "waited_behind": ["s7", "s8"],
        "waited_before": 3,
        "wait_estimate_ms": 1500.0,
    }
    said = text(
        row(7.0, 3000.0, called=["search"], agent="worker", **waited, **spent(gate=2000.0, decode=1000.0)),
        row(
            0.0, 4000.0, turn=2, recomputed_tokens=400, **spent(engine_queue=1000.0, prefill=2000.0, decode=1000.0)
        ),
        wanted="s1",
    )
    assert said[0] == "session s1 (worker): 2 requests in 10.00 s"
    assert said[1] == "    0.00 s  turn 1: 3.00 s = gate 2.00 s + decode 1.00 s"
    assert said[2] == "            at the gate for room, behind s7, s8 and 3 that waited; expected 1.50 s"
    assert said[3] == "            prompt: 600 tokens cached, 400 computed, 50 written"
    assert said[4] == "            then tool search 3.00 s"
    assert "engine queue* 1.00 s + recompute 2.00 s" in said[5]
    assert "400 computed (400 of them again)" in said[6]
    assert any(line.split() == ["sum", "10.00", "s,", "measured", "10.00", "s"] for line in said)
    assert any(line.startswith("  * inferred") for line in said)
    assert said[-1].startswith("=> Tool `search` takes 30% of the time")


def test_without_a_name_it_is_the_fleet_with_its_ledger_and_its_slowest_sessions() -> None:
    said = text(row(0.0, 3000.0, **spent(decode=3000.0)), row(0.0, 1000.0, session="s2"), wanted="")
    assert said[0] == "the fleet: the last 2 requests of 2 sessions, within 3.00 s"
    assert "gate, since the start: saved 9 s of sessions, cost 5 s" in said
    assert next(line for line in said if line.startswith("slowest:")) == "slowest: s1, 3.00 s, 1 request"
    assert said[-1].startswith("=> ")


def test_a_queue_that_may_be_longer_or_shorter_is_said_to_be_unclear_once_it_matters() -> None:
    said = text(row(0.0, 3000.0, **spent(decode=3000.0, queue_unclear=800.0)), wanted="s1")
    assert [line for line in said if "unclear" in line] == [
        "  unclear: the engine's queue may be 0.80 s longer or shorter, as no poll of it came in time"
    ]
    assert any(line.split() == ["sum", "3.00", "s,", "measured", "3.00", "s"] for line in said)
    said = text(row(0.0, 3000.0, **spent(decode=3000.0, queue_unclear=100.0)), wanted="s1")
    assert not any("unclear" in line for line in said)
