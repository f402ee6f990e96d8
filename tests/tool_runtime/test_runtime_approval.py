from __future__ import annotations

import asyncio

import pytest

from tests.tool_runtime.fakes import ANN, BOB, Observed, Slow
from tests.tool_runtime.virtual import virtual
from tool_runtime.types import Context, Effect, Json, Status, Tool, Verdict


def answering(is_approved: bool, reason: str = "") -> object:
    async def approve(tool: Tool, arguments: Json, context: Context) -> Verdict:
        return Verdict(is_approved, reason)

    return approve


async def failing(tool: Tool, arguments: Json, context: Context) -> Verdict:
    raise OSError("no route to the callback")


async def silent(tool: Tool, arguments: Json, context: Context) -> Verdict:
    await asyncio.get_running_loop().create_future()
    return Verdict(True)


@pytest.mark.parametrize(
    ("approval", "approve", "status", "said"),
    [
        ("never", None, Status.OK, "answer 1"),
        ("always", answering(True), Status.OK, "answer 1"),
        ("always", answering(False, "not on Fridays"), Status.REFUSED, "not on Fridays"),
        ("http://desk/", answering(True), Status.OK, "answer 1"),
        ("http://desk/", None, Status.REFUSED, "there is no way to give it here"),
        ("http://desk/", failing, Status.REFUSED, "asking for it failed"),
        ("http://desk/", silent, Status.REFUSED, "none came in time"),
    ],
)
@virtual
async def test_a_call_runs_only_after_a_clear_yes(
    approval: str, approve: object, status: Status, said: str
) -> None:
    slow = Slow()
    observed = Observed(slow.tool(Effect.DESTRUCTIVE, approval=approval), approve=approve)
    result = await observed.begin()
    assert result.status is status
    assert said in result.text
    assert len(slow.started) == (status is Status.OK)
    assert [record.status for record in observed.audited] == [status]


@virtual
async def test_what_another_got_approved_still_needs_approval() -> None:
    async def only_ann(tool: Tool, arguments: Json, context: Context) -> Verdict:
        return Verdict(context == ANN)

    observed = Observed(Slow().tool(approval="always", ttl_s=60.0), approve=only_ann)
    assert (await observed.begin(context=ANN)).status is Status.OK
    assert (await observed.begin(context=BOB)).status is Status.REFUSED
