"""Laws of kept receipts; what is in one is tested with the Observer."""

from gateway.receipts import Receipts, values_of
from tests.gateway.observed import exchange


def put(kept: Receipts, receipt_id: str, now: float) -> None:
    ended = exchange(id=receipt_id)
    ended.timings.finished_at = now
    kept.put(receipt_id, values_of(ended))


def test_receipts_are_kept_for_their_time_and_no_more_than_allowed() -> None:
    kept = Receipts(keep_s=10, max_kept=2)
    for number, now in ((1, 0.0), (2, 1.0), (3, 2.0)):
        put(kept, str(number), now)
    assert [kept.get(str(number), "a", 2.0) is not None for number in (1, 2, 3)] == [False, True, True]
    assert kept.get("2", "a", 11.0) is None
    put(kept, "4", 20.0)
    assert len(kept) == 1


def test_no_receipt_is_kept_when_that_is_switched_off() -> None:
    kept = Receipts(keep_s=0, max_kept=2)
    put(kept, "1", 0.0)
    assert len(kept) == 0
