from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from policies.types import MAX_IDLE_TIMES, IdleTimes


@given(st.lists(st.floats(0, 100), max_size=3 * MAX_IDLE_TIMES), st.floats(0, 100))
def test_ranks_are_those_of_the_newest_gaps(seen_s: list[float], idle_s: float) -> None:
    gaps, newest = IdleTimes(seen_s), sorted(seen_s[-MAX_IDLE_TIMES:])
    longer = sum(gap > idle_s for gap in newest)
    assert len(gaps) == len(newest)
    assert gaps.num_longer(idle_s) == longer
    assert not newest or (gaps.quantile(0.0), gaps.quantile(1.0)) == (newest[0], newest[-1])
