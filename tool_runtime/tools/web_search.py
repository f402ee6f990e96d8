"""Searches the web through a provider chosen by name: a SearXNG instance, Brave or Tavily."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from yarl import URL

from tool_runtime.execution import in_thread
from tool_runtime.options import read
from tool_runtime.pages import text_of
from tool_runtime.types import Context, Effect, Json, Limits, Tool, ToolError
from tool_runtime.web import fetch

MAX_ANSWER_BYTES = 2_000_000
_GRACE_S = 5.0
_TTL_S = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WebSearchOptions:
    """Settings of `web_search`."""

    provider: str
    """`searxng`, `brave` or `tavily`."""
    url: str = ""
    """Of the instance; of another endpoint where the provider has one of its own."""
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
    """How one search API is asked."""

    url: str
    """Empty: everybody runs their own."""
    needs_key: bool
    request: Callable[[WebSearchOptions, URL, str], Mapping[str, Any]]
    """Arguments of `fetch` for a query."""
    hits: Callable[[Any], list[Hit]]
    """Reads the answer's JSON. Raises LookupError or TypeError for what is no answer."""


def build(settings: Mapping[str, Any]) -> Tool:
    """Raises ValueError."""
    options = read(WebSearchOptions, settings, "web_search")

    async def search(arguments: Json, context: Context) -> str:
        hits = await _asked(options, arguments["query"])
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
        limits=Limits(timeout_s=options.timeout_s + _GRACE_S, ttl_s=_TTL_S),
        source="builtin",
    )


async def _asked(options: WebSearchOptions, query: str) -> list[Hit]:
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
        # In a thread: an answer may be long, and all of it is read.
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
    return Hit(text_of(found["title"] or ""), found["url"], text_of(found.get(snippet) or ""))


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
