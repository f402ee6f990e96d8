"""An engine that serves recorded pages over a real connection, and a monitor whose sleeps a test ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer

from gateway.core.errors import EngineFault
from gateway.core.transport import Upstream
from gateway.engines.base import EngineAddress, Report
from gateway.engines.monitor import Monitor
from gateway.engines.vllm import Vllm
from policies.types import Fact
from tests.deadline import DEADLINE_S
from tests.engines.recorded import text


class FakeEngine:
    """Serves pages and answers chats; a test changes its pages while it runs."""

    def __init__(self, served: dict[str, str]) -> None:
        self.pages = served
        self.gets: list[str] = []
        self.posts: list[tuple[str, dict[str, str], Any]] = []
        self.cached_tokens: list[int | None] = [0, 96]
        self.refuse: Callable[[Any, Any], tuple[int, str] | None] = lambda headers, body: None
        self.answers = {"/tokenize": text("vllm-0.32", "tokenize.json")}
        """To posts, by path; chats are answered in any case."""
        self.before_chat: Callable[[Any], Awaitable[None]] | None = None
        self.port: int | None = None
        """Kept over a restart."""
        self._server: TestServer | None = None

    async def start(self) -> str:
        """Its base URL."""
        app = web.Application()
        app.router.add_get("/{path:.*}", self._get)
        app.router.add_post("/{path:.*}", self._post)
        self._server = TestServer(app, port=self.port)
        await self._server.start_server()
        self.port = self._server.port
        return f"http://127.0.0.1:{self.port}"

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.close()

    async def _get(self, request: web.Request) -> web.Response:
        self.gets.append(request.path)
        if request.path not in self.pages:
            raise web.HTTPNotFound
        return web.Response(text=self.pages[request.path])

    async def _post(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.posts.append((request.path, dict(request.headers), body))
        if request.path in self.answers:
            return web.Response(text=self.answers[request.path])
        if self.before_chat is not None:
            await self.before_chat(body)
        if refusal := self.refuse(request.headers, body):
            return web.json_response({"error": {"message": refusal[1]}}, status=refusal[0])
        cached = self.cached_tokens[min(len(self.chats), len(self.cached_tokens)) - 1]
        usage = {"prompt_tokens": 99, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": cached}}
        return web.json_response({"choices": [], "usage": usage})

    @property
    def chats(self) -> list[tuple[str, dict[str, str], Any]]:
        return [post for post in self.posts if post[0] == "/v1/chat/completions"]


class Touchy(Vllm):
    """A kind whose parser meets a page that it was not written for."""

    def parse_report(self, pages: Mapping[str, str]) -> Report:
        if "new in this release" in pages["/metrics"]:
            raise KeyError("new")
        return super().parse_report(pages)


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
        async with asyncio.timeout(DEADLINE_S):
            await self._asleep.acquire()
            self._wake.release()
            await self._asleep.acquire()
        self._asleep.release()


class Watched:
    """A monitor with the facts that it reported."""

    def __init__(self, upstream: Upstream) -> None:
        self.upstream = upstream
        self.facts: list[Fact] = []
        self.faults: list[EngineFault] = []
        self.num_came_up = 0
        self.now = 7.0
        self.ticks = Ticks()
        self.monitor: Monitor | None = None

    async def _came_up(self) -> None:
        self.num_came_up += 1

    async def start(
        self,
        *engines: FakeEngine | EngineAddress,
        kind: str = "vllm",
        probes: bool = False,
        start_waits: bool = True,
    ) -> Monitor:
        addresses = []
        for number, engine in enumerate(engines):
            if isinstance(engine, FakeEngine):
                addresses.append(EngineAddress(kind, await engine.start(), name=f"e{number}"))
            else:
                addresses.append(engine)
        self.monitor = Monitor(
            addresses,
            self.upstream,
            self.facts.append,
            lambda: self.now,
            probes_hints=probes,
            start_waits=start_waits,
            faulted=lambda engine, fault: self.faults.append(fault),
            came_up=self._came_up,
            sleep=self.ticks.sleep,
        )
        async with asyncio.timeout(DEADLINE_S):
            await self.monitor.start()
        return self.monitor

    def take_facts(self) -> list[Fact]:
        facts = self.facts[:]
        self.facts.clear()
        return facts


NewEngine = Callable[[str], FakeEngine]
