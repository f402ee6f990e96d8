"""Laws of calls to engines that no client waits for."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.engines import sglang
from gateway.request.background_calls import OWN_BYTES
from policies.types import Release, WarmUp
from tests.path.conftest import Gateway, Start
from tests.path.fake_engine import FakeEngine, cuts_after

MESSAGES = [{"role": "system", "content": "You are an agent."}, {"role": "user", "content": "Look around."}]
ASKED: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "model": "m",
        "messages": MESSAGES,
        "stream": True,
        "stream_options": {"include_usage": True},
        "min_tokens": 5,
        "max_completion_tokens": 100,
    },
    "/v1/completions": {"model": "m", "prompt": "Look around.", "temperature": 0.5},
}


async def answered(gateway: Gateway, path: str) -> str:
    """The session of a call that was answered."""
    answer = await gateway.ask(ASKED[path], path)
    assert answer.status == 200
    return str(answer.headers["X-Turngate-Session"])


@pytest.mark.parametrize("path", ASKED)
async def test_a_warm_up_is_the_sessions_last_call_for_one_token(
    start: Start, engine: FakeEngine, path: str
) -> None:
    gateway = await start(engine)
    session_id = await answered(gateway, path)
    assert await gateway.app.parts.warm_ups.ask(session_id)
    first, again = engine.calls
    assert again.path == path
    bound = "max_completion_tokens" if "max_completion_tokens" in first.body else "max_tokens"
    gone = ("stream_options", "min_tokens")
    kept = {key: value for key, value in first.body.items() if key not in gone}
    assert again.body == kept | {bound: 1, "stream": False}


async def test_what_is_kept_for_warm_ups_is_bounded_and_the_oldest_goes_first(
    start: Start, engine: FakeEngine
) -> None:
    gateway = await start(engine, policy={"warm_up_bytes": 4 * OWN_BYTES})
    sessions = [await answered(gateway, path) for path in ASKED]
    assert [await gateway.app.parts.warm_ups.ask(session_id) for session_id in sessions] == [False, True]


async def test_the_headers_of_what_is_kept_for_warm_ups_count(start: Start, engine: FakeEngine) -> None:
    gateway = await start(engine, policy={"warm_up_bytes": 50_000})
    for number in range(30):
        asked = {"model": "m", "messages": [{"role": "user", "content": f"Do {number}."}]}
        assert (await gateway.ask(asked, X_Other="x" * 7_000)).status == 200
    kept = gateway.app.parts.warm_ups._kept.values()
    assert 1 <= len(kept) <= 50_000 / 7_000


async def test_a_warm_up_that_the_engine_breaks_off_is_told_to_have_failed(
    start: Start, engine: FakeEngine
) -> None:
    gateway = await start(engine)
    session_id = await answered(gateway, "/v1/chat/completions")
    engine.plays += [cuts_after()] * 4  # the first ones may have been connections gone stale
    assert not await gateway.app.parts.warm_ups.ask(session_id)


async def test_the_scheduler_is_told_how_each_warm_up_ended(start: Start, engine: FakeEngine) -> None:
    gateway = await start(engine)
    session_id = await answered(gateway, "/v1/chat/completions")
    gateway.app.parts.background_calls.carry_out(WarmUp(session_id, "e1", 2_000))
    await engine.has_seen(2)
    await gateway.is_empty()


async def test_an_engine_that_holds_sessions_is_told_which_it_need_not_keep(
    start: Start,
) -> None:
    engine = FakeEngine(lacks=frozenset(("/v1/loads", "/server_info", "/get_server_info")))
    gateway = await start(engine, kind="sglang")
    [running] = gateway.app.parts.monitor.engines
    assert sglang.SGLang().closing("s", running.abilities) is None, "it was not seen to hold any"
    running.abilities.refused_fields.discard("session_id")
    gateway.app.parts.background_calls.carry_out(Release("s", "e1"))
    call = await engine.has_seen(1)
    assert (call.path, call.body) == ("/close_session", {"session_id": "s"})
