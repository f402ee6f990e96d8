from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.embedded.model import Timing

TIMING = Timing()


def test_prefill_and_decode_follow_the_stated_table() -> None:
    assert TIMING.prefill_s(1000) == pytest.approx(0.138)
    assert TIMING.decode_s(10_000, 10) == pytest.approx(0.0165)


def test_no_tokens_and_no_sequences_take_no_time() -> None:
    assert TIMING.prefill_s(0) == 0
    assert TIMING.decode_s(0, 0) == 0


@given(kv=st.integers(1, 500_000), sequences=st.integers(1, 256), num=st.integers(1, 200))
def test_decodes_run_as_one_take_as_long_as_one_by_one(kv: int, sequences: int, num: int) -> None:
    one_by_one = sum(TIMING.decode_s(kv + i * sequences, sequences) for i in range(num))
    assert TIMING.decode_s(kv, sequences, num) == pytest.approx(one_by_one)


@given(kv=st.integers(1, 500_000), sequences=st.integers(1, 256), horizon=st.floats(0, 3), most=st.integers(1, 90))
def test_the_last_of_the_decodes_within_a_horizon_starts_before_it(
    kv: int, sequences: int, horizon: float, most: int
) -> None:
    starts = (n for n in count(1) if n == most or TIMING.decode_s(kv, sequences, n) >= horizon)
    assert TIMING.decodes_within(horizon, kv, sequences, most) == next(starts)
