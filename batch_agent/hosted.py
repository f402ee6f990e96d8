"""Starts a gateway inside this process: the only place that knows of one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from batch_agent import environment

_KEYS = {"openai": "OPENAI_API_KEY", "anthropic": "ANTHROPIC_API_KEY", "bedrock": "AWS_BEARER_TOKEN_BEDROCK"}
"""Variables in which services want their keys. Without one, Bedrock takes what AWS's own tools find."""


@asynccontextmanager
async def hosted_gateway(backend: str) -> AsyncIterator[str]:
    """Its base URL, with /v1, while the context lasts. Raises ValueError for a URL that is no engine's, and
    ConnectionError if the engine does not answer."""
    from gateway.app import App
    from gateway.config.settings import Settings
    from gateway.core.errors import ConfigError

    try:
        settings = Settings.model_validate(
            {
                "listen": {"host": "127.0.0.1", "port": 0},
                "engines": [_engine(backend)],
                "timeouts": {"shutdown_grace_s": 0},
            }
        )
        async with AsyncExitStack() as running:
            app = App(settings)
            running.push_async_callback(app.stop)
            await app.start()
            engine = app.monitor.engines[0]
            if not engine.is_up:
                raise ConnectionError(f"backend {backend!r}: {engine.problem}")
            yield f"http://127.0.0.1:{app.port}/v1"
    except ConfigError as error:
        raise ValueError(f"backend {backend!r}: {error}") from None


def _engine(backend: str) -> dict[str, str]:
    """With the key, of a service that has one."""
    variable = _KEYS.get(backend.partition("://")[0].partition("+")[0], "")
    return {"url": backend} | ({"api_key": f"env:{variable}"} if environment.has(variable) else {})
