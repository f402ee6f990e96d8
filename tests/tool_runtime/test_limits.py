from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tool_runtime.fakes import Observed, Slow, leave
from tests.tool_runtime.virtual import virtual
from tool_runtime.limits import TokenBucket
from tool_runtime.types import Limits, Status


def numbered(n: int) -> str:
    return f'{{"n": {n}}}'


@virtual
async def test_no_more_executions_run_at_once_than_the_concurrency() -> None:
    slow = Slow()
    observed = Observed(slow.tool(concurrency=3))
    await asyncio.gather(*(observed.begin(numbered(n)) for n in range(10)))
    assert slow.most_running == 3
    assert asyncio.get_running_loop().time() == 4.0


@virtual
async def test_executions_start_at_the_rate_after_one_burst() -> None:
    slow = Slow(seconds=0.0)
    observed = Observed(slow.tool(rate_per_s=2.0))
    await asyncio.gather(*(observed.begin(numbered(n)) for n in range(8)))
    assert [record.started_at for record in observed.audited] == [0.0, 0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0]


@virtual
async def test_who_leaves_the_queue_takes_nothing_with_them() -> None:
    slow = Slow()
    observed = Observed(slow.tool(concurrency=1, rate_per_s=1.0))
    first, second, third = (observed.begin(numbered(n)) for n in range(3))
    await asyncio.sleep(0.5)
    await leave(second)
    assert [(await caller).status for caller in (first, third)] == [Status.OK] * 2
    assert asyncio.get_running_loop().time() == 2.0


@pytest.mark.parametrize(
    ("limit", "said"),
    [
        ({"concurrency": 0}, "concurrency is 0, and has to be more than 0"),
        ({"rate_per_s": -1.0}, "rate_per_s is -1.0"),
        ({"timeout_s": 0.0}, "timeout_s is 0.0"),
        ({"approval": "alway"}, "'never', 'always' or the URL of a callback, not 'alway'"),
    ],
    ids=str,
)
def test_a_limit_that_makes_no_sense_is_an_error(limit: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Limits(**limit)


@given(
    rate_per_s=st.floats(0.1, 50.0),
    pauses=st.lists(st.floats(0.0, 3.0), max_size=40),
)
def test_in_no_span_are_there_more_tokens_than_a_burst_and_the_rate(
    rate_per_s: float, pauses: list[float]
) -> None:
    bucket, now, taken = TokenBucket(rate_per_s, 0.0), 0.0, list[float]()
    for pause_s in pauses:
        now += pause_s
        now += bucket.wait_s(now)
        bucket.take()
        taken.append(now)
    burst = max(1.0, rate_per_s)
    for i, start in enumerate(taken):
        for j in range(i, len(taken)):
            assert j - i + 1 <= burst + rate_per_s * (taken[j] - start) + 1e-6
