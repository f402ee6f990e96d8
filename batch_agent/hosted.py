"""Starts a gateway inside this process: the only place that knows of one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

_HOSTS = {"openai": "openai+https://api.openai.com"}
"""Where the engine URLs of services lead that need no host."""
_KEYS = {"openai": "OPENAI_API_KEY", "anthropic": "ANTHROPIC_API_KEY"}


@asynccontextmanager
async def hosted_gateway(backend: str) -> AsyncIterator[str]:
    """Its base URL, with /v1, while the context lasts. Raises ValueError for a URL that is no engine's, and
    ConnectionError if the engine does not answer."""
    from gateway import config
    from gateway.app import App
    from gateway.settings import Settings

    try:
        settings = Settings.model_validate(
            {
                "listen": {"host": "127.0.0.1", "port": 0},
                "engines": [_engine(backend)],
                "timeouts": {"shutdown_grace_s": 0},
            }
        )
        app = App(settings)
    except config.ConfigError as error:
        raise ValueError(f"backend {backend!r}: {error}") from None
    try:
        await app.start()
        engine = app.monitor.engines[0]
        if not engine.is_up:
            raise ConnectionError(f"backend {backend!r}: {engine.problem}")
        yield f"http://127.0.0.1:{app.port}/v1"
    finally:
        await app.stop()


def _engine(backend: str) -> dict[str, str]:
    """`openai://` and the like name a service: its host and key are known."""
    scheme, _, host = backend.partition("://")
    key = {"api_key": f"env:{_KEYS[scheme]}"} if scheme in _KEYS else {}
    return {"url": backend if host else _HOSTS.get(scheme, backend), **key}
