"""Laws of the explanation of a log of facts: it is that of the gateway that wrote it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gateway.api.why import explained
from gateway.api.why_facts import FactRows
from gateway.telemetry.factlog import FactLog, Header, lines
from policies.admission import Limits
from policies.scheduler import Scheduler
from policies.turns import Turns
from policies.types import Arrived, Ending, Fact, FirstByte, Left, ReplicaReported, Usage
from tests.policies.turns_of import turn


def logged(path: Path, *facts: tuple[float, Fact]) -> FactRows:
    """The rows of a log that a gateway wrote after an earlier start."""
    log, scheduler = FactLog(path, Header({})), Scheduler(Turns(), Limits())
    log.record(99.0, Arrived(turn("old")), [])
    log.close()
    log = FactLog(path, Header({}))
    for now, fact in facts:
        log.record(now, fact, scheduler.tell(fact, now)[0])
    log.close()
    return FactRows(lines(path))


def test_the_gate_the_engine_s_queue_and_the_tool_of_a_session_are_found_in_the_log(tmp_path: Path) -> None:
    def left(turn_id: str, *tools: str) -> Left:
        return Left(turn_id, Ending.COMPLETE, Usage(100, 0, 10), tools)

    rows = logged(
        tmp_path / "facts.jsonl",
        (0.0, ReplicaReported("r", slots=2)),
        (1.0, Arrived(turn("t1", session="session-1", at=1.0))),
        (1.0, Arrived(turn("t2", session="session-2", at=1.0))),
        (1.0, Arrived(turn("t3", session="session-3", at=1.0))),
        (1.5, FirstByte("t1")),
        (2.0, ReplicaReported("r", running=1, waiting=1)),
        (3.0, left("t1", "search")),
        (3.2, FirstByte("t2")),
        (4.0, left("t2")),
        (4.1, FirstByte("t3")),
        (5.0, left("t3")),
        (6.0, Arrived(replace(turn("t4", session="session-1", at=6.0), is_retry=False))),
        (6.1, FirstByte("t4")),
        (7.0, left("t4")),
    )
    queued, held, first = (explained(f"session-{n}", rows.of(f"session-{n}"), rows.fleet()) for n in (2, 3, 1))
    assert queued is not None
    assert held is not None
    assert first is not None
    assert (queued["cause"], queued["split"]["engine_queue"]) == ("engine_queue", pytest.approx(2000.0))
    assert (held["cause"], held["split"]["gate"]) == ("slot", pytest.approx(2000.0))
    assert held["timeline"][0]["waited_behind"] == ["session-1", "session-2"]
    assert (first["cause"], first["tools"], first["turns"]) == ("tools", {"search": pytest.approx(3000.0)}, 2)
    for page in (queued, held, first):
        assert sum(page["split"].values()) == pytest.approx(page["measured_ms"])
    fleet = explained("", rows.of(""), rows.fleet())
    assert fleet is not None
    assert (fleet["turns"], fleet["num_sessions"]) == (4, 3)
    assert [row["id"] for row in rows.of("t3")] == ["t3"]
    assert rows.of("session-9") == []


def test_a_call_that_was_not_answered_is_said_to_have_failed(tmp_path: Path) -> None:
    rows = logged(
        tmp_path / "facts.jsonl",
        (0.0, ReplicaReported("r", slots=2)),
        (1.0, Arrived(turn("t1", session="session-1", at=1.0))),
        (4.0, Left("t1", Ending.FAILED)),
    )
    (row,) = rows.of("session-1")
    assert (row["outcome"], row["time_ms"]) == ("failed", {"gate": 0.0, "failed": 3000.0})
