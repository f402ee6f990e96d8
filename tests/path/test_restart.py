"""A gateway without memory, in front of an engine that still has the caches of its sessions."""

from __future__ import annotations

from typing import Any

from tests.path.conftest import Start
from tests.path.fake_engine import FakeEngine

TOOLS = [{"type": "function", "function": {"name": "ls", "parameters": {}}}]


def call(task: str, num_turns: int) -> dict[str, Any]:
    """The body of an agent's call, after so many turns."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": f"{task} " * 600}]
    for number in range(num_turns):
        asked = {"id": f"call_{task}_{number}", "type": "function", "function": {"name": "ls", "arguments": "{}"}}
        messages.append({"role": "assistant", "content": None, "tool_calls": [asked]})
        messages.append({"role": "tool", "tool_call_id": asked["id"], "content": f"file {number} " * 100})
    return {"model": "m", "messages": messages, "tools": TOOLS}


async def test_a_session_comes_back_to_a_gateway_that_was_restarted_as_one_in_mid_run(
    start: Start, engine: FakeEngine
) -> None:
    before = await start(engine)
    for num_turns in range(3):
        assert (await before.ask(call("fix", num_turns))).status == 200
    after = await start(engine)
    told = {}
    for name, body in (("back", call("fix", 3)), ("new", call("other", 0)), ("next", call("fix", 4))):
        answer = await after.ask(body)
        async with after.get(f"/v1/turngate/receipts/{answer.headers['X-Turngate-Receipt']}") as response:
            told[name] = await response.json()
    assert told["back"]["session"] == told["next"]["session"] != told["new"]["session"]
    assert told["new"]["expected_cached_tokens"] == 0 < told["back"]["expected_cached_tokens"]
    scheduler = after.app.parts.gate._scheduler
    assert scheduler._fleet.sessions[told["back"]["session"]].num_begun == 5
