"""The route table, the description and the gateway agree: on paths, on methods, and on refusals."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest
from jsonschema import Draft202012Validator

from gateway.api.routes import DESCRIPTION, ROUTES, TABLE, document
from gateway.batches import BatchOperation
from gateway.cli import main
from gateway.cluster.destination import Site
from gateway.dialects import BY_PATH
from tests.path.conftest import Start
from tests.path.fake_engine import FakeEngine

DOCUMENT = document()
OPERATIONS = [(method.upper(), path) for path, operations in DOCUMENT["paths"].items() for method in operations]


def test_every_dialect_and_every_operation_of_batches_has_one_route() -> None:
    assert {path for path in BY_PATH if "POST" in TABLE.at(path)[0]} == set(BY_PATH)
    handlers = [route.handler for route in ROUTES if isinstance(route.handler, BatchOperation)]
    assert sorted(handlers, key=lambda operation: operation.value) == list(BatchOperation)
    assert len({(route.method, route.path) for route in ROUTES}) == len(ROUTES)


@pytest.mark.parametrize(
    ("path", "values"),
    [
        ("/v1/chat/completions", ()),
        ("/v1/models/Qwen/Qwen3-8B", ("Qwen/Qwen3-8B",)),
        ("/v1/files/file-1/content", ("file-1",)),
        ("/v1/responses/resp_1/cancel", ("resp_1",)),
    ],
)
def test_a_path_finds_its_routes_and_the_values_of_its_placeholders(path: str, values: tuple[str, ...]) -> None:
    methods, found = TABLE.at(path)
    assert methods
    assert found == values


@pytest.mark.parametrize(
    "path", ["/", "/v1/files/", "/v1/files/a/b", "/v1/filesystem", "/v1/models/", "/v1/responses/a/b"]
)
def test_a_path_without_a_route_finds_none(path: str) -> None:
    assert TABLE.at(path) == ({}, ())


@pytest.mark.parametrize(
    ("method", "path", "site"),
    [
        ("POST", "/v1/chat/completions", Site.SESSION),
        ("GET", "/v1/chat/completions", Site.LOCAL),
        ("POST", "/v1/embeddings", Site.LOCAL),
        ("GET", "/v1/responses/resp_1", Site.RESPONSE),
        ("POST", "/v1/files", Site.FILES),
        ("GET", "/v1/turngate/live", Site.ALL),
        ("HEAD", "/v1/turngate/receipts/r1", Site.ALL),
        ("GET", "/v1/turngate/limits", Site.LOCAL),
        ("GET", "/metrics", Site.METRICS),
        ("GET", "/health", Site.HEALTH),
        ("GET", "/nothing", Site.LOCAL),
    ],
)
def test_the_table_says_which_member_of_a_cluster_answers(method: str, path: str, site: Site) -> None:
    assert TABLE.destination(method, path).site is site


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


def test_the_schemas_of_the_description_are_valid() -> None:
    def schemas(node: object) -> Iterator[object]:
        if isinstance(node, dict):
            yield from ([node["schema"]] if "schema" in node else [])
            for value in node.values():
                yield from schemas(value)
        for value in node if isinstance(node, list) else ():
            yield from schemas(value)

    for schema in [*schemas(DOCUMENT), *DOCUMENT["components"]["schemas"].values()]:
        Draft202012Validator.check_schema(schema)
