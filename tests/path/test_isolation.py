"""A tenant with an engine cache of its own: `isolate_cache`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway.app import App
from gateway.config.settings import Settings
from tests.path.batches import Connect, asks, create
from tests.path.conftest import Start
from tests.path.fake_engine import FakeEngine
from tests.path.secured import by, key_of, keys

ASK: dict[str, Any] = {
    "model": "m",
    "messages": [{"role": "system", "content": "A long secret. " * 100}, {"role": "user", "content": "the same"}],
}
KEYS = [*keys("a", "b", isolate_cache=True), *keys("c")]


async def test_each_isolated_tenant_has_a_salt_that_no_client_can_say_for_another(
    start: Start, engine: FakeEngine
) -> None:
    gateway = await start(engine, keys=KEYS)
    for tenant in "aabc":
        await gateway.ask(ASK, **by(tenant))
    first, again, other, none = (call.body.get("cache_salt") for call in engine.calls)
    assert first == again
    assert len({first, other, none}) == 3
    assert none is None
    assert engine.calls[0].raw.startswith(engine.calls[3].raw[:-1]), "spliced in behind the client's own bytes"
    for guess in (other, "mine"):
        await gateway.ask(ASK | {"cache_salt": guess}, **by("a"))
        assert engine.calls[-1].body["cache_salt"] == first + guess


async def test_a_salt_outlives_a_restart(start: Start, engine: FakeEngine) -> None:
    for _ in range(2):
        gateway = await start(engine, keys=KEYS)
        await gateway.ask(ASK, **by("a"))
    assert engine.calls[0].body["cache_salt"] == engine.calls[1].body["cache_salt"]


async def test_where_an_engine_cannot_keep_it_apart_the_request_is_refused(
    start: Start, engine: FakeEngine
) -> None:
    gateway = await start(engine, keys=KEYS)
    ask = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
    refused = await gateway.ask(ask, path="/v1/messages", **by("a"))
    assert (refused.status, b"isolate_cache" in refused.body) == (403, True)
    assert not engine.calls
    assert (await gateway.ask(ask, path="/v1/messages", **by("c"))).status == 200


@pytest.mark.parametrize("path", ["/v1/embeddings", "/tokenize", "/detokenize"])
async def test_what_is_no_turn_is_refused_to_an_isolated_tenant_too(
    start: Start, engine: FakeEngine, path: str
) -> None:
    gateway = await start(engine, keys=KEYS)
    ask = {"model": "m", "input": "the same", "prompt": "the same", "tokens": [1]}
    refused = await gateway.ask(ask, path=path, **by("a"))
    assert (refused.status, b"isolate_cache" in refused.body) == (403, True)
    assert not engine.calls
    assert (await gateway.ask(ask, path=path, **by("c"))).status == 200


async def test_lines_of_batches_have_the_salt_of_their_tenant(
    start: Start, engine: FakeEngine, sdk: Connect, tmp_path: Path
) -> None:
    gateway = await start(engine, keys=KEYS, batches={"directory": str(tmp_path)})
    await create(sdk(gateway, key_of("a")), [asks("line")])
    await gateway.ask(ASK, **by("a"))
    await engine.has_seen(2)
    line, other = (call.body["cache_salt"] for call in engine.calls)
    assert line == other


async def test_at_a_real_cache_another_tenant_s_prompt_is_no_hit() -> None:
    told = {"listen": {"port": 0}, "engines": ["embedded"], "embedded": {"speed": 1000}, "keys": KEYS}
    app = App(Settings.model_validate(told))
    await app.start()
    try:
        async with aiohttp.ClientSession() as client:
            cached = []
            for tenant in "aabc":
                url = f"http://127.0.0.1:{app.port}/v1/chat/completions"
                async with client.post(url, json=ASK | {"max_tokens": 2}, headers=by(tenant)) as response:
                    usage = (await response.json())["usage"]
                    cached.append(usage["prompt_tokens_details"]["cached_tokens"] > 0)
    finally:
        await app.stop()
    assert cached == [False, True, False, False]
