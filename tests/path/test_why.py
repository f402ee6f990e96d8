"""Laws of `/v1/turngate/why` at a running gateway: the split is the measured time, and tenants see their own."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import quote

import pytest

from tests.path.conftest import Gateway, Start
from tests.path.fake_engine import DONE, FakeEngine, chunk, finish, stalls_after, streams
from tests.path.secured import by, key_of, keys

HI = {"role": "user", "content": "hi"}
ASK = {"model": "m", "stream": True, "messages": [HI]}
TOOL = {"index": 0, "id": "c1", "function": {"name": "ls", "arguments": "{}"}}


async def why(gateway: Gateway, of: str = "", key: str = "", status: int = 200) -> Any:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    async with gateway.get(f"/v1/turngate/why?of={quote(of)}", **headers) as response:
        assert response.status == status
        return await response.json()


async def test_the_split_of_a_session_is_its_measured_time_and_a_tool_of_the_client_has_its_name(
    start: Start, engine: FakeEngine
) -> None:
    engine.plays = [
        streams([chunk(tool_calls=[TOOL]), finish("tool_calls"), DONE]),
        streams([finish("stop"), DONE]),
    ]
    gateway = await start(engine)
    first = await gateway.ask(ASK, X_Turngate_Session="run-7")
    answer = {"role": "assistant", "content": None, "tool_calls": [TOOL | {"type": "function"}]}
    result = {"role": "tool", "tool_call_id": "c1", "content": "a file"}
    await gateway.ask(ASK | {"messages": [HI, answer, result]}, X_Turngate_Session="run-7")
    page = await why(gateway, "run-7")
    assert sum(page["split"].values()) == pytest.approx(page["measured_ms"], rel=0.03, abs=0.5)
    assert list(page["tools"]) == ["ls"]
    assert [turn["turn"] for turn in page["timeline"]] == [1, 2]
    assert (await why(gateway, first.headers["X-Turngate-Receipt"]))["shown"]["session"] == page["shown"][
        "session"
    ]
    assert (await why(gateway))["turns"] == 2
    await why(gateway, "run-8", status=404)


async def test_a_first_request_that_still_runs_shows_its_phase(start: Start, engine: FakeEngine) -> None:
    ends = asyncio.Event()
    engine.plays = [stalls_after(then=streams([finish("stop"), DONE]), until=ends)]
    gateway = await start(engine)
    client = gateway.begin(ASK, X_Turngate_Session="run-7")
    await engine.has_seen(1)
    page = await why(gateway, "run-7")
    assert [one["phase"] for one in page["now"]] == ["prefill"]
    ends.set()
    await client


async def test_a_tenant_is_told_of_its_own_sessions_only(start: Start, engine: FakeEngine) -> None:
    gateway = await start(engine, keys=keys("a", "b"))
    answer = await gateway.ask(ASK, X_Turngate_Session="run-7", **by("a"))
    receipt, session = answer.headers["X-Turngate-Receipt"], answer.headers["X-Turngate-Session"]
    assert (await why(gateway, "run-7", key_of("a")))["turns"] == 1
    for name in ("run-7", receipt, session):
        await why(gateway, name, key_of("b"), status=404)
    assert (await why(gateway, "", key_of("b")))["turns"] == 0
