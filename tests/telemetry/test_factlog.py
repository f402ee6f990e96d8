"""Laws of the log of facts: it reads back as what was told, and never stops the gateway."""

from __future__ import annotations

import logging
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from gateway.telemetry import factlog
from gateway.telemetry.factlog import FactLog
from policies.types import (
    Arrived,
    Decision,
    Dispatch,
    Ending,
    Fact,
    FirstByte,
    Hints,
    History,
    Left,
    Reason,
    Refusal,
    Reject,
    ReplicaLost,
    ReplicaReported,
    SessionEnded,
    Tick,
    Turn,
    Usage,
)

TURN = Turn(
    *("t", "s", "f", "a", "m", 1.0, (1, 2**64 - 1), 1024),
    excluded=frozenset({"b", "a"}),
    history=History(3, 512, 1000),
)
FACTS: list[tuple[float, Fact, list[Decision]]] = [
    (1.0, Arrived(TURN), [Dispatch("t", "a", Reason.FREE, 0, Hints(urgency=3))]),
    (1.5, FirstByte("t"), []),
    (2.0, Left("t", Ending.COMPLETE, Usage(1, 2, 3), ("bash",)), [Reject("u", Refusal.TOO_LONG, 3.0)]),
    (3.0, ReplicaReported("a", frozenset({"m"}), 1000, 8, 0), []),
    (3.5, ReplicaLost("a"), []),
    (4.0, SessionEnded("s"), []),
    (5.0, Tick(), []),
]


def comparable(fact: Fact) -> Fact:
    """JSON has no tuples: a chain of blocks comes back as a list."""
    if isinstance(fact, Arrived):
        assert list(fact.turn.blocks) == list(TURN.blocks)
        return Arrived(TURN) if {**vars_of(fact.turn), "blocks": TURN.blocks} == vars_of(TURN) else fact
    return fact


def vars_of(turn: Turn) -> dict[str, Any]:
    return {field.name: getattr(turn, field.name) for field in fields(turn)}


def test_a_log_of_facts_reads_back_as_the_same_facts_and_decisions(tmp_path: Path) -> None:
    file = tmp_path / "facts.jsonl"
    log = FactLog(file)
    for now, fact, decisions in FACTS:
        log.record(now, fact, decisions)
    log.close()
    back = [(now, comparable(fact), decisions) for now, fact, decisions in factlog.read(file)]
    assert back == FACTS


def test_a_log_of_facts_reaches_the_disk_within_a_second_of_facts(tmp_path: Path) -> None:
    file = tmp_path / "facts.jsonl"
    log = FactLog(file)
    for now in (10.0, 10.5, 11.1):
        log.record(now, Tick(), [])
    assert len(list(factlog.read(file))) == 3
    log.close()


def test_a_full_disk_ends_the_log_of_facts_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    facts = FactLog(Path("/dev/full"))
    for now in (10.0, 20.0, 30.0):
        facts.record(now, Tick(), [])
    facts.close()
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert "the log of facts /dev/full ends here" in caplog.text
