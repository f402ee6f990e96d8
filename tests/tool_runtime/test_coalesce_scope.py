from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from tests.tool_runtime.fakes import ANN, BOB, EVE, Observed, Slow
from tests.tool_runtime.virtual import virtual
from tool_runtime.types import Context, Effect, Scope


@pytest.mark.parametrize(
    ("scope", "other", "is_shared"),
    [
        (Scope.SESSION, ANN, True),
        (Scope.SESSION, BOB, False),
        (Scope.TENANT, BOB, True),
        (Scope.TENANT, EVE, False),
        (Scope.GLOBAL, EVE, True),
    ],
)
@virtual
async def test_a_scope_bounds_coalescing_and_cache(scope: Scope, other: Context, is_shared: bool) -> None:
    slow = Slow()
    observed = Observed(slow.tool(scope=scope, ttl_s=60.0))
    await asyncio.gather(observed.begin(), observed.begin(context=other))
    await observed.begin(context=other)
    assert len(slow.started) == (1 if is_shared else 2)


@virtual
async def test_sessions_that_are_not_known_share_nothing_within_a_session() -> None:
    slow = Slow()
    observed = Observed(slow.tool(scope=Scope.SESSION, ttl_s=60.0))
    await asyncio.gather(*(observed.begin(context=Context("acme")) for _ in range(3)))
    assert len(slow.started) == 3


@pytest.mark.parametrize(
    ("effect", "scope", "told"),
    [
        (Effect.READ_ONLY, Scope.SESSION, Context("acme", "ann")),
        (Effect.READ_ONLY, Scope.TENANT, Context("acme")),
        (Effect.READ_ONLY, Scope.GLOBAL, Context("")),
        (Effect.DESTRUCTIVE, Scope.TENANT, ANN),
    ],
)
@virtual
async def test_an_execution_is_told_no_more_than_its_callers_have_in_common(
    effect: Effect, scope: Scope, told: Context
) -> None:
    slow = Slow()
    await Observed(slow.tool(effect, scope=scope)).begin()
    assert [context for _, context in slow.started] == [told]


@pytest.mark.parametrize(
    ("ours", "theirs", "num_started"),
    [
        ((), (), 1),
        (('{"a": 1}',), ('{"a":1}',), 1),
        (('{"a": 1}',), ('{"a": 2}',), 2),
        (('{"a": 1}',), (), 2),
        (None, None, 2),
    ],
)
@virtual
async def test_stateful_calls_are_shared_by_sessions_with_one_history(
    ours: tuple[str, ...] | None, theirs: tuple[str, ...] | None, num_started: int
) -> None:
    slow = Slow()
    observed = Observed(slow.tool(options={"is_stateful": True}))
    await asyncio.gather(
        observed.begin(context=replace(ANN, history=ours)), observed.begin(context=replace(BOB, history=theirs))
    )
    assert len(slow.started) == num_started
    assert slow.started[0][1].history == ours
    assert {record.context.history for record in observed.audited} == {None}


@virtual
async def test_a_tool_may_say_what_makes_two_calls_the_same() -> None:
    slow = Slow()
    observed = Observed(slow.tool(options={"key": lambda arguments: arguments["q"].lower()}))
    await asyncio.gather(observed.begin('{"q": "A"}'), observed.begin('{"q": "a"}'))
    assert len(slow.started) == 1
    assert (await observed.begin("{}")).text == "Error: slow cannot tell its calls apart: KeyError: 'q'"
