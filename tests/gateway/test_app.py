"""The gateway as a whole, with its embedded engine: starts, says so, serves, and leaves nothing behind."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest

from gateway.app import App, policy_of
from gateway.config import ConfigError
from gateway.settings import Policy, Settings

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


def test_a_policy_is_a_short_name_or_an_import_path() -> None:
    assert policy_of(Policy()).name == "turns"
    assert policy_of(Policy(name="policies.fifo:Fifo")).name == "fifo"
    with pytest.raises(ConfigError, match="turns, fifo, passthrough"):
        policy_of(Policy(name="best"))
