"""Laws of comparing clocks."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
from aiohttp import web

from gateway.cli.machine import skew_s
from gateway.engines import named
from gateway.engines.base import Abilities, EngineAddress, Report
from gateway.engines.monitor import RunningEngine
from gateway.transport.aiohttp_upstream import AiohttpUpstream

NOW = 1_763_725_000.0
DATE = "Fri, 21 Nov 2025 11:36:40 GMT"
"""The same moment."""


@dataclass
class Dated:
    """Something that answers with a Date of the test's choice."""

    date: str | None = DATE
    port: int = 0

    async def answer(self, request: web.BaseRequest) -> web.Response:
        return web.Response(headers={"Date": self.date} if self.date is not None else {"Date": ""})


@pytest.fixture
async def dated() -> AsyncIterator[Dated]:
    told = Dated()
    runner = web.ServerRunner(web.Server(told.answer))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    told.port = runner.addresses[0][1]
    yield told
    await runner.cleanup()


async def skew_of(port: int, now: float) -> float | None:
    upstream, address = AiohttpUpstream(), EngineAddress("vllm", f"http://127.0.0.1:{port}")
    engine = RunningEngine(address, named("vllm"), Abilities(), Report(), is_up=True, problem="")
    try:
        return await skew_s(upstream, engine, 5.0, lambda: now)
    finally:
        await upstream.close()


@pytest.mark.parametrize(("ours", "skew"), [(NOW, 0.0), (NOW + 0.9, 0.0), (NOW - 30.0, 30.0), (NOW + 31.0, -30.0)])
async def test_the_skew_is_the_least_that_fits_a_date_of_whole_seconds(
    dated: Dated, ours: float, skew: float
) -> None:
    assert await skew_of(dated.port, ours) == skew


@pytest.mark.parametrize("date", ["", "yesterday"])
async def test_an_engine_that_does_not_tell_the_time_has_no_skew(dated: Dated, date: str) -> None:
    dated.date = date
    assert await skew_of(dated.port, NOW) is None


async def test_an_engine_that_does_not_answer_has_none() -> None:
    assert await skew_of(1, NOW) is None
