from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from tests.tool_runtime.tools.calls import called
from tool_runtime.tools.web_search import WebSearchOptions, build
from tool_runtime.types import Status

KEY = "the-secret-key"
HIT = {"title": "A <b>title</b>", "url": "https://a.example/", "score": 0.5}


@dataclass
class Api:
    """A search API that remembers what it was asked."""

    answer: Callable[[], web.Response]
    asked: list[dict[str, Any]] = field(default_factory=list)

    async def handle(self, request: web.Request) -> web.Response:
        body = await request.text()
        self.asked.append(
            {
                "method": request.method,
                "path": request.path,
                "query": dict(request.query),
                "headers": dict(request.headers),
                "json": json.loads(body) if body else None,
            }
        )
        return self.answer()


@asynccontextmanager
async def serving(api: Api) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", api.handle)
    async with TestServer(app) as server:
        yield str(server.make_url("")).rstrip("/")


def results(*wrapped_in: str, snippet: str, num: int = 1) -> Callable[[], web.Response]:
    hits = [{**HIT, snippet: f"extract {number}"} for number in range(num)]
    answer: Any = {"results": hits}
    for key in wrapped_in:
        answer = {key: answer}
    return lambda: web.json_response(answer)


async def test_searxng_is_asked_for_json() -> None:
    api = Api(results(snippet="content", num=9))
    async with serving(api) as url:
        result = await called(build({"provider": "searxng", "url": url, "max_results": 2}), query="a b&c")
    assert result.text == (
        "1. A title\n   https://a.example/\n   extract 0\n2. A title\n   https://a.example/\n   extract 1"
    )
    asked = api.asked[0]
    assert (asked["method"], asked["path"]) == ("GET", "/search")
    assert asked["query"] == {"q": "a b&c", "format": "json"}


async def test_brave_is_asked_with_its_header() -> None:
    api = Api(results("web", snippet="description"))
    async with serving(api) as url:
        tool = build({"provider": "brave", "url": f"{url}/res/v1/web/search", "api_key": KEY})
        result = await called(tool, query="q")
    assert result.text == "1. A title\n   https://a.example/\n   extract 0"
    assert api.asked[0]["query"] == {"q": "q", "count": "5"}
    assert api.asked[0]["headers"]["X-Subscription-Token"] == KEY


async def test_tavily_is_asked_by_post() -> None:
    api = Api(results(snippet="content"))
    async with serving(api) as url:
        result = await called(build({"provider": "tavily", "url": f"{url}/search", "api_key": KEY}), query="q")
    assert result.text == "1. A title\n   https://a.example/\n   extract 0"
    assert (api.asked[0]["method"], api.asked[0]["json"]) == ("POST", {"query": "q", "max_results": 5})
    assert api.asked[0]["headers"]["Authorization"] == f"Bearer {KEY}"


async def test_no_result_is_no_error() -> None:
    async with serving(Api(lambda: web.json_response({"type": "search"}))) as url:
        result = await called(build({"provider": "brave", "url": url, "api_key": KEY}), query="q")
    assert (result.status, result.text) == (Status.OK, "No results.")


@pytest.mark.parametrize(
    "answer",
    [
        lambda: web.Response(status=429, text=KEY),
        lambda: web.Response(status=302, headers={"Location": "http://127.0.0.1:1/"}),
        lambda: web.Response(text="<html>"),
        lambda: web.json_response([]),
        lambda: web.json_response({"results": [{"title": "no url"}]}),
        lambda: web.json_response({"results": 5}),
        lambda: web.Response(body=b"\xff"),
    ],
)
async def test_an_answer_that_is_none_is_an_error_without_the_key(answer: Callable[[], web.Response]) -> None:
    async with serving(Api(answer)) as url:
        result = await called(build({"provider": "tavily", "url": url, "api_key": KEY}), query="q")
    assert (result.status, KEY in result.text) == (Status.ERROR, False)


async def test_a_provider_that_is_down_is_an_error_without_the_key() -> None:
    tool = build({"provider": "tavily", "url": "http://127.0.0.1:1/", "api_key": KEY})
    result = await called(tool, query="q")
    assert (result.status, KEY in result.text) == (Status.ERROR, False)


def test_the_key_is_not_in_the_text_of_the_settings() -> None:
    assert KEY not in repr(WebSearchOptions(provider="brave", api_key=KEY))


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({}, "provider is missing"),
        ({"provider": "other"}, "known are searxng, brave, tavily"),
        ({"provider": "searxng"}, "url"),
        ({"provider": "brave"}, "api_key"),
    ],
)
def test_settings_that_are_wrong_are_told(settings: dict[str, str], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        build(settings)
