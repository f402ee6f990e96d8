"""Searches the web through a provider chosen by name: a SearXNG instance, Brave or Tavily."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from yarl import URL

from tool_runtime.execution import in_thread
from tool_runtime.loading import read_options
from tool_runtime.tools import GRACE_S
from tool_runtime.types import Context, Effect, Json, Limits, Tool, ToolError
from tool_runtime.web import fetch, page_text

MAX_ANSWER_BYTES = 2_000_000
_TTL_S = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WebSearchOptions:
    """Settings of `web_search`."""

    provider: str
    """`searxng`, `brave` or `tavily`."""
    url: str = ""
    """Address of the SearXNG instance, or of another endpoint of Brave or Tavily."""
    api_key: str = field(default="", repr=False)
    max_results: int = 5
    timeout_s: float = 15.0

    def __post_init__(self) -> None:
        if self.provider not in PROVIDERS:
            raise ValueError(f"there is no provider {self.provider!r}; known are {', '.join(PROVIDERS)}")
        provider = PROVIDERS[self.provider]
        if not self.url and not provider.url:
            raise ValueError(f"{self.provider} needs the url of an instance")
        if not self.api_key and provider.needs_key:
            raise ValueError(f"{self.provider} needs an api_key")


@dataclass(frozen=True, slots=True)
class Hit:
    """One result of a search."""

    title: str
    url: str
    snippet: str


@dataclass(frozen=True, slots=True)
class Provider:
    """The requests and answers of one search API."""

    url: str
    """Its endpoint. Empty: it has none, since each operator runs an instance."""
    needs_key: bool
    request: Callable[[WebSearchOptions, URL, str], Mapping[str, Any]]
    """Gives the arguments of `fetch` for a query."""
    hits: Callable[[Any], list[Hit]]
    """Reads the JSON of an answer. Raises LookupError or TypeError for any other JSON."""


def build(settings: Mapping[str, Any]) -> Tool:
    """Raises ValueError."""
    options = read_options(WebSearchOptions, settings, "web_search")

    async def search(arguments: Json, context: Context) -> str:
        hits = await _search(options, arguments["query"])
        lines = [f"{n}. {hit.title}\n   {hit.url}\n   {hit.snippet}" for n, hit in enumerate(hits, 1)]
        return "\n".join(lines) or "No results."

    return Tool(
        name="web_search",
        description="Search the web. Gives titles, addresses and short extracts of the best results.",
        parameters={
            "type": "object",
            "properties": {"query": {"type": "string", "minLength": 1, "maxLength": 400}},
            "required": ["query"],
            "additionalProperties": False,
        },
        run=search,
        effect=Effect.READ_ONLY,
        limits=Limits(timeout_s=options.timeout_s + GRACE_S, ttl_s=_TTL_S),
        source="builtin",
    )


async def _search(options: WebSearchOptions, query: str) -> list[Hit]:
    provider = PROVIDERS[options.provider]
    request = provider.request(options, URL(options.url or provider.url), query)
    try:
        async with asyncio.timeout(options.timeout_s):
            reply = await fetch(**request, max_bytes=MAX_ANSWER_BYTES)
    except TimeoutError:
        raise ToolError(f"{options.provider} did not answer within {options.timeout_s:g} s") from None
    if reply.status != 200:
        raise ToolError(f"{options.provider} answered {reply.status}")
    try:
        # In a thread, since an answer may be long.
        return await in_thread(lambda: provider.hits(json.loads(reply.body))[: options.max_results])
    except (ValueError, LookupError, TypeError, AttributeError):
        raise ToolError(f"{options.provider} answered with something else than results") from None


def _searxng(options: WebSearchOptions, url: URL, query: str) -> Mapping[str, Any]:
    return {"url": url / "search" % {"q": query, "format": "json"}}


def _brave(options: WebSearchOptions, url: URL, query: str) -> Mapping[str, Any]:
    return {
        "url": url % {"q": query, "count": str(options.max_results)},
        "headers": {"X-Subscription-Token": options.api_key, "Accept": "application/json"},
    }


def _tavily(options: WebSearchOptions, url: URL, query: str) -> Mapping[str, Any]:
    return {
        "method": "POST",
        "url": url,
        "headers": {"Authorization": f"Bearer {options.api_key}"},
        "json": {"query": query, "max_results": options.max_results},
    }


def _hit(found: Any, snippet: str) -> Hit:
    return Hit(page_text(found["title"] or ""), found["url"], page_text(found.get(snippet) or ""))


PROVIDERS: Mapping[str, Provider] = {
    "searxng": Provider("", False, _searxng, lambda answer: [_hit(x, "content") for x in answer["results"]]),
    "brave": Provider(
        "https://api.search.brave.com/res/v1/web/search",
        True,
        _brave,
        # An answer without `web` is one without results.
        lambda answer: [_hit(x, "description") for x in answer.get("web", {"results": []})["results"]],
    ),
    "tavily": Provider(
        "https://api.tavily.com/search",
        True,
        _tavily,
        lambda answer: [_hit(x, "content") for x in answer["results"]],
    ),
}
