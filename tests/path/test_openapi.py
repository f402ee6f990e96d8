"""The description and the gateway agree: on paths, on methods, and on who else is told what."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest
from jsonschema import Draft202012Validator

from gateway.api import openapi, views
from gateway.api.live import PATH as LIVE
from gateway.api.ui.page import PATH as UI
from gateway.batches import api
from gateway.dialects import BY_PATH
from gateway.request.stateless import PlainCalls
from tests.path.conftest import Start
from tests.path.fake_engine import FakeEngine

DOCUMENT = openapi.document()
OPERATIONS = [(method.upper(), path) for path, operations in DOCUMENT["paths"].items() for method in operations]


def texts_of(function_or_module: object) -> set[str]:
    tree = ast.parse(inspect.cleandoc(inspect.getsource(function_or_module)))  # type: ignore[arg-type]
    return {
        node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }


def of_batches() -> Iterator[tuple[str, str]]:
    """The routes of the API of files and batches, from its one `match`."""
    tree = ast.parse(Path(inspect.getfile(api)).read_text())
    for case in (node for node in ast.walk(tree) if isinstance(node, ast.match_case)):
        match case.pattern:
            case ast.MatchSequence(
                patterns=[ast.MatchValue(value=ast.Constant(value=str(method))), ast.MatchSequence(patterns=parts)]
            ):
                yield method, "/v1/" + "/".join(_part(part) for part in parts)


def _part(pattern: ast.pattern) -> str:
    if isinstance(pattern, ast.MatchValue) and isinstance(pattern.value, ast.Constant):
        return str(pattern.value.value)
    return "{}"


def of_views() -> set[str]:
    texts = texts_of(views) - {"/v1", "/v1/", "/v1/v1/", "/models"}  # of which it only says something
    return {UI, LIVE, *(text for text in texts if re.fullmatch(r"(/[a-z0-9]+)+/?", text))}


def plain(path: str) -> str:
    return re.sub(r"\{[a-z_]+\}", "{}", path)


def test_every_route_that_is_served_is_described() -> None:
    described = {(method, plain(path)) for method, path in OPERATIONS}
    served = {("POST", path) for path in BY_PATH} | set(of_batches())
    served |= {("GET", path + "{}" if path.endswith("/") else path) for path in of_views() - BY_PATH.keys()}
    kept = "/v1/responses/{}"  # what `PlainCalls.answer_stored` takes, and `Path.handle` by this description
    assert {"cancel", "input_items"} <= texts_of(inspect.getmodule(PlainCalls))
    served |= {("GET", kept), ("DELETE", kept), ("POST", f"{kept}/cancel"), ("GET", f"{kept}/input_items")}
    served |= {("GET", "/v1/models/{}"), ("GET", openapi.PATH)}
    assert described == served


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


async def test_it_is_served_as_it_is_printed(
    start: Start, engine: FakeEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    gateway = await start(engine)
    async with gateway.get(openapi.PATH) as response:
        served = await response.json()
    assert openapi.show() == 0
    assert orjson.loads(capsys.readouterr().out) == served == DOCUMENT


def test_its_schemas_are_schemas() -> None:
    def schemas(node: object) -> Iterator[object]:
        if isinstance(node, dict):
            yield from ([node["schema"]] if "schema" in node else [])
            for value in node.values():
                yield from schemas(value)
        for value in node if isinstance(node, list) else ():
            yield from schemas(value)

    for schema in [*schemas(DOCUMENT), *DOCUMENT["components"]["schemas"].values()]:
        Draft202012Validator.check_schema(schema)
