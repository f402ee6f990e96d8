"""Engines that fall silent; the tests move the time instead of waiting."""

from __future__ import annotations

import pytest

from tests.path.conftest import Start, rest_of
from tests.path.fake_engine import FakeEngine, chunk, stalls_after
from tests.path.faults import ENGINE, counted, fault, faults
from tests.path.test_faults import ASK, STREAM

SILENT_S = 300
RULES = {"first_byte_s": SILENT_S, "idle_s": SILENT_S, "shutdown_grace_s": 0}


@fault(
    ENGINE, "half-open: takes a call and stays silent", "after `first_byte_s` another replica", faults("silent")
)
@pytest.mark.parametrize("body", [ASK, STREAM], ids=["plain", "stream"])
async def test_an_engine_that_never_answers_is_replaced_after_the_first_byte_time(
    start: Start, body: dict[str, object]
) -> None:
    first, second = FakeEngine(), FakeEngine()
    first.plays = second.plays = [stalls_after()]
    gateway = await start(first, second, timeouts=RULES)
    client = gateway.begin(body)
    await gateway.until(lambda: len(first.calls + second.calls) == 1)
    gateway.clock.advance(SILENT_S + 1)
    answer = await client
    assert (answer.status, b"hello" in answer.body) == (200, True)
    assert len(first.calls + second.calls) == 2
    assert await counted(gateway, faults("silent")) == 1
    await gateway.is_empty()


@fault(ENGINE, "stalls during its answer", "after `idle_s` the client's stream is reset", faults("silent"))
async def test_an_engine_that_stalls_in_its_answer_is_given_up_and_counted(
    start: Start, engine: FakeEngine
) -> None:
    engine.plays = [stalls_after(chunk(content="half"))]
    gateway = await start(engine, timeouts=RULES)
    async with gateway.post(STREAM) as response:
        assert await response.content.readany() == chunk(content="half")
        await gateway.clock.passes(SILENT_S + 1)
        assert (await rest_of(response)).is_cut
    assert await counted(gateway, faults("silent")) == 1
    await gateway.is_empty()
