"""Calls a service as if it spoke OpenAI's dialect: an upstream in front of the one that has the connections."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Protocol

from gateway.core.transport import HeaderList, Timeouts, Upstream, UpstreamReply
from gateway.engines.base import EngineAddress
from gateway.engines.providers.anthropic_calls import AnthropicCalls
from gateway.engines.providers.bedrock_calls import BedrockCalls


class Service(Protocol):
    """One configured address of a service."""

    async def call(
        self, method: str, path: str, headers: HeaderList, body: bytes | None, timeouts: Timeouts
    ) -> UpstreamReply:
        """As `Upstream.call`, with a path of OpenAI's API."""
        ...


KINDS: dict[str, Callable[[Upstream, str, Callable[[], float]], Service]] = {
    "anthropic": AnthropicCalls,
    "bedrock": BedrockCalls,
}


def in_front(
    upstream: Upstream, addresses: Iterable[EngineAddress], wall_clock: Callable[[], float] = time.time
) -> Upstream:
    """`upstream` itself where nothing is to be translated. Raises ConfigError for what a service lacks here."""
    services = {
        address.base_url: KINDS[address.kind](upstream, address.base_url, wall_clock)
        for address in addresses
        if address.kind in KINDS
    }
    return ServiceUpstream(upstream, services) if services else upstream


class ServiceUpstream:
    """A `transport.Upstream`."""

    def __init__(self, upstream: Upstream, services: dict[str, Service]) -> None:
        self._upstream = upstream
        self._services = services

    async def call(
        self, method: str, url: str, headers: HeaderList, body: bytes | None, timeouts: Timeouts
    ) -> UpstreamReply:
        for base_url, service in self._services.items():
            if url.startswith(base_url + "/"):
                return await service.call(method, url[len(base_url) :], headers, body, timeouts)
        return await self._upstream.call(method, url, headers, body, timeouts)

    async def close(self) -> None:
        await self._upstream.close()
