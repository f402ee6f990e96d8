"""A monitor and the engines that it watches."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from gateway.transports.aiohttp_upstream import AiohttpUpstream
from tests.engines.recorded import pages
from tests.gateway.fake_engine import FakeEngine, NewEngine, Watched


@pytest.fixture
async def watched() -> AsyncIterator[Watched]:
    watched = Watched(AiohttpUpstream())
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
