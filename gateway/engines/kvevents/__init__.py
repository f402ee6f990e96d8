"""What engines themselves say of their KV cache: an optional listener in the place of inference.

Its packages are imported only when an engine is configured with `kv_events`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeAlias

from gateway.core.errors import ConfigError
from gateway.engines.monitor import RunningEngine
from policies.types import Fact, ReplicaId

if TYPE_CHECKING:
    from gateway.engines.kvevents.listener import KvEventListener

Follow: TypeAlias = Callable[[Collection[RunningEngine]], Awaitable[None]]
"""Hears these engines from now on, and no others. Raises ConfigError when the packages are missing."""


@asynccontextmanager
async def listening(
    engines: Collection[RunningEngine],
    tell: Callable[[Fact], None],
    evicted: Callable[[ReplicaId, int, float | None], None],
) -> AsyncIterator[Follow]:
    """Hear the engines that publish events for the body of an `async with`.

    `evicted`: (replica, blocks, horizon in seconds). Raises ConfigError when the packages are missing.
    """
    listener: KvEventListener | None = None

    async def follow(engines: Collection[RunningEngine]) -> None:
        nonlocal listener
        if listener is None and any(engine.address.kv_events for engine in engines):
            try:
                from gateway.engines.kvevents.listener import KvEventListener
            except ImportError as error:
                raise ConfigError(f"engines: kv_events: {error}: pip install 'turngate[kvevents]'") from None
            listener = KvEventListener(tell, evicted)
        if listener is not None:
            await listener.follow(engines)

    try:
        await follow(engines)
        yield follow
    finally:
        if listener is not None:
            await listener.stop()
