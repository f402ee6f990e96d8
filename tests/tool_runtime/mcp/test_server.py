"""What a real server gives that is well: one over standard input and output, one over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.deadline import DEADLINE_S
from tests.tool_runtime.mcp.joined import Joined, joined_by
from tool_runtime.types import Effect, Status

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["stdio", "http"])
async def it(request: pytest.FixtureRequest) -> AsyncIterator[Joined]:
    async with joined_by(request.param) as both:
        yield both


async def test_tools_are_listed_and_called(it: Joined) -> None:
    tools = it.runtime.tools
    assert [*tools][:3] == ["it_add", "it_big", "it_environment"]
    effects = [tools[f"it_{name}"].effect for name in ("add", "grow", "crash")]
    assert effects == [Effect.READ_ONLY, Effect.IDEMPOTENT, Effect.DESTRUCTIVE]
    assert {tool.source for tool in tools.values()} == {"mcp:it"}
    added = await it.call("it_add", a=1, b=2)
    assert (added.status, added.text) == (Status.OK, "3")
    failed = await it.call("it_fail")
    assert (failed.status, failed.text) == (Status.ERROR, "Error: it failed")
    refused = await it.call("it_add", a="x")
    assert refused.status is Status.REFUSED


async def test_a_tool_with_a_bad_schema_is_left_out_with_its_reason(it: Joined) -> None:
    (state,) = it.servers.states
    assert state.left_out == {
        "not_a_schema": "not a JSON Schema: 'no such type' is not valid under any of the given schemas",
        "foreign_schema": "its schema refers to https://example.com/schema.json, which lies outside it",
    }
    assert (state.is_up, state.problem, len(state.tools)) == (True, "", 10)
    assert not {"it_not_a_schema", "it_foreign_schema"} & set(it.runtime.tools)


async def test_a_result_of_a_megabyte_is_cut_visibly(it: Joined) -> None:
    result = await it.call("it_big", num_bytes=1_000_000)
    assert (result.status, result.is_truncated) == (Status.OK, True)
    assert result.text.endswith("x\n[truncated: the first 65536 of 1000000 bytes]")


async def test_a_call_that_nobody_waits_for_is_cancelled_in_the_server(it: Joined) -> None:
    task = asyncio.create_task(it.call("it_hang"))
    await it.call("it_wait_until", what="begun")
    task.cancel()
    result = await it.call("it_wait_until", what="cancelled")
    assert (task.cancelled(), result.status) == (True, Status.OK)


async def test_a_changed_list_is_offered(it: Joined) -> None:
    assert "it_late" not in it.runtime.tools
    it.has_changed.clear()
    await it.call("it_grow")
    await asyncio.wait_for(it.has_changed.wait(), DEADLINE_S)
    assert (await it.call("it_late")).text == "done: late"
