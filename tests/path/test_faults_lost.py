"""Answers with tools that must run once: lost with a connection or a gateway, and asked for again."""

from __future__ import annotations

from typing import Any

import pytest

from tests.path.conftest import Clock, Gateway, Start
from tests.path.fake_engine import FakeEngine
from tests.path.faults import CLIENT, GATEWAY, counted, fault
from tests.path.toolkit import Bench, Says, says

ASK: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "write it"}]}
WRITES = Says("I write.", (("call_write_1", "write", '{"q": "a"}'),))
LAST = Says("It is written.", id="chatcmpl-2")
UNKNOWN = 'turngate_tool_failed_total{status="unknown"}'


@pytest.fixture
def bench() -> Bench:
    return Bench()


async def again(gateway: Gateway, engine: FakeEngine, bench: Bench, lost_ms: str) -> None:
    """The client asks again, and no call is started."""
    engine.plays = [says(WRITES), says(LAST)]
    asking = gateway.begin(ASK, X_Turngate_Lost_Ms=lost_ms)
    await gateway.until(lambda: asking.done() or len(bench.ran) > 1)
    assert [name for name, _ in bench.ran] == ["write"]
    assert (await asking).status == 200
    told = [message["content"] for message in engine.calls[-1].body["messages"] if message["role"] == "tool"]
    assert "The outcome of this call is unknown" in told[0]
    assert await counted(gateway, UNKNOWN) == 1


@fault(
    GATEWAY,
    "is killed while a tool runs that must run once, and started again",
    "not run again for a client that states its loss (`X-Turngate-Lost-Ms`)",
    UNKNOWN,
)
async def test_a_call_that_a_gateway_before_this_one_may_have_begun_is_not_begun_again(
    start: Start, engine: FakeEngine, bench: Bench
) -> None:
    engine.plays = [says(WRITES)]
    bench.holds.clear()
    first = await start(engine, tools=bench.settings())
    lost = first.begin(ASK)
    await bench.started.wait()
    await again(await start(engine, tools=bench.settings()), engine, bench, "60000")
    lost.cancel()


@fault(
    CLIENT,
    "is cut off by a proxy while a tool runs that must run once, and states it",
    "not run again, even before the first request is known to be gone",
    UNKNOWN,
)
async def test_a_call_of_an_answer_that_its_client_has_lost_is_not_begun_again(
    start: Start, engine: FakeEngine, bench: Bench, clock: Clock
) -> None:
    engine.plays = [says(WRITES)]
    bench.holds.clear()
    gateway = await start(engine, tools=bench.settings())
    clock.advance(100.0)
    lost = gateway.begin(ASK)
    await bench.started.wait()
    await again(gateway, engine, bench, "500")
    lost.cancel()
    bench.holds.set()
    await gateway.is_empty()
