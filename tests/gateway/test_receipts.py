"""Laws of kept receipts; what is in one is tested with the Observer."""

from gateway.receipts import Receipts


def test_receipts_are_kept_for_their_time_and_no_more_than_allowed() -> None:
    kept = Receipts(keep_s=10, max_kept=2)
    for number, now in ((1, 0.0), (2, 1.0), (3, 2.0)):
        kept.put({"id": str(number)}, "a", now)
    assert [kept.get(str(number), "a", 2.0) is not None for number in (1, 2, 3)] == [False, True, True]
    assert kept.get("2", "a", 11.0) is None
    kept.put({"id": "4"}, "a", 20.0)
    assert len(kept) == 1


def test_no_receipt_is_kept_when_that_is_switched_off() -> None:
    kept = Receipts(keep_s=0, max_kept=2)
    kept.put({"id": "1"}, "a", 0.0)
    assert len(kept) == 0
