"""Calls to engines that no client waits for: warm-ups, and sessions that an engine need not keep any longer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import orjson

from gateway.core.transport import UpstreamCut, UpstreamRefused
from gateway.engines.client import Asking
from gateway.engines.monitor import Monitor
from gateway.request.warmup import WarmUps
from policies.types import Decision, Fact, Release, WarmedUp, WarmUp

MOST = 256
"""At once; a release beyond is left out, as the engine then evicts by age."""


class Errands:
    """Owns the calls under way."""

    def __init__(self, warm_ups: WarmUps, monitor: Monitor, asking: Asking, tell: Callable[[Fact], None]) -> None:
        self._warm_ups, self._monitor, self._asking, self._tell = warm_ups, monitor, asking, tell
        self._under_way: set[asyncio.Task[None]] = set()

    def begin(self, decision: Decision) -> None:
        """Carry out a decision that is about no turn."""
        if isinstance(decision, WarmUp):
            self._own(self._warm_up(decision))
        elif isinstance(decision, Release) and len(self._under_way) < MOST:
            engine = self._monitor.target(decision.replica_id).engine
            closing = engine.engine.closing(decision.session_id, engine.abilities)
            if closing is not None:
                self._own(self._close(decision, *closing))

    async def stop(self) -> None:
        for task in self._under_way:
            task.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)

    def _own(self, errand: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(errand)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def _warm_up(self, warm_up: WarmUp) -> None:
        is_done = False
        try:
            is_done = await self._warm_ups.ask(warm_up.session_id)
        finally:
            self._tell(WarmedUp(warm_up.session_id, is_done))

    async def _close(self, release: Release, path: str, body: dict[str, str]) -> None:
        address = self._monitor.target(release.replica_id).engine.address
        with suppress(UpstreamRefused, UpstreamCut):  # an engine that is gone keeps nothing
            await self._asking.post(address, path, [], orjson.dumps(body))
