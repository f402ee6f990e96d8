"""What is for operators stays with them: a listener or a key of its own, and nothing of it on the public one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from gateway.api.routes import ROUTES
from tests.path.conftest import Gateway, Start
from tests.path.fake_engine import FakeEngine
from tests.path.secured import ADMIN, admin_key, by, key_of, keys

ASK: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
PUBLIC = {"host": "0.0.0.0", "port": 0}


async def status(gateway: Gateway, path: str, key: str = "", *, on_admin: bool = False) -> tuple[int, str]:
    port = gateway.app.admin_port if on_admin else gateway.app.port
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    async with gateway.client.get(f"http://127.0.0.1:{port}{path}", headers=headers) as response:
        return response.status, await response.text()


async def test_an_admin_listener_takes_metrics_and_the_views_of_all_tenants_away(
    start: Start, engine: FakeEngine
) -> None:
    gateway = await start(engine, keys=keys("a", "b"), admin={"port": 0})
    for tenant in "ab":
        await gateway.ask(ASK, **by(tenant))
    assert (await status(gateway, "/metrics"))[0] == 404
    code, page = await status(gateway, "/metrics", on_admin=True)
    assert (code, "turngate_outcomes_total" in page) == (200, True)
    code, sessions = await status(gateway, "/v1/turngate/sessions", on_admin=True)
    assert (code, '"tenant":"a"' in sessions, '"tenant":"b"' in sessions) == (200, True, True)
    assert (await status(gateway, "/health", on_admin=True))[0] == 200


async def test_the_admin_listener_serves_no_model_call(start: Start, engine: FakeEngine) -> None:
    gateway = await start(engine, keys=keys("a"), admin={"port": 0})
    url = f"http://127.0.0.1:{gateway.app.admin_port}/v1/chat/completions"
    async with gateway.client.post(url, json=ASK, headers=by("a")) as response:
        assert response.status == 404
    assert engine.calls == []


@pytest.mark.parametrize("path", ["/metrics", "/v1/turngate/sessions", "/v1/turngate/live", "/v1/turngate/limits"])
async def test_an_admin_listener_with_a_key_asks_for_it(start: Start, engine: FakeEngine, path: str) -> None:
    gateway = await start(engine, keys=keys("a"), admin=admin_key() | {"port": 0})
    for key in ("", key_of("a"), "wrong"):
        assert (await status(gateway, path, key, on_admin=True))[0] == 401
    assert (await status(gateway, path, ADMIN, on_admin=True))[0] == 200


async def test_on_a_public_address_metrics_and_engines_are_not_for_everybody(
    start: Start, engine: FakeEngine
) -> None:
    gateway = await start(engine, keys=keys("a"), listen=PUBLIC)
    for key in ("", key_of("a")):
        assert (await status(gateway, "/metrics", key))[0] == 403
    assert await status(gateway, "/health") == (200, '{"status":"ok"}')
    assert '"engines"' in (await status(gateway, "/health", key_of("a")))[1]
    assert (await status(gateway, "/ready"))[0] == 200


@pytest.mark.parametrize(
    "path", [route.path for route in ROUTES if route.method == "GET" and "{" not in route.path]
)
async def test_with_keys_all_but_probes_and_what_holds_no_data_needs_one_on_loopback_too(
    start: Start, engine: FakeEngine, path: str, tmp_path: Path
) -> None:
    gateway = await start(engine, keys=keys("a"), batches={"directory": str(tmp_path)})
    code, text = await status(gateway, path)
    if path in ("/health", "/ready"):
        assert (code, len(orjson.loads(text))) == (200, 1)
    elif path in ("/ui", "/openapi.json"):
        assert code == 200
    else:
        assert code in (401, 403)


async def test_the_admin_key_opens_views_and_no_model(start: Start, engine: FakeEngine) -> None:
    gateway = await start(engine, keys=keys("a"), listen=PUBLIC, admin=admin_key())
    assert (await status(gateway, "/metrics", ADMIN))[0] == 200
    assert (await status(gateway, "/metrics", key_of("a")))[0] == 401
    refused = await gateway.ask(ASK, Authorization=f"Bearer {ADMIN}")
    assert refused.status == 401
    assert engine.calls == []


async def test_a_scanner_without_a_key_learns_nothing_of_the_fleet(start: Start, engine: FakeEngine) -> None:
    gateway = await start(engine, keys=keys("a"), listen=PUBLIC)
    await gateway.ask(ASK, **by("a"))
    for path in (
        "/",
        "/metrics",
        "/health",
        "/ready",
        "/openapi.json",
        "/v1/models",
        "/v1/turngate/sessions",
        "/v1/files",
        "/docs",
    ):
        _, text = await status(gateway, path)
        for word in ("vllm", "e1", "127.0.0.1", '"m"'):
            assert word not in text, (path, word)


@pytest.mark.parametrize(
    ("origin", "code"),
    [
        ("https://evil.example", 403),
        ("http://evil.example:8080", 403),
        ("null", 403),
        ("http://127.0.0.1.evil.example", 403),
        ("http://localhost:3000", 200),
        ("http://127.0.0.1", 200),
        ("http://[::1]:3000", 200),
    ],
)
async def test_without_keys_a_page_of_the_web_cannot_use_the_engines_through_its_visitor(
    start: Start, engine: FakeEngine, origin: str, code: int
) -> None:
    gateway = await start(engine)
    assert (await gateway.ask(ASK, Origin=origin)).status == code
    assert len(engine.calls) == (code == 200)
