"""An answer that is lost after tools have run, and the client that asks again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.path.conftest import Start
from tests.path.fake_engine import FakeEngine, chunk, cuts_after
from tests.path.toolkit import Bench, Says, says

ASK: dict[str, Any] = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "write it"}]}
WRITES = Says("I write.", (("call_write_1", "write", '{"q": "a"}'),), id="chatcmpl-1")
LAST = Says("It is written.", id="chatcmpl-2")


@pytest.fixture
def bench() -> Bench:
    return Bench()


def results(engine: FakeEngine) -> list[str]:
    """What the engine was last told of calls."""
    return [message["content"] for message in engine.calls[-1].body["messages"] if message["role"] == "tool"]


async def test_a_call_that_had_ended_is_not_run_again_and_its_result_is_told(
    start: Start, engine: FakeEngine, bench: Bench
) -> None:
    engine.plays = [says(WRITES), cuts_after(chunk(content="It is")), says(WRITES), says(LAST)]
    gateway = await start(engine, tools=bench.settings())
    assert (await gateway.ask(ASK)).is_cut
    assert (await gateway.ask(ASK)).status == 200
    assert [name for name, _ in bench.ran] == ["write"]
    assert results(engine) == ["write found a"]
    await gateway.is_empty()


async def test_a_call_that_its_client_left_is_told_as_unknown(
    start: Start, engine: FakeEngine, bench: Bench
) -> None:
    engine.plays = [says(WRITES), says(WRITES), says(LAST)]
    gateway = await start(engine, tools=bench.settings())
    bench.holds.clear()
    leaving = asyncio.create_task(gateway.ask(ASK))
    await bench.started.wait()
    leaving.cancel()
    await gateway.until(lambda: bench.num_running == 0)
    bench.holds.set()
    assert (await gateway.ask(ASK)).status == 200
    assert [name for name, _ in bench.ran] == ["write"]
    assert "was not run again" in results(engine)[0]


async def test_an_answer_that_arrived_may_be_asked_for_once_more(
    start: Start, engine: FakeEngine, bench: Bench
) -> None:
    engine.plays = [says(WRITES), says(LAST), says(WRITES), says(LAST)]
    gateway = await start(engine, tools=bench.settings())
    for _ in range(2):
        await gateway.ask(ASK)
    assert [name for name, _ in bench.ran] == ["write", "write"]
