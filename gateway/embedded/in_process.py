"""The embedded engine behind a port of its own, sized by the configuration."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import replace

from gateway.config.settings import Embedded
from gateway.embedded.model import EngineSpec
from gateway.embedded.server import EmbeddedEngine, EmbeddedSettings
from gateway.engines.base import EngineAddress
from gateway.transport.choice import transport_of

BLOCK_TOKENS = 16


class HostedEngine:
    """Start it, point an engine address of kind `embedded` at the port, stop it."""

    def __init__(self, section: Embedded) -> None:
        num_blocks = max(1, section.capacity_tokens // BLOCK_TOKENS)
        spec = EngineSpec(num_blocks, BLOCK_TOKENS, section.slots, priority_scheduling=True)
        self._engine = EmbeddedEngine(EmbeddedSettings(spec, section.model, speed=section.speed))
        self._server = transport_of().server(self._engine.handler)

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> int:
        """Serve; returns the port. Raises OSError."""
        await self._engine.start()
        return await self._server.start(host, port)

    async def stop(self) -> None:
        """Answers in flight are cut."""
        await self._server.stop(grace_s=0)
        await self._engine.stop()


async def hosted(address: EngineAddress, section: Embedded, running: AsyncExitStack) -> EngineAddress:
    """The address of an engine; an embedded one is started for it on a loopback port, and stopped by `running`."""
    if address.base_url:
        return address
    engine = HostedEngine(section)
    running.push_async_callback(engine.stop)
    return replace(address, base_url=f"http://127.0.0.1:{await engine.start()}")
