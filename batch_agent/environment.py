"""The environment of the process, which only this module reads, and the gateway that a batch talks to."""

from __future__ import annotations

import gc
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager

_SCHEMES = ("http://", "https://")
_KEYS = {"openai": "OPENAI_API_KEY", "anthropic": "ANTHROPIC_API_KEY", "bedrock": "AWS_BEARER_TOKEN_BEDROCK"}
"""The variable that holds the key of each rented service. Without it, Bedrock takes what AWS's own tools find."""


def api_key() -> str:
    return os.environ.get("OPENAI_API_KEY", "")


def inherited() -> dict[str, str]:
    """Return the variables that child processes inherit."""
    return dict(os.environ)


def search_provider() -> dict[str, str] | None:
    """Return settings of the tool `web_search`. None: there is no key for any provider."""
    if key := os.environ.get("BRAVE_SEARCH_API_KEY"):
        return {"provider": "brave", "api_key": key}
    if key := os.environ.get("TAVILY_API_KEY"):
        return {"provider": "tavily", "api_key": key}
    if url := os.environ.get("SEARXNG_URL"):
        return {"provider": "searxng", "url": url}
    return None


@asynccontextmanager
async def gateway_url(gateway: str = "", backend: str = "") -> AsyncIterator[str]:
    """Yield a base URL that ends in /v1. Raises ValueError, ConnectionError.

    It is `gateway`, else OPENAI_BASE_URL, else that of a gateway in this process in front of the engine `backend`.
    """
    named = gateway or os.environ.get("OPENAI_BASE_URL", "") or (backend if backend.startswith(_SCHEMES) else "")
    if named:
        if not named.startswith(_SCHEMES):
            raise ValueError(f"the gateway {named!r} is no URL: it begins with http:// or https://")
        yield named.rstrip("/").removesuffix("/v1") + "/v1"
    elif backend:
        async with _gateway_in_process(backend) as url:
            yield url
    else:
        raise ValueError(
            "where do the models run? Give gateway='http://host:8080' or backend='vllm://host:8000', or set"
            " OPENAI_BASE_URL"
        )


@contextmanager
def _no_collections() -> Iterator[None]:
    """Suspend garbage collection, and exempt what exists in the end until `gc.unfreeze`: scans of the gateway's
    modules take a fifth of the CPU time of a small batch."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()


@asynccontextmanager
async def _gateway_in_process(backend: str) -> AsyncIterator[str]:
    """Run a gateway while the context lasts. Raises ValueError for a URL that is no engine's, and ConnectionError
    if the engine does not answer."""
    with _no_collections():
        from gateway.app import App
        from gateway.config.settings import Settings
        from gateway.core.errors import ConfigError

    try:
        settings = Settings.model_validate(
            {
                "listen": {"host": "127.0.0.1", "port": 0},
                "engines": [_engine(backend)],
                "probing": {"start_waits": False},
                "timeouts": {"shutdown_grace_s": 0},
            }
        )
        async with AsyncExitStack() as running:
            app = App(settings)
            running.push_async_callback(app.stop)
            await app.start()
            engine = app.parts.monitor.engines[0]
            if not engine.is_up:
                raise ConnectionError(f"backend {backend!r}: {engine.problem}")
            yield f"http://127.0.0.1:{app.port}/v1"
    except ConfigError as error:
        raise ValueError(f"backend {backend!r}: {error}") from None
    finally:
        gc.unfreeze()


def _engine(backend: str) -> dict[str, str]:
    """Return the settings of an engine, with its key if the engine is a service that has one."""
    variable = _KEYS.get(backend.partition("://")[0].partition("+")[0], "")
    return {"url": backend} | ({"api_key": f"env:{variable}"} if os.environ.get(variable) else {})
