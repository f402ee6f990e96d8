"""Functions that block, in threads; on the real clock, since threads do not wait for a virtual one."""

from __future__ import annotations

import asyncio
import contextvars
import threading

import pytest

from tests.tool_runtime.fakes import Observed
from tool_runtime.define import define
from tool_runtime.execution import in_thread
from tool_runtime.types import Effect, Limits, Status

WHO = contextvars.ContextVar("WHO", default="nobody")


async def test_a_blocking_function_leaves_the_loop_free() -> None:
    go_on = threading.Event()
    call = asyncio.ensure_future(in_thread(go_on.wait))
    await asyncio.sleep(0)
    go_on.set()
    assert await call is True


async def test_a_thread_sees_the_context_variables_of_its_caller() -> None:
    WHO.set("ann")
    assert await in_thread(WHO.get) == "ann"


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(2)])
async def test_what_a_thread_raises_reaches_the_caller(error: BaseException) -> None:
    def fail() -> None:
        raise error

    with pytest.raises(type(error)):
        await in_thread(fail)


async def test_the_place_of_a_function_that_cannot_be_stopped_stays_taken_until_it_ends() -> None:
    started, go_on = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def block() -> str:
        loop.call_soon_threadsafe(started.set)
        go_on.wait()
        return "done"

    observed = Observed(define(block, name="slow", effect=Effect.READ_ONLY, limits=Limits(concurrency=1)))
    first = observed.begin()
    await started.wait()
    first.cancel()
    await asyncio.wait([first])
    busy = await observed.begin(timeout_s=0.01)
    assert (busy.status, "could not be started" in busy.text) == (Status.TIMEOUT, True)
    go_on.set()
    assert (await observed.begin()).text == "done"
    assert [record.status for record in observed.audited] == [Status.CANCELLED, Status.OK]


async def test_a_thread_that_never_ends_is_left_behind_after_a_second_cancellation() -> None:
    go_on = threading.Event()
    call = asyncio.ensure_future(in_thread(go_on.wait))
    for _ in range(2):
        await asyncio.sleep(0)
        call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    go_on.set()
