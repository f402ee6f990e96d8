"""Calls to engines that no client waits for: the ends of sessions that engines hold."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import orjson

from gateway.core.transport import UpstreamCut, UpstreamRefused
from gateway.engines.base import EngineAddress
from gateway.engines.client import EngineClient
from gateway.engines.monitor import Monitor
from policies.types import Release

MOST = 256
"""At once; a further release is left out, and the engine evicts by age."""


class BackgroundCalls:
    """Owns the calls under way."""

    def __init__(self, monitor: Monitor, asking: EngineClient) -> None:
        self._monitor, self._asking = monitor, asking
        self._under_way: set[asyncio.Task[None]] = set()

    def release(self, decision: Release) -> None:
        """Tell an engine that holds sessions that it need not keep this one."""
        engine = self._monitor.target(decision.replica_id).engine
        closing = engine.adapter.closing(decision.session_id, engine.abilities)
        if closing is None or len(self._under_way) >= MOST:
            return
        task = asyncio.get_running_loop().create_task(self._close(engine.address, *closing))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def stop(self) -> None:
        for task in self._under_way:
            task.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)

    async def _close(self, address: EngineAddress, path: str, body: dict[str, str]) -> None:
        with suppress(UpstreamRefused, UpstreamCut):  # an engine that is gone keeps nothing
            await self._asking.post(address, path, [], orjson.dumps(body))
