"""From a call to its result: what is refused, what is cached, what happens once, who is told."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from tests.tool_runtime.fakes import ANN, ANY_OBJECT, BOB, Observed, Slow, leave, raising
from tests.tool_runtime.virtual import virtual
from tool_runtime.execution import GRACE_S
from tool_runtime.types import (
    Call,
    Context,
    Effect,
    Json,
    Limits,
    Origin,
    OutcomeUnknown,
    Status,
    Tool,
)

# -- what may run


@virtual
async def test_a_tool_that_is_not_there_is_refused_and_audited() -> None:
    observed = Observed(Slow().tool())
    result = await observed.begin(name="rm_rf")
    assert (result.status, result.text) == (Status.REFUSED, "Error: there is no tool 'rm_rf'")
    assert [(record.tool, record.status, record.context) for record in observed.audited] == [
        ("rm_rf", Status.REFUSED, ANN)
    ]


@virtual
async def test_arguments_that_the_tool_does_not_take_start_nothing() -> None:
    slow = Slow()
    parameters = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    observed = Observed(replace(slow.tool(), parameters=parameters))
    result = await observed.begin('{"n": [1]}')
    assert result.status is Status.REFUSED
    assert result.text == "Error: Invalid arguments:\n- $.n: [1] is not of type 'integer'"
    assert slow.started == []


@virtual
async def test_a_tool_with_a_bad_schema_is_not_taken() -> None:
    with pytest.raises(ValueError, match="tool 'slow': not a JSON Schema"):
        Observed(replace(Slow().tool(), parameters={"type": "objekt"}))


@virtual
async def test_two_tools_cannot_have_one_name() -> None:
    with pytest.raises(ValueError, match="two tools are named 'slow'"):
        Observed(Slow().tool(), Slow().tool())


@virtual
async def test_the_tools_of_one_source_are_replaced_together() -> None:
    observed = Observed(Slow().tool())
    runtime = observed.runtime
    old, new = (replace(Slow().tool(), name=name, source="mcp:a") for name in ("old", "new"))
    runtime.replace("mcp:a", [old])
    runtime.replace("mcp:a", [new])
    assert set(runtime.tools) == {"slow", "new"}
    with pytest.raises(ValueError, match="two tools are named 'slow'"):
        runtime.replace("mcp:a", [replace(old, name="slow")])
    assert set(runtime.tools) == {"slow", "new"}


@virtual
async def test_a_tool_that_stays_keeps_what_was_learned_of_it() -> None:
    tool = Slow(seconds=2.0).tool()
    observed = Observed(tool)
    assert observed.runtime.expected_s("slow") is None
    await observed.begin()
    observed.runtime.replace(tool.source, [tool])
    assert observed.runtime.expected_s("slow") == 2.0


# -- a call that is not idempotent


@virtual
async def test_the_outcome_of_a_destructive_call_that_timed_out_is_unknown_and_said_so() -> None:
    slow = Slow(seconds=60.0)
    observed = Observed(slow.tool(Effect.DESTRUCTIVE, timeout_s=10.0))
    result = await observed.begin()
    assert result.status is Status.UNKNOWN
    assert "gave no result within 10 s" in result.text
    assert "may have taken effect, and was not run again" in result.text
    await asyncio.sleep(0)
    assert len(slow.started) == 1
    assert [record.status for record in observed.audited] == [Status.UNKNOWN]


@pytest.mark.parametrize("error", [OutcomeUnknown("the server went away"), TimeoutError(), ConnectionResetError()])
@virtual
async def test_a_destructive_tool_that_is_lost_leaves_an_unknown_outcome(error: Exception) -> None:
    observed = Observed(Slow(answer=raising(error)).tool(Effect.DESTRUCTIVE))
    result = await observed.begin()
    assert result.status is Status.UNKNOWN
    assert "outcome of this call is unknown" in result.text


@virtual
async def test_a_destructive_call_that_waited_in_vain_for_a_place_was_not_started() -> None:
    slow = Slow(seconds=20.0)
    observed = Observed(slow.tool(Effect.DESTRUCTIVE, concurrency=1, queue_s=5.0))
    first, second = observed.begin(), observed.begin()
    result = await second
    assert (result.status, result.origin) == (Status.TIMEOUT, Origin.NONE)
    assert result.text == "Error: slow could not be started within 5 s; it was not run."
    await first
    assert len(slow.started) == 1


@virtual
async def test_waiting_for_a_place_does_not_use_up_the_timeout() -> None:
    observed = Observed(Slow(seconds=8.0).tool(concurrency=1, timeout_s=10.0))
    results = await asyncio.gather(*(observed.begin(f'{{"n": {n}}}') for n in range(5)))
    assert {result.status for result in results} == {Status.OK}


# -- cache


@virtual
async def test_a_result_is_served_again_until_its_time_is_over() -> None:
    slow = Slow()
    observed = Observed(slow.tool(ttl_s=10.0))
    await observed.begin()
    cached = await observed.begin(context=BOB)
    assert (cached.origin, cached.text, cached.saved_s, cached.seconds) == (Origin.CACHED, "answer 1", 1.0, 0.0)
    await asyncio.sleep(10.0)
    assert (await observed.begin()).text == "answer 2"
    assert len(observed.audited) == 2


@virtual
async def test_an_error_is_served_again_only_for_its_own_time() -> None:
    slow = Slow(answer=raising(ValueError("bad")))
    observed = Observed(slow.tool(ttl_s=60.0, negative_ttl_s=5.0))
    await observed.begin()
    again = await observed.begin()
    assert (again.status, again.origin) == (Status.ERROR, Origin.CACHED)
    await asyncio.sleep(5.0)
    await observed.begin()
    assert len(slow.started) == 2


def test_only_what_is_read_can_be_cached() -> None:
    for effect in (Effect.IDEMPOTENT, Effect.DESTRUCTIVE):
        with pytest.raises(ValueError, match="only results of a read-only tool can be cached"):
            Slow().tool(effect, ttl_s=1.0)


# -- tools that misbehave


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (KeyError("city"), "Error: KeyError: 'city'"),
        (SystemExit(3), "Error: SystemExit: 3"),
        (asyncio.CancelledError(), "Error: the tool cancelled itself"),
    ],
)
@virtual
async def test_whatever_a_tool_raises_is_a_result(error: BaseException, said: str) -> None:
    result = await Observed(Slow(answer=raising(error)).tool()).begin()
    assert (result.status, result.text) == (Status.ERROR, said)


@virtual
async def test_a_long_result_is_cut_and_says_so() -> None:
    observed = Observed(Slow(answer=lambda arguments: "é" * 100).tool(max_result_bytes=51))
    result = await observed.begin()
    assert result.is_truncated
    assert result.text == "é" * 25 + "\n[truncated: the first 50 of 200 bytes]"


# -- the end


@virtual
async def test_closing_gives_everybody_an_outcome_and_takes_no_more_calls() -> None:
    reads, writes = Slow(60.0), Slow(60.0)
    observed = Observed(reads.tool(), replace(writes.tool(Effect.DESTRUCTIVE), name="write"))
    callers = [observed.begin(), observed.begin(), observed.begin(name="write")]
    await asyncio.sleep(1.0)
    await observed.runtime.close()
    assert [(await caller).status for caller in callers] == [Status.ERROR, Status.ERROR, Status.UNKNOWN]
    assert (reads.num_running, writes.num_running) == (0, 0)
    assert (await observed.begin()).status is Status.REFUSED
    assert asyncio.all_tasks() == {asyncio.current_task()}


@virtual
async def test_a_tool_that_does_not_end_delays_the_end_but_no_outcome() -> None:
    async def stubborn(arguments: Json, context: Context) -> None:
        try:
            await asyncio.sleep(60.0)
        except asyncio.CancelledError:
            await asyncio.sleep(60.0)

    observed = Observed(replace(Slow().tool(), run=stubborn))
    caller = observed.begin()
    await asyncio.sleep(1.0)
    closing = asyncio.ensure_future(observed.runtime.close())
    assert (await caller).seconds == 1.0
    await closing
    assert asyncio.get_running_loop().time() == 1.0 + GRACE_S


@virtual
async def test_the_audit_names_who_called_and_holds_no_content() -> None:
    observed = Observed(Slow().tool(Effect.DESTRUCTIVE))
    await observed.begin('{"password": "hunter2"}')
    (record,) = observed.audited
    assert (record.tool, record.context, record.seconds, record.started_at) == ("slow", ANN, 1.0, 0.0)
    assert len(record.arguments_sha256) == 64
    assert "hunter2" not in repr(record)


@virtual
async def test_a_caller_that_leaves_gets_no_result_and_is_not_counted() -> None:
    observed = Observed(Slow().tool())
    caller = observed.begin()
    await asyncio.sleep(0.5)
    await leave(caller)
    assert observed.results == []


@virtual
async def test_a_call_is_answered_with_its_own_id() -> None:
    observed = Observed(Slow().tool())
    calls = [Call(f"call-{n}", "slow", "{}") for n in range(3)]
    results = await asyncio.gather(*(observed.runtime.run(call, ANN) for call in calls))
    assert [result.call for result in results] == calls


def test_a_tool_needs_a_name_that_engines_take_and_a_function() -> None:
    for name, run, why in [("a b", Slow().run, "cannot be named"), ("a", None, "neither `run` nor `run_many`")]:
        with pytest.raises(ValueError, match=why):
            Tool(name=name, description="", parameters=ANY_OBJECT, run=run, limits=Limits())
