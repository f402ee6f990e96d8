"""DNS rebinding: a web page that reaches a gateway without keys under its own name reads nothing there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.path.conftest import Gateway, Start
from tests.path.fake_engine import FakeEngine
from tests.path.secured import by, keys

ASK: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
OPEN = {"host": "0.0.0.0", "port": 0, "open": True}
PAGES = (
    "/v1/turngate/sessions",
    "/v1/turngate/live",
    "/v1/files",
    "/v1/models",
    "/metrics",
    "/health",
    "/nothing",
)
BROWSER = {"User-Agent": "Mozilla/5.0", "Accept-Language": "de", "Accept-Encoding": "gzip, deflate"}
HIDDEN = {"User-Agent": "node", "Accept-Language": "*", "Accept": "*/*"}
"""As a page can make Firefox look."""
NODE = {"User-Agent": "node", "Accept-Language": "*", "Sec-Fetch-Mode": "cors"}
PYTHON = {"User-Agent": "OpenAI/Python 2.0"}
OWN = (
    *("127.0.0.1:8080", "localhost:8080", "LOCALHOST", "[::1]:8080", "10.1.2.3", "[fe80::1]:80", "my.localhost"),
    *(
        "turngate:8080",
        "turngate.default.svc",
        "turngate.default.svc.cluster.local:8080",
        "box.local",
        "gw.internal.",
    ),
)
FOREIGN = (
    "evil.example:8080",
    "evil.com",
    "127.0.0.1.evil.com",
    "localhost.evil.com.",
    "evil.dev:8080",
    "a.b:x",
    "[::1].evil.com",
    "[::1]evil.com:8080",
    "x" * 300,
)


async def status(gateway: Gateway, path: str, host: str, headers: dict[str, str]) -> int:
    async with gateway.client.get(gateway.url(path), headers={"Host": host, **headers}) as response:
        await response.read()
        return int(response.status)


async def test_a_page_under_a_foreign_name_reads_nothing(start: Start, engine: FakeEngine, tmp_path: Path) -> None:
    gateway = await start(engine, batches={"directory": str(tmp_path)})
    for path in PAGES:
        assert await status(gateway, path, "evil.example:8080", BROWSER) == 403, path
    refused = await gateway.ask(ASK, Host="evil.example:8080")
    assert (refused.status, orjson.loads(refused.body)["error"]["code"]) == (403, "foreign_host")
    refused = await gateway.ask(ASK | {"max_tokens": 9}, "/v1/messages", Host="evil.example:8080")
    assert (refused.status, orjson.loads(refused.body)["type"]) == (403, "error")
    assert engine.calls == []


@pytest.mark.parametrize("listen", [{"port": 0}, OPEN], ids=["loopback", "open"])
async def test_names_that_no_stranger_can_register_are_its_own(
    start: Start, engine: FakeEngine, listen: dict[str, Any]
) -> None:
    gateway = await start(engine, listen=listen)
    for host in OWN:
        for headers in (BROWSER, PYTHON):
            assert await status(gateway, "/v1/models", host, headers) == 200, host
    for host in FOREIGN:
        assert await status(gateway, "/v1/models", host, BROWSER) == 403, host


@pytest.mark.parametrize(
    ("listen", "headers", "code"),
    [
        ({"port": 0}, PYTHON, 403),
        ({"port": 0}, NODE, 403),
        (OPEN, PYTHON, 200),
        (OPEN, NODE, 200),
        (OPEN, BROWSER, 403),
        (OPEN, HIDDEN, 403),
        (OPEN, NODE | {"Sec-Fetch-Site": "same-origin"}, 403),
        (OPEN, PYTHON | {"Origin": "http://gateway.example"}, 403),
    ],
)
async def test_programs_on_a_network_come_by_any_name_and_browsers_by_its_own(
    start: Start, engine: FakeEngine, listen: dict[str, Any], headers: dict[str, str], code: int
) -> None:
    gateway = await start(engine, listen=listen)
    assert await status(gateway, "/v1/models", "gateway.example:8080", headers) == code


async def test_a_listed_name_is_its_own(start: Start, engine: FakeEngine) -> None:
    gateway = await start(engine, listen={"port": 0, "hosts": ["gateway.example", "*.team.example"]})
    for host, code in (("gateway.example", 200), ("A.Team.Example:80", 200), ("x.gateway.example", 403)):
        assert await status(gateway, "/v1/models", host, BROWSER) == code


async def test_with_keys_the_key_decides_under_any_name(start: Start, engine: FakeEngine) -> None:
    gateway = await start(engine, keys=keys("a"))
    assert (await gateway.ask(ASK, Host="gateway.example", **by("a"))).status == 200
    assert await status(gateway, "/v1/models", "gateway.example", BROWSER) == 401


async def test_an_admin_listener_without_a_key_is_guarded_too(start: Start, engine: FakeEngine) -> None:
    gateway = await start(engine, keys=keys("a"), admin={"port": 0})
    url = f"http://127.0.0.1:{gateway.app.admin_port}/metrics"
    for host, code in (("evil.example", 403), ("localhost", 200)):
        async with gateway.client.get(url, headers={"Host": host}) as response:
            assert response.status == code
