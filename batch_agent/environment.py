"""The only reader of the environment: where the gateway is, and what child processes inherit."""

from __future__ import annotations

import os


def base_url() -> str:
    return os.environ.get("OPENAI_BASE_URL", "")


def api_key() -> str:
    return os.environ.get("OPENAI_API_KEY", "")


def has(name: str) -> bool:
    return bool(os.environ.get(name))


def inherited() -> dict[str, str]:
    return dict(os.environ)


def search_provider() -> dict[str, str] | None:
    """Settings of the tool `web_search`; None: there is no key for any."""
    if key := os.environ.get("BRAVE_SEARCH_API_KEY"):
        return {"provider": "brave", "api_key": key}
    if key := os.environ.get("TAVILY_API_KEY"):
        return {"provider": "tavily", "api_key": key}
    if url := os.environ.get("SEARXNG_URL"):
        return {"provider": "searxng", "url": url}
    return None
