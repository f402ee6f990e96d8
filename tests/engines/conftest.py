"""A monitor and the engines that it watches."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping

import pytest

from gateway.transport import transport_of
from tests.engines.recorded import pages
from tests.engines.watched_engine import FakeEngine, NewEngine, Watched
from tests.transport.loops import AIOHTTP, FAST, LoopFactory, carrier


def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> Mapping[str, LoopFactory]:
    """An engine is watched over both transports."""
    return AIOHTTP | (FAST if item.path.stem in ("test_monitor", "test_monitor_faults") else {})


@pytest.fixture
async def watched() -> AsyncIterator[Watched]:
    watched = Watched(transport_of("aiohttp" if carrier() == "aiohttp" else "fast").upstream())
    yield watched
    if watched.monitor is not None:
        await watched.monitor.stop()
    await watched.upstream.close()


@pytest.fixture
async def new_engine() -> AsyncIterator[NewEngine]:
    engines = []

    def make(release: str) -> FakeEngine:
        engines.append(FakeEngine(pages(release)))
        return engines[-1]

    yield make
    for engine in engines:
        await engine.stop()
