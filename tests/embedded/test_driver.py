import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from gateway.embedded.driver import EngineDriver, EngineStopped
from gateway.embedded.model import EngineModel, EngineSpec, ModelRequest, Timing
from tests.tool_runtime.virtual import VirtualLoop, virtual

SPEC = EngineSpec(num_blocks=10_000)


LATE_S = 0.001


def late() -> float:
    """The virtual time, on a machine where each look at the clock takes a while."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    loop.now += LATE_S
    return loop.now


@asynccontextmanager
async def running() -> AsyncIterator[EngineDriver]:
    driver = EngineDriver(EngineModel(SPEC), 1.0, late)
    driver.start()
    yield driver
    await driver.stop()


@virtual
async def test_tokens_come_as_the_iterations_end() -> None:
    async with running() as driver:
        generation = driver.submit(ModelRequest("a", (), 10, 3))
        seen, num = [], 0
        while num < 3:
            num = await generation.more_than(num)
            seen.append(num)
        assert seen == [1, 2, 3]
        assert generation.finished.is_set()
        assert driver.model.num_running == 0


@virtual
async def test_sleep_errors_do_not_add_up() -> None:
    async with running() as driver:
        num_tokens = 30
        started_at = late()
        await driver.submit(ModelRequest("a", (), 10, num_tokens)).all()
        took_s = late() - started_at
    should_s = Timing().prefill_s(10) + Timing().decode_s(10, 1, num_tokens - 1)
    assert 0 < driver.lag_s <= took_s - should_s < 9 * LATE_S, "the errors of the first and last looks alone"


@virtual
async def test_the_wait_in_the_queue_is_no_less_than_none_while_the_engine_is_behind_its_schedule() -> None:
    async with running() as driver:
        first = driver.submit(ModelRequest("a", (), 10, 30))
        await first.more_than(1)
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        loop.now += 60
        second = driver.submit(ModelRequest("b", (), 10_000, 3))
        await second.all()
        assert second.queue_s >= 0


@virtual
async def test_an_abort_stops_the_work() -> None:
    async with running() as driver:
        generation = driver.submit(ModelRequest("a", (), 10, 10_000))
        await generation.more_than(2)
        driver.abort("a")
        driver.abort("a")
        assert (driver.model.num_running, driver.model.pool.num_used) == (0, 0)


@virtual
async def test_stopping_tells_those_who_wait() -> None:
    driver = EngineDriver(EngineModel(SPEC), 1.0, late)
    driver.start()
    generation = driver.submit(ModelRequest("a", (), 10, 10_000))
    waiting = asyncio.gather(generation.all(), generation.more_than(9_999), return_exceptions=True)
    await generation.more_than(1)
    await driver.stop()
    assert [type(result) for result in await waiting] == [EngineStopped, EngineStopped]
    assert driver.model.num_running == 0
    with pytest.raises(EngineStopped):
        driver.submit(ModelRequest("b", (), 1, 1))


@virtual
async def test_a_failure_of_the_model_is_told_and_ends_every_request() -> None:
    class Broken(EngineModel):
        def step(self, horizon_s: float = 0.0) -> None:
            if self.num_waiting:
                raise ZeroDivisionError

    broken = EngineDriver(Broken(SPEC), 1.0, late)
    broken.start()
    with pytest.raises(EngineStopped):
        await broken.submit(ModelRequest("a", (), 10, 10)).all()
    assert not broken.is_running
    with pytest.raises(ZeroDivisionError):
        await broken.stop()
