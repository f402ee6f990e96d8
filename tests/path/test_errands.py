"""Laws of calls to engines that no client waits for."""

from __future__ import annotations

from gateway.engines import sglang
from policies.types import Release
from tests.path.conftest import Start
from tests.path.fake_engine import FakeEngine


async def test_an_engine_that_holds_sessions_is_told_which_it_need_not_keep(
    start: Start,
) -> None:
    engine = FakeEngine(lacks=frozenset(("/v1/loads", "/server_info", "/get_server_info")))
    gateway = await start(engine, kind="sglang")
    [running] = gateway.app.parts.monitor.engines
    assert sglang.SGLang().closing("s", running.abilities) is None, "it was not seen to hold any"
    running.abilities.refused_fields.discard("session_id")
    gateway.app.parts.background_calls.release(Release("s", "e1"))
    call = await engine.has_seen(1)
    assert (call.path, call.body) == ("/close_session", {"session_id": "s"})
