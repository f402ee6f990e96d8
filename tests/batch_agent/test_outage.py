"""How calls wait for a gateway that does not answer: in virtual time, without a network."""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections import Counter
from dataclasses import dataclass, field

import pytest

from batch_agent.outage import LONGEST_PAUSE_S, LONGEST_RETURN_S, RETURNS_PER_S, Outage
from batch_agent.results import ConnectError, HTTPStatusError, OutageError
from tests.tool_runtime.virtual import virtual


def now() -> float:
    return asyncio.get_running_loop().time()


@dataclass
class Gateway:
    """Answers after a second, but in the times that it is down; a call that it has then is lost."""

    down: list[tuple[float, float]]
    sent_at: list[float] = field(default_factory=list)
    looked_at: list[float] = field(default_factory=list)
    reports: list[str] = field(default_factory=list)

    def outage(self, outage_s: float = 600.0) -> Outage:
        outage = Outage(
            outage_s, self.reports.append, wall_clock=lambda: 1_000_000_000.0 + now(), rng=random.Random(1)
        )
        outage.is_known = True
        return outage

    @property
    def is_down(self) -> bool:
        return any(since <= now() < until for since, until in self.down)

    async def ask(self) -> str:
        self.sent_at.append(now())
        for _ in range(10):
            if self.is_down:
                raise ConnectError("reset" if now() > self.sent_at[-1] else "refused")
            await asyncio.sleep(0.1)
        return "answer"

    async def look(self) -> str | None:
        self.looked_at.append(now())
        await asyncio.sleep(0.01)
        return "nothing answers" if self.is_down else None

    async def call(self, outage: Outage, at: float = 0.0) -> str:
        await asyncio.sleep(at)
        return await outage.through(self.ask, self.look)


@virtual
async def test_a_thousand_calls_wait_out_five_minutes_as_one() -> None:
    gateway = Gateway([(0.55, 300.0)])
    outage = gateway.outage()
    calls = [gateway.call(outage, at=number / 100) for number in range(1_000)]
    assert await asyncio.gather(*calls) == ["answer"] * 1_000
    meanwhile = [at for at in gateway.sent_at if 0.7 < at < 300.0]
    assert meanwhile == [], "nothing is sent but looks"
    assert len(gateway.looked_at) < 300.0 / LONGEST_PAUSE_S + 20
    back = Counter(int(at) for at in gateway.sent_at if at >= 300.0)
    assert max(back.values()) < 2 * RETURNS_PER_S, "they come back one after the other"
    assert now() < 300.0 + LONGEST_PAUSE_S + LONGEST_RETURN_S + 2


@virtual
async def test_a_person_reads_of_the_begin_and_the_end_of_an_outage_once() -> None:
    gateway = Gateway([(0.5, 100.0)])
    outage = gateway.outage()
    await asyncio.gather(*(gateway.call(outage) for _ in range(50)))
    first, last = gateway.reports
    begun, ends = (time.strftime("%H:%M:%S", time.localtime(1_000_000_000 + seconds)) for seconds in (0, 600))
    assert re.fullmatch(rf"nothing answers; waiting for it since \w+ {begun}, until \w+ {ends}", first)
    assert last.startswith("the gateway answers again, after 10")


@virtual
async def test_all_fail_when_the_time_is_over_and_later_ones_do_not_wait() -> None:
    gateway = Gateway([(0.5, 700.0)])
    outage = gateway.outage(outage_s=600.0)
    calls = [gateway.call(outage, at) for at in (0.0, 0.2, 100.0, 599.0)]
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [OutageError] * 4
    assert 600.5 <= now() < 601.0
    assert "did not answer for 600 s (outage_s). nothing answers" in str(outcomes[0])
    with pytest.raises(OutageError):
        await gateway.call(outage)
    assert now() < 602.0
    assert len(gateway.reports) == 2
    await asyncio.sleep(200.0)
    assert await gateway.call(outage) == "answer"
    assert gateway.reports[2:] == ["the gateway answers again, after 801 s"]


@virtual
async def test_a_gateway_that_never_answered_is_not_waited_for() -> None:
    gateway = Gateway([(0.0, 100.0)])
    outage = gateway.outage()
    outage.is_known = False
    with pytest.raises(ConnectError, match="refused"):
        await gateway.call(outage)
    assert (now(), gateway.looked_at) == (0.0, [])
    assert await gateway.call(outage, at=100.0) == "answer"
    assert outage.is_known


@virtual
async def test_without_a_time_to_wait_an_outage_is_a_failure_like_others() -> None:
    gateway = Gateway([(0.0, 100.0)])
    with pytest.raises(ConnectError, match="refused"):
        await gateway.call(gateway.outage(outage_s=0))
    assert now() == 0.0


@pytest.mark.parametrize(
    "error",
    [
        ConnectError("reset"),
        TimeoutError("too long"),
        *(HTTPStatusError(status, "no") for status in (502, 503, 504, 520)),
    ],
    ids=str,
)
@virtual
async def test_a_failure_while_the_gateway_answers_is_the_call_s_own(error: Exception) -> None:
    gateway = Gateway([])
    outage = gateway.outage()

    async def fail() -> str:
        raise error

    with pytest.raises(type(error)):
        await outage.through(fail, gateway.look)
    assert len(gateway.looked_at) == 1
    assert gateway.reports == []


@pytest.mark.parametrize(
    "error", [HTTPStatusError(503, "later", True, 1.0), HTTPStatusError(429, "full"), HTTPStatusError(400, "no")]
)
@virtual
async def test_who_gets_an_answer_does_not_look(error: Exception) -> None:
    gateway = Gateway([(0.0, 100.0)])

    async def fail() -> str:
        raise error

    with pytest.raises(HTTPStatusError):
        await gateway.outage().through(fail, gateway.look)
    assert gateway.looked_at == []


@virtual
async def test_when_the_one_that_looks_leaves_another_looks() -> None:
    gateway = Gateway([(0.5, 100.0)])
    outage = gateway.outage()
    calls = [asyncio.ensure_future(gateway.call(outage)) for _ in range(5)]
    for at, call in enumerate(calls[:4]):
        await asyncio.sleep(10.0)
        call.cancel()
        await asyncio.wait([call])
        assert call.cancelled()
        assert now() == 10.0 * (at + 1), "at once"
    assert await calls[4] == "answer"
    assert (outage.num_waiting, outage.is_waited_for) == (0, False)


@virtual
async def test_one_call_waits_no_longer_than_outage_s_however_often_the_gateway_comes_and_goes() -> None:
    """As where the call itself is what ends the gateway."""
    gateway = Gateway([(0.5 + 60 * number, 50.0 + 60 * number) for number in range(100)])
    outage = gateway.outage(outage_s=200.0)

    async def never() -> str:
        gateway.sent_at.append(now())
        while not gateway.is_down:
            await asyncio.sleep(0.1)
        raise ConnectError("reset")

    with pytest.raises(OutageError):
        await outage.through(never, gateway.look)
    assert len(gateway.sent_at) <= 5
    assert now() < 300.0


@virtual
async def test_an_answer_that_was_on_its_way_ends_no_outage() -> None:
    """What a socket still held is read after the process is gone."""
    gateway = Gateway([(0.5, 30.0)])
    outage = gateway.outage()

    async def on_its_way() -> str:
        await asyncio.sleep(3.0)
        return "early"

    lost = asyncio.ensure_future(gateway.call(outage))
    assert await outage.through(on_its_way, gateway.look) == "early"
    assert outage.is_waited_for
    assert await lost == "answer"
    assert len(gateway.reports) == 2


@virtual
async def test_an_outage_that_its_calls_have_left_is_forgotten_when_its_time_is_over() -> None:
    gateway = Gateway([(0.5, 900.0), (2000.5, 2300.0)])
    outage = gateway.outage()
    left = asyncio.ensure_future(gateway.call(outage))
    await asyncio.sleep(10.0)
    left.cancel()
    await asyncio.sleep(1000.0)
    assert await gateway.call(outage) == "answer"
    assert gateway.reports[-1].startswith("the gateway answers again")
    assert await gateway.call(outage, at=989.0) == "answer"
    assert now() > 2300.0
    gateway.down = [(now() + 0.5, now() + 100.0), (now() + 5000.5, now() + 5100.0)]
    left = asyncio.ensure_future(gateway.call(outage))
    await asyncio.sleep(10.0)
    left.cancel()
    assert await gateway.call(outage, at=4990.0) == "answer", "another one, after an hour of silence"
