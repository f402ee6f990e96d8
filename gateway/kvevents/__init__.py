"""What engines themselves say of their KV cache: an optional listener in the place of inference.

Its packages are imported only when an engine is configured with `kv_events`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager

from gateway.config import ConfigError
from gateway.monitor import RunningEngine
from policies.types import Fact, ReplicaId


@asynccontextmanager
async def listening(
    engines: Collection[RunningEngine],
    tell: Callable[[Fact], None],
    evicted: Callable[[ReplicaId, int, float | None], None],
) -> AsyncIterator[None]:
    """Hear the engines that publish events for the body of an `async with`.

    `evicted`: (replica, blocks, horizon in seconds). Raises ConfigError when the packages are missing.
    """
    if not any(engine.address.kv_events for engine in engines):
        yield
        return
    try:
        from gateway.kvevents.listener import KvEventListener
    except ImportError as error:
        raise ConfigError(f"engines: kv_events: {error}: pip install 'turngate[kvevents]'") from None
    listener = KvEventListener(engines, tell, evicted)
    listener.start()
    try:
        yield
    finally:
        await listener.stop()
