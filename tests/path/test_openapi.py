"""The description and a running gateway agree: on paths, on methods, and on refusals."""

from __future__ import annotations

import re
from pathlib import Path

import orjson
import pytest

from gateway.api.routes import DESCRIPTION, ROUTES, document
from gateway.cli import main
from tests.path.conftest import Start
from tests.path.fake_engine import FakeEngine

DOCUMENT = document()
OPERATIONS = [(method.upper(), path) for path, operations in DOCUMENT["paths"].items() for method in operations]


@pytest.mark.parametrize(("method", "path"), OPERATIONS)
async def test_every_described_operation_is_served_and_no_other(
    start: Start, engine: FakeEngine, tmp_path: Path, method: str, path: str
) -> None:
    gateway = await start(engine, batches={"directory": str(tmp_path)})
    url = gateway.url(re.sub(r"\{[a-z_]+\}", "x", path))
    async with gateway.client.request(method, url) as response:
        assert str(response.status) in DOCUMENT["paths"][path][method.lower()]["responses"]
        assert f"There is no {method}" not in await response.text()
    allowed = {one for one, other in OPERATIONS if other == path}
    for wrong in {"GET", "POST", "PUT", "DELETE", "PATCH"} - allowed:
        async with gateway.client.request(wrong, url) as response:
            assert (response.status, set(response.headers["Allow"].split(", "))) == (405, allowed)
            assert (await response.json())["error"]["message"]
    assert engine.calls == []


async def test_views_answer_head_as_get_without_a_body(start: Start, engine: FakeEngine) -> None:
    gateway = await start(engine)
    for route in ROUTES:
        if route.is_view and "{" not in route.path:
            async with gateway.client.head(gateway.url(route.path)) as response:
                assert (response.status, await response.read()) == (200, b"")


async def test_the_description_is_served_as_it_is_printed(
    start: Start, engine: FakeEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    gateway = await start(engine)
    async with gateway.get(DESCRIPTION) as response:
        served = await response.json()
    assert main.main(["openapi"]) == 0
    assert orjson.loads(capsys.readouterr().out) == served == DOCUMENT
