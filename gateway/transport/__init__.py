"""HTTP servers and clients, of two transports: `fast`, the default, and `aiohttp`, the reference."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from gateway.core.transport import Handler, Server, Upstream

Name: TypeAlias = Literal["auto", "aiohttp", "fast"]


@dataclass(frozen=True, slots=True)
class Transport:
    """Server and client of one transport."""

    name: str
    server: Callable[[Handler], Server]
    upstream: Callable[[], Upstream]
    """Called inside a running event loop."""


def transport_of(name: Name = "auto") -> Transport:
    """Return the transport of a setting. Only the chosen one's library is imported."""
    if name == "aiohttp":
        from gateway.transport.aiohttp_server import AiohttpServer
        from gateway.transport.aiohttp_upstream import AiohttpUpstream

        return Transport("aiohttp", AiohttpServer, AiohttpUpstream)
    from gateway.transport.fast.client import FastUpstream
    from gateway.transport.fast.server import FastServer

    return Transport("fast", FastServer, FastUpstream)
