import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from gateway.embedded.driver import EngineDriver, EngineStopped
from gateway.embedded.model import EngineModel, EngineSpec, ModelRequest
from gateway.embedded.timing import Timing

SPEC = EngineSpec(num_blocks=10_000)


@pytest.fixture
async def driver() -> AsyncIterator[EngineDriver]:
    driver = EngineDriver(EngineModel(SPEC), 1.0, time.monotonic)
    driver.start()
    yield driver
    await driver.stop()


async def test_tokens_come_as_the_iterations_end(driver: EngineDriver) -> None:
    generation = driver.submit(ModelRequest("a", (), 10, 3))
    seen, num = [], 0
    while num < 3:
        num = await generation.more_than(num)
        seen.append(num)
    assert seen == [1, 2, 3]
    assert generation.finished.is_set()
    assert driver.model.num_running == 0


async def test_sleep_errors_do_not_add_up(driver: EngineDriver) -> None:
    num_tokens = 30
    started_at = time.monotonic()
    await driver.submit(ModelRequest("a", (), 10, num_tokens)).all()
    took_s = time.monotonic() - started_at
    should_s = Timing().prefill_s(10) + Timing().decode_s(10, 1, num_tokens - 1)
    assert took_s >= should_s - 0.001
    assert took_s - should_s == pytest.approx(driver.lag_s, abs=0.1)  # the last wake-up's error alone


async def test_an_abort_stops_the_work(driver: EngineDriver) -> None:
    generation = driver.submit(ModelRequest("a", (), 10, 10_000))
    await generation.more_than(2)
    driver.abort("a")
    driver.abort("a")
    assert (driver.model.num_running, driver.model.pool.num_used) == (0, 0)


async def test_stopping_tells_those_who_wait() -> None:
    driver = EngineDriver(EngineModel(SPEC), 1.0, time.monotonic)
    driver.start()
    generation = driver.submit(ModelRequest("a", (), 10, 10_000))
    waiting = asyncio.gather(generation.all(), generation.more_than(9_999), return_exceptions=True)
    await generation.more_than(1)
    await driver.stop()
    assert [type(result) for result in await waiting] == [EngineStopped, EngineStopped]
    assert driver.model.num_running == 0
    with pytest.raises(EngineStopped):
        driver.submit(ModelRequest("b", (), 1, 1))


async def test_a_failure_of_the_model_is_told_and_ends_every_request() -> None:
    class Broken(EngineModel):
        def step(self, horizon_s: float = 0.0) -> None:
            if self.num_waiting:
                raise ZeroDivisionError

    broken = EngineDriver(Broken(SPEC), 1.0, time.monotonic)
    broken.start()
    with pytest.raises(EngineStopped):
        await broken.submit(ModelRequest("a", (), 10, 10)).all()
    assert not broken.is_running
    with pytest.raises(ZeroDivisionError):
        await broken.stop()
