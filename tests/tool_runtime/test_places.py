from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tool_runtime.fakes import ANN, ANY_OBJECT, EVE, Observed, Slow, leave
from tests.tool_runtime.virtual import virtual
from tool_runtime.places import PRESENT_S, Claim, Places, TokenBucket
from tool_runtime.types import Context, Effect, Json, Limits, Result, Scope, Status, Tool


def numbered(n: int) -> str:
    return f'{{"n": {n}}}'


def flood(observed: Observed, caller: Context, num: int, name: str = "slow") -> list[asyncio.Task[Result]]:
    """So many different calls at once."""
    return [observed.begin(f'{{"n": "{caller.tenant} {n}"}}', caller, name=name) for n in range(num)]


async def waited_s(caller: asyncio.Task[Result]) -> float:
    return (await caller).seconds


def tenants(slow: Slow) -> str:
    """First letters of the tenants, in the order of their starts."""
    return "".join(context.tenant[0] for _, context in slow.started)


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


@virtual
async def test_one_tenant_s_slow_calls_keep_another_waiting_for_one_call_at_most() -> None:
    slow = Slow()
    observed = Observed(slow.tool(concurrency=2))
    flood(observed, ANN, 40)
    await asyncio.sleep(0.5)
    assert await waited_s(observed.begin(numbered(1), EVE)) == 1.5  # half of it until the first call ended
    await observed.runtime.close()


@virtual
async def test_newcomers_wait_for_each_other_and_for_no_flood() -> None:
    """Law 4: with three places, three of them start with the first calls that end, and all with the next ones."""
    slow = Slow()
    observed = Observed(slow.tool(concurrency=3))
    flood(observed, ANN, 40)
    await asyncio.sleep(0.5)
    newcomers = [observed.begin(numbered(n), Context(f"new {n}")) for n in range(5)]
    assert [await waited_s(caller) for caller in newcomers] == [1.5, 1.5, 1.5, 2.5, 2.5]
    await observed.runtime.close()


@virtual
async def test_tenants_that_wait_hold_as_many_places_each() -> None:
    slow = Slow()
    observed = Observed(slow.tool(concurrency=4))
    calls = flood(observed, ANN, 16) + flood(observed, EVE, 8)
    await asyncio.gather(*calls)
    assert [sorted(tenants(slow)[at : at + 4]) for at in range(0, 24, 4)] == [["a"] * 4] + [
        ["a", "a", "r", "r"]
    ] * 4 + [["a"] * 4]


@virtual
async def test_a_tenant_that_comes_back_finds_a_place() -> None:
    """Law 2: an agent that thinks between two calls does not wait for a flood each time."""
    slow = Slow()
    observed = Observed(slow.tool(concurrency=3))
    flood(observed, ANN, 60)
    times = [await waited_s(observed.begin(numbered(n), EVE)) for n in range(5)]
    assert times == [2.0, 1.0, 1.0, 1.0, 1.0]
    await asyncio.sleep(PRESENT_S / 6)
    assert slow.num_running == 2
    await observed.runtime.close()


@virtual
async def test_a_tenant_that_is_alone_uses_all_places() -> None:
    slow = Slow()
    observed = Observed(slow.tool(concurrency=3))
    await observed.begin(numbered(1), EVE)
    await asyncio.sleep(PRESENT_S + 1)
    calls = flood(observed, ANN, 6)
    await asyncio.sleep(0.5)
    assert slow.num_running == 3
    await asyncio.gather(*calls)


@virtual
async def test_places_are_shared_by_weight() -> None:
    slow = Slow()
    observed = Observed(slow.tool(concurrency=4))
    first = flood(observed, Context("third"), 4)  # so that both wait
    heavy, light = Context("acme", weight=3.0), Context("rival", weight=1.0)
    calls = flood(observed, light, 20) + flood(observed, heavy, 20)
    await asyncio.gather(*first)
    await asyncio.sleep(4.5)
    assert [sorted(tenants(slow)[at : at + 4]) for at in range(4, 24, 4)] == [["a", "a", "a", "r"]] * 5
    await asyncio.gather(*calls)


@virtual
async def test_no_place_is_kept_from_tenants_that_have_less_than_their_share() -> None:
    """Law 2 costs a fleet of many tenants nothing."""
    slow = Slow()
    observed = Observed(slow.tool(concurrency=4))
    for tenant in range(20):
        await observed.begin(numbered(0), Context(f"t{tenant}"))
    calls = flood(observed, ANN, 8) + flood(observed, EVE, 8)
    for _ in range(3):
        await asyncio.sleep(0.9)
        assert slow.num_running == 4
    await asyncio.gather(*calls)


@virtual
async def test_a_rate_is_shared_as_places_are() -> None:
    slow = Slow(seconds=0.0)
    observed = Observed(slow.tool(rate_per_s=1.0))
    calls = flood(observed, ANN, 10)
    await asyncio.sleep(0.5)
    calls += flood(observed, EVE, 3)
    await asyncio.gather(*calls)
    assert tenants(slow) == "arararaaaaaaa"


@virtual
async def test_calls_that_hang_for_ever_keep_no_place_of_another_tenant() -> None:
    """As a thread does whose function never returns: it cannot be stopped."""
    running, ends = [0], asyncio.Event()

    async def run(arguments: Json, context: Context) -> str:
        running[0] += 1
        while not ends.is_set():
            try:
                await ends.wait()
            except asyncio.CancelledError:
                continue
        return "done"

    limits = Limits(concurrency=2, timeout_s=10.0)
    observed = Observed(
        Tool(name="slow", description="", parameters=ANY_OBJECT, run=run, effect=Effect.READ_ONLY, limits=limits)
    )
    flood(observed, ANN, 8)
    await asyncio.sleep(1.0)
    late = observed.begin(numbered(1), EVE)
    await asyncio.sleep(19.5)
    assert running == [3]  # the third is Eve's; all others of Ann's wait for the first two
    flood(observed, Context("third"), 8)
    await asyncio.sleep(100.0)
    assert running == [4], "twice the places at most"
    ends.set()
    assert (await late).status is Status.TIMEOUT
    await observed.runtime.close()


@virtual
async def test_a_group_that_several_tenants_share_waits_for_none_of_them_longer_than_need_be() -> None:
    slow, groups = Slow(), []

    async def run_many(many: list[Json], context: Context) -> list[str]:
        groups.append([each["n"] for each in many])
        await slow.run({}, context)
        return ["row"] * len(many)

    limits = Limits(concurrency=1, scope=Scope.GLOBAL)
    observed = Observed(
        Tool(
            name="slow",
            description="",
            parameters=ANY_OBJECT,
            run_many=run_many,
            effect=Effect.READ_ONLY,
            limits=limits,
            max_batch=2,
        )
    )
    calls = flood(observed, ANN, 9)
    await asyncio.sleep(0.5)
    assert await waited_s(observed.begin(numbered(7), EVE)) == 1.5
    assert groups[:2] == [["acme 0", "acme 1"], ["acme 8", 7]]
    await asyncio.gather(*calls)


@st.composite
def traffic(draw: st.DrawFn) -> list[tuple[str, int]]:
    """What happens, in order: somebody wants a place, or the n-th claim ends, leaves, or turns out late."""
    event = st.tuples(st.sampled_from(["a", "a", "b", "c", "abc", "end", "end", "late"]), st.integers(0, 30))
    return draw(st.lists(event, max_size=60))


WEIGHTS = {"a": 1.0, "b": 2.0, "c": 1.0}


@given(num=st.integers(1, 4), events=traffic())
def test_the_laws_of_places_hold_in_any_order_of_events(num: int, events: list[tuple[str, int]]) -> None:
    places, claims, now = Places(num), list[Claim](), 0.0

    def held(tenant: str) -> int:
        return sum(claim.payer == tenant for claim in claims)

    for what, which in events:
        now += 10.0
        if what in ("end", "late"):
            if not claims:
                continue
            claim = claims[which % len(claims)]
            if what == "end":
                claims.remove(claim)
                places.release(claim, now)
            elif claim.payer is not None and not claim.is_late:
                places.mark_late(claim)
        else:
            claims.append(Claim({tenant: WEIGHTS[tenant] for tenant in what}))
            places.enqueue(claims[-1])
        while (found := places.next_claim(now)) is not None:
            claim, tenant = found
            waiting = {name for claim in claims if claim.payer is None for name in claim.weights}
            least = min(held(name) / WEIGHTS[name] for name in waiting if held(name) < num)
            assert held(tenant) / WEIGHTS[tenant] == least
            places.grant(claim, tenant)
        running = sum(claim.payer is not None and not claim.is_late for claim in claims)
        late = sum(claim.is_late for claim in claims)
        assert running <= num
        assert running + late <= 2 * num
        waiting = {name for claim in claims if claim.payer is None for name in claim.weights if held(name) < num}
        if waiting and running < num and running + late < 2 * num:
            assert running == num - 1 or running + late == 2 * num - 1, "it is the last one that is kept"
            assert num > 1
            assert all(held(name) for name in waiting), "and not from those that hold none"
    for claim in claims:
        places.release(claim, now)
    assert places.next_claim(now) is None
