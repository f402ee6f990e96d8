"""Laws of the listener, against a publisher on real sockets that speaks as vLLM does."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from typing import Any

import pytest
import zmq
import zmq.asyncio

from gateway.engines import kv_events
from gateway.engines.base import Abilities, EngineAddress, KvEventSource, PolledPool, Report
from gateway.engines.kinds import adapter_of
from gateway.engines.monitor import KvEventHearing
from gateway.engines.poller import RunningEngine
from policies.types import CacheLost, Fact
from tests.deadline import DEADLINE_S
from tests.engines.kv_event_batches import batch, cleared, removed, stored
from tests.real.process import free_port

END = (-1).to_bytes(8, "big", signed=True)


class Publisher:
    """Binds both of its sockets, as vLLM does for `*`; answers one request for a replay at a time."""

    def __init__(self) -> None:
        self.context = zmq.asyncio.Context()
        self.pub, self.router = self.context.socket(zmq.XPUB), self.context.socket(zmq.ROUTER)
        self.url = f"tcp://127.0.0.1:{self.pub.bind_to_random_port('tcp://127.0.0.1')}"
        self.replay_url = f"tcp://127.0.0.1:{self.router.bind_to_random_port('tcp://127.0.0.1')}"
        self.sent: list[bytes] = []

    async def heard(self) -> None:
        """Return when a listener has subscribed."""
        async with asyncio.timeout(DEADLINE_S):
            assert await self.pub.recv() == b"\x01"

    async def left(self) -> None:
        """Return when it has left."""
        async with asyncio.timeout(DEADLINE_S):
            assert await self.pub.recv() == b"\x00"

    async def send(self, *events: Any, is_lost: bool = False) -> None:
        self.sent.append(batch(*events))
        if not is_lost:
            await self.pub.send_multipart([b"kv", (len(self.sent) - 1).to_bytes(8, "big"), self.sent[-1]])

    async def answer_replay(self, has_topic: bool) -> int:
        client, _, start = await self.router.recv_multipart()
        topic = [b"kv"] if has_topic else []  # SGLang has none
        for number in range(int.from_bytes(start, "big"), len(self.sent)):
            await self.router.send_multipart([client, b"", *topic, number.to_bytes(8, "big"), self.sent[number]])
        await self.router.send_multipart([client, b"", *topic, END, b""])
        return int.from_bytes(start, "big")


class Heard:
    """Facts and evictions as they arrive."""

    def __init__(self) -> None:
        self.facts: asyncio.Queue[Fact] = asyncio.Queue()
        self.evicted: list[tuple[str, int, float | None]] = []

    def evict(self, *eviction: Any) -> None:
        self.evicted.append(eviction)

    async def next(self) -> Fact:
        async with asyncio.timeout(DEADLINE_S):
            return await self.facts.get()


@asynccontextmanager
async def kv_events_heard(
    engines: Collection[RunningEngine],
    tell: Callable[[Fact], None],
    evicted: Callable[[str, int, float | None], None],
) -> AsyncIterator[Callable[[Collection[RunningEngine]], Awaitable[None]]]:
    """Hear the engines for the body of an `async with`."""
    hearing = KvEventHearing(tell, evicted)
    try:
        await hearing.follow(engines)
        yield hearing.follow
    finally:
        await hearing.stop()


@pytest.fixture
async def publisher() -> AsyncIterator[Publisher]:
    made = Publisher()
    yield made
    made.context.destroy(linger=0)


def engine(source: KvEventSource, *pools: str) -> RunningEngine:
    kind = adapter_of("vllm")
    address = EngineAddress("vllm", "http://gpu:8000", name="gpu", kv_events=(source,))
    report = Report(pools=tuple(PolledPool(name) for name in pools or ("",)))
    return RunningEngine(address, kind, kind.abilities(), report)


async def test_an_eviction_is_reported_with_what_the_session_has_left(publisher: Publisher) -> None:
    heard, running = Heard(), engine(KvEventSource(publisher.url))
    async with kv_events_heard([running], heard.facts.put_nowait, heard.evict):
        await publisher.heard()
        await publisher.send(stored(1, 2, 3, size=256, session_id="s"))
        assert await heard.next() == CacheLost("gpu", {"s": 768})
        await publisher.send(removed(3))
        assert await heard.next() == CacheLost("gpu", {"s": 512})
    assert heard.evicted == [("gpu", 1, 0.0)]
    assert running.kv_events.num_batches == 2


async def test_a_reset_is_reported(publisher: Publisher) -> None:
    heard = Heard()
    async with kv_events_heard([engine(KvEventSource(publisher.url))], heard.facts.put_nowait, heard.evict):
        await publisher.heard()
        await publisher.send(cleared())
        assert await heard.next() == CacheLost("gpu", None)


@pytest.mark.parametrize("has_topic", [True, False])
async def test_a_gap_is_filled_from_the_replay(publisher: Publisher, has_topic: bool) -> None:
    heard = Heard()
    source = KvEventSource(publisher.url, publisher.replay_url)
    async with kv_events_heard([engine(source)], heard.facts.put_nowait, heard.evict), asyncio.timeout(DEADLINE_S):
        await publisher.heard()
        assert await publisher.answer_replay(has_topic) == 0
        await publisher.send(stored(1, 2, size=256, session_id="s"), is_lost=True)
        await publisher.send(stored(3, size=256), is_lost=True)
        await publisher.send(removed(2))
        assert await publisher.answer_replay(has_topic) == 0
        assert await heard.next() == CacheLost("gpu", {"s": 512})
        assert await heard.next() == CacheLost("gpu", {"s": 256})
    assert heard.evicted == [("gpu", 1, 0.0)]


async def test_what_an_engine_evicted_before_it_was_heard_is_known_and_not_counted(publisher: Publisher) -> None:
    heard, running = Heard(), engine(KvEventSource(publisher.url, publisher.replay_url))
    publisher.sent = [
        batch(stored(1, 2, 3, size=256, session_id="s"), at=10.0),
        batch(removed(3), at=14.0),
        batch(cleared(), at=15.0),
        batch(stored(4, 5, size=256, session_id="s"), at=16.0),
    ]
    async with kv_events_heard([running], heard.facts.put_nowait, heard.evict), asyncio.timeout(DEADLINE_S):
        await publisher.heard()
        assert await publisher.answer_replay(has_topic=False) == 0
        await publisher.send(removed(5))
        assert await heard.next() == CacheLost("gpu", {"s": 256})
    assert heard.evicted[0][1:] == (0, 4.0)
    assert sum(number for _, number, _ in heard.evicted) == 1


async def test_at_a_gap_without_replay_the_index_is_forgotten(publisher: Publisher) -> None:
    heard = Heard()
    async with kv_events_heard([engine(KvEventSource(publisher.url))], heard.facts.put_nowait, heard.evict):
        await publisher.heard()
        await publisher.send(stored(1, 2, size=256, session_id="s"))
        assert await heard.next() == CacheLost("gpu", {"s": 512})
        await publisher.send(is_lost=True)
        await publisher.send(removed(2))
        await publisher.send(cleared())
        assert await heard.next() == CacheLost("gpu", None)


async def test_a_publisher_that_counts_from_the_beginning_has_lost_its_cache(publisher: Publisher) -> None:
    heard = Heard()
    async with kv_events_heard([engine(KvEventSource(publisher.url))], heard.facts.put_nowait, heard.evict):
        await publisher.heard()
        await publisher.send(stored(1))
        await publisher.send(stored(2))
        publisher.sent.clear()
        await publisher.send(stored(3))
        assert await heard.next() == CacheLost("gpu", None)


async def test_events_are_of_the_rank_that_they_name(publisher: Publisher) -> None:
    heard = Heard()
    async with kv_events_heard(
        [engine(KvEventSource(publisher.url), "0", "1")], heard.facts.put_nowait, heard.evict
    ):
        await publisher.heard()
        await publisher.send(cleared())
        assert await heard.next() == CacheLost("gpu/0", None)


async def test_a_message_that_cannot_be_read_is_shown_and_does_not_end_the_listening(publisher: Publisher) -> None:
    heard, running = Heard(), engine(KvEventSource(publisher.url))
    async with kv_events_heard([running], heard.facts.put_nowait, heard.evict):
        await publisher.heard()
        await publisher.pub.send_multipart([b"noise"])
        await publisher.send(cleared())
        assert await heard.next() == CacheLost("gpu", None)
    assert publisher.url in running.kv_events.problem


async def test_the_side_with_the_star_binds(publisher: Publisher) -> None:
    """An engine that is given a host connects; then the gateway has to be there."""
    heard, url = Heard(), f"tcp://127.0.0.1:{free_port()}"
    async with kv_events_heard([engine(KvEventSource(f"@{url}"))], heard.facts.put_nowait, heard.evict):
        publisher.pub.connect(url)
        await publisher.heard()
        await publisher.send(cleared())
        assert await heard.next() == CacheLost("gpu", None)


async def test_a_port_that_is_taken_is_said_and_costs_nothing_else(publisher: Publisher) -> None:
    running = engine(KvEventSource(f"@{publisher.url}"))
    async with kv_events_heard([running], lambda fact: None, lambda *eviction: None):
        assert "in use" in running.kv_events.problem


async def test_a_port_that_is_free_again_is_heard(publisher: Publisher, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_events, "OPEN_AGAIN_S", 0.01)
    heard, url = Heard(), f"tcp://127.0.0.1:{free_port()}"
    running = engine(KvEventSource(f"@{url}"))
    with zmq.Context() as other, other.socket(zmq.PUB) as holder:
        holder.bind(url)
        async with kv_events_heard([running], heard.facts.put_nowait, heard.evict):
            assert "in use" in running.kv_events.problem
            holder.close(linger=0)
            async with asyncio.timeout(DEADLINE_S):
                while running.kv_events.problem:
                    await asyncio.sleep(0.01)
            publisher.pub.connect(url)
            await publisher.heard()
            await publisher.send(cleared())
            assert await heard.next() == CacheLost("gpu", None)


def stating(base_url: str, *ports: tuple[int, int | None], configured: bool = True) -> RunningEngine:
    """An engine that says by itself where it publishes. Not `configured`: its entry says that it is not heard."""
    kind = adapter_of("vllm")
    address = EngineAddress("vllm", base_url, name="gpu", kv_events=None if configured else ())
    report = Report(pools=(PolledPool(""),))
    return RunningEngine(address, kind, Abilities(kv_event_ports=ports), report)


async def test_without_a_source_nothing_is_opened() -> None:
    for running in (stating("http://gpu:8000"), stating("http://gpu:8000", (5557, None), configured=False)):
        assert running.kv_event_sources == ()
        async with kv_events_heard([running], lambda fact: None, lambda *eviction: None):
            assert running.kv_events.num_batches == 0


def test_stated_ports_are_at_the_engine_s_own_host_and_not_followed_from_tls() -> None:
    assert stating("http://gpu:8000", (5557, 5558)).kv_event_sources == (
        KvEventSource("tcp://gpu:5557", "tcp://gpu:5558"),
    )
    assert stating("http://[::1]:8000", (5557, None)).kv_event_sources == (KvEventSource("tcp://[::1]:5557"),)
    assert stating("https://gpu", (5557, None)).kv_event_sources == ()


async def test_an_engine_that_comes_up_is_heard_where_it_says_and_once(publisher: Publisher) -> None:
    heard, running = Heard(), stating("http://127.0.0.1:8000")
    async with kv_events_heard([running], heard.facts.put_nowait, heard.evict) as follow:
        running.abilities.kv_event_ports = ((int(publisher.url.rpartition(":")[2]), None),)
        for _ in range(2):
            await follow([running])
        await publisher.heard()
        await publisher.send(cleared())
        assert await heard.next() == CacheLost("gpu", None)
        assert heard.facts.empty()


async def test_events_that_an_engine_offers_need_no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gateway.engines.kv_events", None)
    running = stating("http://gpu:8000", (5557, None))
    async with kv_events_heard([running], lambda fact: None, lambda *eviction: None):
        assert "pip install 'turngate[kvevents]'" in running.kv_events.problem


async def test_engines_that_come_are_heard_and_those_that_go_are_not(publisher: Publisher) -> None:
    heard = Heard()
    async with kv_events_heard([], heard.facts.put_nowait, heard.evict) as follow:
        for _ in range(2):
            await follow([engine(KvEventSource(publisher.url))])
            await publisher.heard()
            publisher.sent.clear()
            await publisher.send(cleared())
            assert await heard.next() == CacheLost("gpu", None)
            await follow([])
            await publisher.left()


async def test_an_engine_that_goes_leaves_its_port(publisher: Publisher) -> None:
    port = free_port()
    running = engine(KvEventSource(f"@tcp://127.0.0.1:{port}"))
    async with kv_events_heard([running], lambda fact: None, lambda *eviction: None) as follow:
        assert not is_free(port)
        await follow([])
        async with asyncio.timeout(DEADLINE_S):
            while not is_free(port):
                await asyncio.sleep(0)


def is_free(port: int) -> bool:
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            other.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
