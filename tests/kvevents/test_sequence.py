"""Laws of the numbering of batches."""

from __future__ import annotations

from gateway.engines.kvevents.listener import HeardBatch, Sequence


def test_batches_in_order_are_next() -> None:
    sequence = Sequence()
    for number in range(3):
        assert sequence.hear(number) is HeardBatch.NEXT
        sequence.take(number)


def test_whoever_comes_late_has_a_gap() -> None:
    assert Sequence().hear(7) is HeardBatch.GAP


def test_what_the_replay_brought_is_old_when_it_arrives_again() -> None:
    sequence = Sequence()
    assert sequence.hear(3) is HeardBatch.GAP
    for number in range(6):
        sequence.take(number)
    assert sequence.hear(4) is HeardBatch.OLD
    assert sequence.hear(6) is HeardBatch.NEXT


def test_a_number_that_was_live_before_means_another_process() -> None:
    sequence = Sequence()
    assert sequence.hear(0) is HeardBatch.NEXT
    sequence.take(0)
    assert sequence.hear(0) is HeardBatch.RESTART
    assert sequence.restart(0) is HeardBatch.NEXT
