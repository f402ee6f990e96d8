"""Attempts at one answer over a real Valkey: which calls the next attempt starts, and which outcomes it gets."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest

from gateway.cluster import tool_results
from gateway.cluster.membership import connected
from gateway.cluster.tool_results import RedisResults
from tests.deadline import DEADLINE_S
from tests.valkey import valkey as valkey
from tests.valkey import valkey_server as valkey_server
from tool_runtime.attempts import Attempt
from tool_runtime.runtime import ToolRuntime
from tool_runtime.types import Call, Context, Result, Status, Tool

ANSWER = b"the one that is asked for"


class Gateway:
    """One process, with a tool that must run once. It hangs while `may_end` is not set."""

    def __init__(self, url: str) -> None:
        self.num_runs = 0
        self.may_end = asyncio.Event()
        self.may_end.set()
        self.shared = RedisResults(connected(url), "turngate:test")
        order = Tool(name="order", description="", parameters={"type": "object"}, run=self._order)
        self.runtime = ToolRuntime([order], clock=time.monotonic, shared=self.shared)

    async def _order(self, arguments: Any, context: Context) -> str:
        self.num_runs += 1
        await self.may_end.wait()
        return f"order {self.num_runs}"

    def attempt(self, answer: bytes = ANSWER) -> Attempt:
        return self.runtime.attempt(answer)

    async def run(self, attempt: Attempt, arguments: str = "{}", tenant: str = "a") -> Result:
        return await self.runtime.run(Call("c1", "order", arguments), Context(tenant, "s"), attempt=attempt)

    async def interrupted(self, attempt: Attempt) -> None:
        """A call whose client leaves while it runs."""
        self.may_end.clear()
        call = asyncio.create_task(self.run(attempt))
        async with asyncio.timeout(DEADLINE_S):
            while not self.num_runs:
                await asyncio.sleep(0.01)
        call.cancel()
        await asyncio.wait([call])
        self.may_end.set()

    async def close(self) -> None:
        await self.runtime.close()
        await self.shared.close()


@pytest.fixture
async def gateways(valkey: str) -> AsyncIterator[list[Gateway]]:
    both = [Gateway(valkey) for _ in range(2)]
    yield both
    for one in both:
        await one.close()


@pytest.mark.parametrize("number", [0, 1], ids=["the same gateway", "another gateway"])
async def test_a_call_that_was_interrupted_is_told_as_unknown_and_not_started_again(
    gateways: list[Gateway], number: int
) -> None:
    first, next_ = gateways[0], gateways[number]
    lost = first.attempt()
    await first.interrupted(lost)
    lost.ended(is_whole=False)
    await settled(first)
    result = await next_.run(next_.attempt())
    assert (result.status, sum(one.num_runs for one in gateways)) == (Status.UNKNOWN, 1)
    assert "was not run again" in result.text


async def test_what_a_lost_attempt_came_to_know_is_told_to_the_next(gateways: list[Gateway]) -> None:
    first, second = gateways
    lost = first.attempt()
    assert [(await first.run(lost)).text for _ in range(2)] == ["order 1", "order 2"]
    lost.ended(is_whole=False)
    await settled(first)
    again = second.attempt()
    assert [(await second.run(again)).text for _ in range(2)] == ["order 1", "order 2"]
    assert (await second.run(again)).text == "order 1", (
        "a third one was never started: this is the second gateway's"
    )
    assert second.num_runs == 1


async def test_an_answer_that_arrived_leaves_nothing_behind(gateways: list[Gateway]) -> None:
    first, second = gateways
    whole = first.attempt()
    await first.run(whole)
    whole.ended(is_whole=True)
    await settled(first)
    await second.run(second.attempt())
    assert (first.num_runs, second.num_runs) == (1, 1)


async def test_other_requests_arguments_and_tenants_are_other_calls(gateways: list[Gateway]) -> None:
    first, second = gateways
    lost = first.attempt()
    await first.run(lost)
    lost.ended(is_whole=False)
    await settled(first)
    await second.run(second.attempt(b"another"))
    await second.run(second.attempt(), arguments='{"n": 1}')
    await second.run(second.attempt(), tenant="b")
    assert second.num_runs == 3


async def test_equal_requests_that_all_live_each_run_their_own(
    gateways: list[Gateway], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tool_results, "BEAT_S", 0.1)
    first, second = gateways
    for gateway in (first, first, second):
        await gateway.run(gateway.attempt())
    assert (first.num_runs, second.num_runs) == (2, 1)


async def test_what_a_process_that_died_had_started_is_not_started_again(
    gateways: list[Gateway], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tool_results, "ALIVE_MS", 300)
    monkeypatch.setattr(tool_results, "BEAT_S", 60.0)  # it is not heard again, as one that was killed
    first, second = gateways
    await first.run(first.attempt())
    assert (await second.run(second.attempt())).text == "order 1"
    assert second.num_runs == 0


class Way:
    """To a Valkey; it can be cut."""

    def __init__(self, url: str) -> None:
        self._port = int(url.rpartition(":")[2].partition("/")[0])
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._links: set[asyncio.Task[None]] = set()
        self.port = 0

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._link, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def cut(self) -> None:
        assert self._server is not None
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        await asyncio.gather(*self._links)

    async def _link(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._writers |= {writer, far_writer}
        for one, other in ((reader, far_writer), (far_reader, writer)):
            self._links.add(asyncio.create_task(self._pump(one, other)))

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(65536):
                writer.write(data)
        writer.close()


@pytest.fixture
async def way(valkey: str) -> AsyncIterator[Way]:
    way = Way(valkey)
    await way.open()
    yield way
    await way.cut()


@pytest.fixture
async def far(way: Way) -> AsyncIterator[list[Gateway]]:
    """Gateways that meet at the end of the way."""
    both = [Gateway(f"redis://127.0.0.1:{way.port}/0") for _ in range(2)]
    yield both
    for one in both:
        await one.close()


async def test_while_valkey_is_gone_calls_run_but_not_those_that_an_attempt_of_this_gateway_lost(
    way: Way, far: list[Gateway]
) -> None:
    one = far[0]
    before = one.attempt()
    await one.run(before)
    await way.cut()
    before.ended(is_whole=False)
    other = one.attempt(b"another")
    assert (await one.run(other)).text == "order 2"
    other.ended(is_whole=False)
    assert (await one.run(one.attempt())).text == "order 1"
    assert (await one.run(one.attempt(b"another"))).text == "order 2"
    assert one.num_runs == 2
    await way.open()


async def test_while_valkey_is_gone_a_client_that_says_that_it_asks_again_starts_nothing(
    way: Way, far: list[Gateway]
) -> None:
    first, second = far
    await first.run(first.attempt())
    await way.cut()
    result = await second.run(second.runtime.attempt(ANSWER, is_retry=True))
    assert (result.status, second.num_runs) == (Status.UNKNOWN, 0)
    assert "was not run again" in result.text
    await second.run(second.attempt())
    assert second.num_runs == 1
    await way.open()


async def test_what_was_lost_while_valkey_was_gone_is_told_once_it_is_back(
    way: Way, far: list[Gateway], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tool_results, "BEAT_S", 0.05)
    first, second = far
    lost = first.attempt()
    await first.run(lost)
    await way.cut()
    lost.ended(is_whole=False)
    await settled(first)
    await way.open()
    async with asyncio.timeout(DEADLINE_S):
        while first.shared._attempts._left:
            await asyncio.sleep(0.01)
    assert (await second.run(second.attempt())).text == "order 1"
    assert second.num_runs == 0


async def test_what_was_started_while_valkey_was_gone_is_known_here_when_it_is_back(
    way: Way, far: list[Gateway]
) -> None:
    one = far[0]
    await way.cut()
    lost = one.attempt()
    await one.run(lost)
    lost.ended(is_whole=False)
    await way.open()
    assert (await one.run(one.attempt())).text == "order 1"
    assert one.num_runs == 1


async def settled(gateway: Gateway) -> None:
    """Return once all outcomes of a gateway are published: a call of another answer waits for that."""
    await gateway.run(gateway.attempt(b"no matter"), arguments='{"n": 9}')
    gateway.num_runs -= 1
