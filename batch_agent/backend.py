"""Which gateway a batch talks to: the one that is named, that of the environment, or one of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from batch_agent import environment
from batch_agent.hosted import hosted_gateway

_SCHEMES = ("http://", "https://")


@asynccontextmanager
async def gateway_url(gateway: str = "", backend: str = "") -> AsyncIterator[str]:
    """A base URL that ends in /v1. Raises ValueError, ConnectionError.

    `gateway`, else OPENAI_BASE_URL, else a gateway in this process in front of the engine `backend`.
    """
    named = gateway or environment.base_url() or (backend if backend.startswith(_SCHEMES) else "")
    if named:
        if not named.startswith(_SCHEMES):
            raise ValueError(f"the gateway {named!r} is no URL: it begins with http:// or https://")
        yield named.rstrip("/").removesuffix("/v1") + "/v1"
    elif backend:
        async with hosted_gateway(backend) as url:
            yield url
    else:
        raise ValueError(
            "where do the models run? Give gateway='http://host:8080' or backend='vllm://host:8000', or set"
            " OPENAI_BASE_URL"
        )
