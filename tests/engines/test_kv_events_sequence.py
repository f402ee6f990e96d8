"""Laws of the numbering of batches."""

from __future__ import annotations

from gateway.engines.kv_events import BatchSequence, HeardBatch


def test_batches_in_order_are_next() -> None:
    sequence = BatchSequence()
    for number in range(3):
        assert sequence.classify(number) is HeardBatch.NEXT
        sequence.mark_applied(number)


def test_a_listener_that_comes_late_has_a_gap() -> None:
    assert BatchSequence().classify(7) is HeardBatch.GAP


def test_a_replayed_batch_is_old_when_it_arrives_again() -> None:
    sequence = BatchSequence()
    assert sequence.classify(3) is HeardBatch.GAP
    for number in range(6):
        sequence.mark_applied(number)
    assert sequence.classify(4) is HeardBatch.OLD
    assert sequence.classify(6) is HeardBatch.NEXT


def test_a_number_that_was_live_before_means_another_process() -> None:
    sequence = BatchSequence()
    assert sequence.classify(0) is HeardBatch.NEXT
    sequence.mark_applied(0)
    assert sequence.classify(0) is HeardBatch.RESTART
    assert sequence.restart(0) is HeardBatch.NEXT
