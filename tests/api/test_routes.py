"""Laws of the route table: every endpoint is in it once, and its description is valid."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from jsonschema import Draft202012Validator

from gateway.api.routes import ROUTES, TABLE, document
from gateway.batches import BatchOperation
from gateway.cluster.destination import Site
from gateway.dialects import BY_PATH


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


def test_the_schemas_of_the_description_are_valid() -> None:
    def schemas(node: object) -> Iterator[object]:
        if isinstance(node, dict):
            yield from ([node["schema"]] if "schema" in node else [])
            for value in node.values():
                yield from schemas(value)
        for value in node if isinstance(node, list) else ():
            yield from schemas(value)

    for schema in [*schemas(document()), *document()["components"]["schemas"].values()]:
        Draft202012Validator.check_schema(schema)
