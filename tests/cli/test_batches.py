"""Laws of `turngate batches`."""

from __future__ import annotations

from gateway.batches.objects import Batch, LineFault, Status
from gateway.cli.batches import as_text
from tests.batches.test_store import batch


def line_of(made: Batch) -> str:
    return as_text([made.as_json()], now=160)


def test_a_running_batch_says_how_far_it_is_and_how_long_it_may_take() -> None:
    running = Batch(
        **{
            **{name: getattr(batch(), name) for name in Batch.__slots__},
            "status": Status.IN_PROGRESS,
            "reached_at": {"in_progress": 100},
            "total": 1_200,
            "completed": 390,
            "failed": 10,
        }
    )
    assert line_of(running) == "batch_1  in_progress  390 of 1,200 completed, 10 failed, about 120 s to go"


def test_a_failed_batch_says_why() -> None:
    failed = batch().moved(Status.FAILED, 1, errors=(LineFault("empty_file", "It is empty."),))
    assert line_of(failed) == "batch_1  failed       0 of 0 completed: It is empty."


def test_no_batches_are_said_to_be_none() -> None:
    assert as_text([], 0) == "There are no batches."
