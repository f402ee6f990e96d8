"""The gateway as a whole, with its embedded engine: starts, says so, serves, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from gateway.app import App
from gateway.cluster.workers import READY
from gateway.config.settings import EngineEntry, Policy, Settings
from gateway.core.errors import ConfigError
from gateway.request.gate import policy_of
from tests.deadline import DEADLINE_S

SETTINGS = Settings.model_validate({"listen": {"port": 0}, "engines": ["embedded"], "embedded": {"speed": 1000}})
ASK = {"model": "any", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}


async def test_it_serves_the_embedded_engine_and_stops_with_nothing_left_running() -> None:
    app = App(SETTINGS)
    tasks = asyncio.all_tasks()
    await app.start()
    try:
        assert f"http://127.0.0.1:{app.port}/v1" in app.banner()
        assert "serving embedded" in app.banner()
        url = f"http://127.0.0.1:{app.port}/v1/chat/completions"
        async with aiohttp.ClientSession() as client, client.post(url, json=ASK) as response:
            assert response.status == 200
            assert (await response.json())["usage"]["completion_tokens"] == 4
    finally:
        await app.stop()
    assert asyncio.all_tasks() == tasks


async def test_it_is_ready_only_with_an_engine_that_answers() -> None:
    for engine, last in (("embedded", "Ready. "), ("vllm://127.0.0.1:1", "Listening, but no engine answers yet")):
        app = App(SETTINGS.model_copy(update={"engines": (EngineEntry(url=engine),)}))
        await app.start()
        try:
            assert app.banner().splitlines()[-1].startswith(last)
        finally:
            await app.stop()
        assert last.encode().startswith(READY)  # a supervisor waits for this line


async def test_mcp_servers_start_while_engines_are_probed(tmp_path: Path) -> None:
    begun = tmp_path / "begun"

    async def models(request: web.Request) -> web.Response:
        while not begun.exists():
            await asyncio.sleep(0.01)
        return web.json_response({"data": [{"id": "m"}]})

    engine = web.Application()
    engine.router.add_get("/v1/models", models)
    server = TestServer(engine)
    await server.start_server()
    command = [sys.executable, "-c", f"open({str(begun)!r}, 'w').close()"]
    changes = {
        "engines": [f"openai://127.0.0.1:{server.port}"],
        "tools": {"mcp": [{"name": "it", "command": command}]},
        "probing": {"hints": False, "timeout_s": DEADLINE_S},
    }
    app = App(Settings.model_validate(SETTINGS.model_dump() | changes))
    try:
        async with asyncio.timeout(DEADLINE_S):
            await app.start()
        assert [one.is_up for one in app.parts.monitor.engines] == [True]
    finally:
        await app.stop()
        await server.close()


async def test_a_port_that_is_taken_leaves_nothing_running() -> None:
    first = App(SETTINGS)
    await first.start()
    tasks = asyncio.all_tasks()
    second = App(SETTINGS.model_copy(update={"listen": SETTINGS.listen.model_copy(update={"port": first.port})}))
    with pytest.raises(OSError, match="address already in use"):
        await second.start()
    await second.stop()
    assert asyncio.all_tasks() == tasks
    await first.stop()


async def test_a_start_that_fails_before_it_listens_tells_its_own_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IDS", "a secret")
    taken = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    cluster = {"redis": "redis://127.0.0.1:1", "port": taken.sockets[0].getsockname()[1]}
    more = {"identity": {"secret": "env:IDS"}, "cluster": cluster}
    async with taken:
        app = App(Settings.model_validate(SETTINGS.model_dump() | more))
        with pytest.raises(OSError, match="address already in use"):
            await app.start()
        await app.stop()


def test_a_policy_is_a_short_name_or_an_import_path() -> None:
    assert policy_of(Policy()).name == "turns"
    assert policy_of(Policy(name="policies.fifo:Fifo")).name == "fifo"
    with pytest.raises(ConfigError, match="turns, observe, fifo, passthrough"):
        policy_of(Policy(name="best"))


async def test_gateways_with_one_secret_give_one_id_to_a_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IDS", "a secret of both")
    both = Settings.model_validate(SETTINGS.model_dump() | {"identity": {"secret": "env:IDS"}})
    ids = [await _session_id(settings) for settings in (both, both, SETTINGS, SETTINGS)]
    assert len(set(ids)) == 3
    assert ids[0] == ids[1]


async def _session_id(settings: Settings) -> str:
    app = App(settings)
    await app.start()
    try:
        url, headers = f"http://127.0.0.1:{app.port}/v1/chat/completions", {"X-Turngate-Session": "s"}
        async with aiohttp.ClientSession() as client, client.post(url, json=ASK, headers=headers) as response:
            return response.headers["X-Turngate-Session"]
    finally:
        await app.stop()
