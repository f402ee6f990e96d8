"""Which transport carries the gateway: `fast` where its libraries are installed, else `aiohttp`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Literal, TypeAlias

from gateway.core.errors import ConfigError
from gateway.core.transport import Handler, Server, Upstream

Name: TypeAlias = Literal["auto", "aiohttp", "fast"]


@dataclass(frozen=True, slots=True)
class Transport:
    """Both edges over one library."""

    name: str
    server: Callable[[Handler], Server]
    upstream: Callable[[], Upstream]
    """Called inside a running event loop."""


def transport_of(name: Name = "auto") -> Transport:
    """The transport of a setting. Only the chosen one's library is imported. Raises ConfigError."""
    is_installed = find_spec("httptools") is not None
    if name == "aiohttp" or (name == "auto" and not is_installed):
        from gateway.transport.aiohttp_server import AiohttpServer
        from gateway.transport.aiohttp_upstream import AiohttpUpstream

        return Transport("aiohttp", AiohttpServer, AiohttpUpstream)
    if not is_installed:
        raise ConfigError("transport: fast needs httptools: pip install 'turngate[fast]'")
    from gateway.transport.fast.client import FastUpstream
    from gateway.transport.fast.server import FastServer

    return Transport("fast", FastServer, FastUpstream)
