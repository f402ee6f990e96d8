"""Laws of watching engines, over real connections to small servers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from gateway.engines.base import EngineAddress
from gateway.monitor import Monitor
from gateway.transports.aiohttp_upstream import AiohttpUpstream
from policies.types import Fact, ReplicaLost, ReplicaReported
from tests.engines.recorded import pages, text

TIMEOUT_S = 5.0


class FakeEngine:
    """Serves pages and answers chats; a test changes what it serves while it runs."""

    def __init__(self, served: dict[str, str]) -> None:
        self.pages = served
        self.gets: list[str] = []
        self.posts: list[tuple[str, dict[str, str], Any]] = []
        self.cached_tokens: list[int | None] = [0, 96]
        self.refuse: Callable[[Any, Any], tuple[int, str] | None] = lambda headers, body: None
        self.server = self._new_server()

    def _new_server(self, port: int | None = None) -> TestServer:
        app = web.Application()
        app.router.add_get("/{path:.*}", self._get)
        app.router.add_post("/{path:.*}", self._post)
        return TestServer(app, port=port)

    async def _get(self, request: web.Request) -> web.Response:
        self.gets.append(request.path)
        if request.path not in self.pages:
            raise web.HTTPNotFound
        return web.Response(text=self.pages[request.path])

    async def _post(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.posts.append((request.path, dict(request.headers), body))
        if request.path == "/tokenize":
            return web.Response(text=text("vllm-0.32", "tokenize.json"))
        if refusal := self.refuse(request.headers, body):
            return web.json_response({"error": {"message": refusal[1]}}, status=refusal[0])
        cached = self.cached_tokens[min(len(self.chats), len(self.cached_tokens)) - 1]
        usage = {"prompt_tokens": 99, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": cached}}
        return web.json_response({"choices": [], "usage": usage})

    @property
    def chats(self) -> list[tuple[str, dict[str, str], Any]]:
        return [post for post in self.posts if post[0] == "/v1/chat/completions"]

    async def restart(self) -> None:
        port = self.server.port
        await self.server.close()
        self.server = self._new_server(port)
        await self.server.start_server()


class Ticks:
    """A `sleep` that ends when the test says so."""

    def __init__(self) -> None:
        self.delays_s: list[float] = []
        self._asleep = asyncio.Semaphore(0)
        self._wake = asyncio.Semaphore(0)

    async def sleep(self, delay_s: float) -> None:
        self.delays_s.append(delay_s)
        self._asleep.release()
        await self._wake.acquire()

    async def next_poll(self) -> None:
        """One sleep ends; returns when its poll is over."""
        async with asyncio.timeout(TIMEOUT_S):
            await self._asleep.acquire()
            self._wake.release()
            await self._asleep.acquire()
        self._asleep.release()


class Watched:
    """A monitor with what it told."""

    def __init__(self, upstream: AiohttpUpstream) -> None:
        self.upstream = upstream
        self.facts: list[Fact] = []
        self.ticks = Ticks()
        self.monitor: Monitor | None = None

    async def start(
        self, *engines: FakeEngine | EngineAddress, kind: str = "vllm", probes: bool = False
    ) -> Monitor:
        addresses = []
        for number, engine in enumerate(engines):
            if isinstance(engine, FakeEngine):
                await engine.server.start_server()
                addresses.append(EngineAddress(kind, f"http://127.0.0.1:{engine.server.port}", name=f"e{number}"))
            else:
                addresses.append(engine)
        self.monitor = Monitor(
            addresses, self.upstream, self.facts.append, lambda: 7.0, probes_hints=probes, sleep=self.ticks.sleep
        )
        async with asyncio.timeout(TIMEOUT_S):
            await self.monitor.start()
        return self.monitor

    def told(self) -> list[Fact]:
        facts = self.facts[:]
        self.facts.clear()
        return facts


@pytest.fixture
async def watched() -> AsyncIterator[Watched]:
    watched = Watched(AiohttpUpstream())
    yield watched
    if watched.monitor is not None:
        await watched.monitor.stop()
    await watched.upstream.close()


NewEngine = Callable[[str], FakeEngine]


@pytest.fixture
async def new_engine() -> AsyncIterator[NewEngine]:
    engines = []

    def make(release: str) -> FakeEngine:
        engines.append(FakeEngine(pages(release)))
        return engines[-1]

    yield make
    for engine in engines:
        await engine.server.close()


async def test_after_start_every_engine_that_answers_is_told(watched: Watched, new_engine: NewEngine) -> None:
    monitor = await watched.start(new_engine("vllm-0.32"), new_engine("vllm-0.32-plain"))
    assert {fact.replica_id: fact for fact in watched.told() if isinstance(fact, ReplicaReported)} == {
        "e0": ReplicaReported("e0", frozenset({"tiny"}), 64000, None, 0),
        "e1": ReplicaReported("e1", frozenset({"plain"}), 9600, None, 0),
    }
    assert [engine.is_up for engine in monitor.engines] == [True, True]
    assert monitor.engines[0].abilities.version == "0.32.0"


async def test_an_engine_that_is_not_up_is_waited_for(watched: Watched, new_engine: NewEngine) -> None:
    engine = new_engine("vllm-0.32")
    await engine.server.start_server()
    port = engine.server.port
    await engine.server.close()
    monitor = await watched.start(EngineAddress("vllm", f"http://127.0.0.1:{port}", name="late"))
    (late,) = monitor.engines
    assert not late.is_up
    assert "does not accept connections" in late.problem
    await watched.ticks.next_poll()
    assert watched.told() == []
    await engine.restart()
    await watched.ticks.next_poll()
    assert [fact.replica_id for fact in watched.told() if isinstance(fact, ReplicaReported)] == ["late"]
    assert late.is_up
    assert late.problem == ""


async def test_an_engine_without_a_model_is_not_ready(watched: Watched, new_engine: NewEngine) -> None:
    engine = new_engine("dynamo-1.6-one")
    models = engine.pages["/v1/models"]
    engine.pages["/v1/models"] = '{"data":[]}'
    monitor = await watched.start(engine, kind="dynamo")
    assert monitor.engines[0].problem == "/v1/models lists no model yet"
    engine.pages["/v1/models"] = models
    await watched.ticks.next_poll()
    assert monitor.engines[0].is_up


async def test_a_failed_connection_takes_it_out_at_once_and_a_poll_brings_it_back(
    watched: Watched, new_engine: NewEngine
) -> None:
    monitor = await watched.start(new_engine("vllm-0.32"))
    (engine,) = monitor.engines
    watched.told()
    monitor.failed(engine)
    monitor.failed(engine)
    assert watched.told() == [ReplicaLost("e0")]
    await watched.ticks.next_poll()
    assert [type(fact) for fact in watched.told()] == [ReplicaReported]


async def test_one_failed_poll_is_a_hiccup_and_two_are_a_dead_engine(
    watched: Watched, new_engine: NewEngine
) -> None:
    engine = new_engine("vllm-0.32")
    await watched.start(engine)
    watched.told()
    del engine.pages["/v1/models"]
    await watched.ticks.next_poll()
    assert watched.told() == []
    await watched.ticks.next_poll()
    assert watched.told() == [ReplicaLost("e0")]


async def test_a_dead_engine_is_asked_ever_more_rarely_up_to_a_bound(
    watched: Watched, new_engine: NewEngine
) -> None:
    engine = new_engine("vllm-0.32")
    await watched.start(engine)
    await engine.server.close()
    for _ in range(5):
        await watched.ticks.next_poll()
    assert watched.ticks.delays_s == [1, 2, 4, 5, 5, 5]


async def test_the_workers_behind_a_frontend_are_replicas(watched: Watched, new_engine: NewEngine) -> None:
    monitor = await watched.start(new_engine("dynamo-1.6-four"), kind="dynamo")
    told = [fact for fact in watched.told() if isinstance(fact, ReplicaReported)]
    assert len({fact.replica_id for fact in told}) == 4
    assert {(fact.capacity_tokens, fact.slots) for fact in told} == {(40000, 64)}
    target = monitor.target("e0/3082979183884705254")
    assert (target.engine, target.pool) == (monitor.engines[0], "3082979183884705254")
    assert monitor.target("e0").pool == ""


async def test_a_worker_that_leaves_is_lost_alone(watched: Watched, new_engine: NewEngine) -> None:
    engine = new_engine("dynamo-1.6-four")
    await watched.start(engine, kind="dynamo")
    watched.told()
    gone = "3082979183884705254"
    engine.pages["/health"] = engine.pages["/health"].replace(
        f'"generate","namespace":"dynamo","instance_id":{gone}', ""
    )
    await watched.ticks.next_poll()
    assert ReplicaLost(f"e0/{gone}") not in watched.told()
    engine.pages["/health"] = pages("dynamo-1.6-four")["/health"].replace(
        '"endpoint":"generate","namespace":"dynamo","instance_id":' + gone, '"endpoint":"gone"'
    )
    await watched.ticks.next_poll()
    lost = [fact for fact in watched.told() if isinstance(fact, ReplicaLost)]
    assert lost == [ReplicaLost(f"e0/{gone}")]


async def test_ranks_that_cannot_be_addressed_are_one_replica(watched: Watched, new_engine: NewEngine) -> None:
    engine = new_engine("vllm-0.32")
    engine.pages["/metrics"] += engine.pages["/metrics"].replace('engine="0"', 'engine="1"')
    engine.pages["/version"] = '{"version":"0.11.0"}'
    monitor = await watched.start(engine)
    assert watched.told() == [ReplicaReported("e0", frozenset({"tiny"}), 128000, None, 0)]
    assert monitor.engines[0].abilities.num_pools == 2


async def test_a_page_that_an_engine_lacks_is_asked_for_once(watched: Watched, new_engine: NewEngine) -> None:
    engine = new_engine("vllm-0.32")
    await watched.start(engine, kind="sglang")
    await watched.ticks.next_poll()
    assert engine.gets.count("/v1/loads") == 1
    assert engine.gets.count("/v1/models") == 2


async def test_a_page_that_cannot_be_read_does_not_end_the_watch(watched: Watched, new_engine: NewEngine) -> None:
    engine = new_engine("vllm-0.32")
    await watched.start(engine)
    metrics = engine.pages["/metrics"]
    engine.pages["/metrics"] = 'vllm:num_requests_running{engine="0"} NaN'
    await watched.ticks.next_poll()
    watched.told()
    engine.pages["/metrics"] = metrics
    await watched.ticks.next_poll()
    assert [type(fact) for fact in watched.told()] == [ReplicaReported]


async def test_probes_find_out_order_and_cached_tokens_by_three_requests(
    watched: Watched, new_engine: NewEngine
) -> None:
    engine = new_engine("vllm-0.32")
    monitor = await watched.start(engine, probes=True)
    abilities = monitor.engines[0].abilities
    assert abilities.system_before_tools is True
    assert abilities.reports_cached_tokens is True
    assert [path for path, _, _ in engine.posts] == ["/tokenize", "/v1/chat/completions", "/v1/chat/completions"]
    assert {body["max_tokens"] for _, _, body in engine.chats} == {1}
    assert {headers["X-Vllm-Priority"] for _, headers, _ in engine.chats} == {"-1"}


async def test_probes_can_be_switched_off(watched: Watched, new_engine: NewEngine) -> None:
    engine = new_engine("vllm-0.32")
    await watched.start(engine, probes=False)
    assert engine.posts == []


async def test_a_hint_that_the_probe_sees_refused_is_never_sent(watched: Watched, new_engine: NewEngine) -> None:
    engine = new_engine("vllm-0.32")
    engine.pages["/version"] = '{"version":"0.11.0"}'
    message = "Got priority -1 but Priority scheduling is not enabled."
    engine.refuse = lambda headers, body: (400, message) if body.get("priority") else None
    monitor = await watched.start(engine, probes=True)
    abilities = monitor.engines[0].abilities
    assert abilities.honours_priority is False
    assert abilities.refused_fields == {"priority"}
    assert ["priority" in body for _, _, body in engine.chats] == [True, False, False]


@pytest.mark.parametrize("cached", [0, None])
async def test_cached_tokens_that_never_come_are_not_reported(
    watched: Watched, new_engine: NewEngine, cached: int | None
) -> None:
    engine = new_engine("vllm-0.32")
    engine.cached_tokens = [cached]
    monitor = await watched.start(engine, probes=True)
    assert monitor.engines[0].abilities.reports_cached_tokens is False


async def test_an_engine_that_refuses_to_chat_is_up_all_the_same(watched: Watched, new_engine: NewEngine) -> None:
    engine = new_engine("vllm-0.32")
    engine.refuse = lambda headers, body: (404, "no chat here")
    monitor = await watched.start(engine, probes=True)
    assert monitor.engines[0].is_up
    assert monitor.engines[0].abilities.reports_cached_tokens is None


async def test_what_a_version_refused_is_remembered_over_its_restart_and_not_longer(
    watched: Watched, new_engine: NewEngine
) -> None:
    engine = new_engine("vllm-0.32")
    monitor = await watched.start(engine)
    running = monitor.engines[0]
    running.abilities.refused_fields.add("priority")
    monitor.failed(running)
    await watched.ticks.next_poll()
    assert running.abilities.refused_fields == {"priority"}
    engine.pages["/version"] = '{"version":"0.33.0"}'
    monitor.failed(running)
    await watched.ticks.next_poll()
    assert running.abilities.refused_fields == set()


async def test_the_engines_key_is_sent(watched: Watched, new_engine: NewEngine) -> None:
    engine = new_engine("vllm-0.32")
    await engine.server.start_server()
    url = f"http://127.0.0.1:{engine.server.port}"
    await watched.start(EngineAddress("vllm", url, "secret", name="e"), probes=True)
    assert {headers["Authorization"] for _, headers, _ in engine.posts} == {"Bearer secret"}


async def test_stop_ends_every_task(watched: Watched, new_engine: NewEngine) -> None:
    monitor = await watched.start(new_engine("vllm-0.32"))
    await monitor.stop()
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("monitor")]
