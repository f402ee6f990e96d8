"""A configuration that changes while a request is under way: what becomes of that one, and of the next one."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

import aiohttp
import openai
import orjson
import pytest
from aiohttp import web
from openai.types import Batch

from gateway.app import App
from gateway.cluster.membership import Member, by_preference
from gateway.cluster.workers import WorkerIdentity
from gateway.config.settings import Settings
from gateway.core.transport import Body, HeaderList, Timeouts, Upstream, UpstreamReply, whole
from gateway.reload import reload
from gateway.sessions.session_locations import origin_of
from tests.clock import Clock
from tests.path.batches import asks, create, over, rows_of
from tests.path.conftest import Answer, Gateway, rest_of
from tests.path.fake_engine import Call, FakeEngine, answers, error
from tests.path.secured import key_of
from tests.path.test_lists import echoes
from tests.transport.loops import carrier

Json: TypeAlias = dict[str, Any]
OLD, NEW, OTHER = "the one under way", "the next one", "another one"
"""In the prompts of a request, by which the engines know it."""
WAYS = ("chat", "embedding", "list", "line", "home", "forwarded")
"""A chat, a call that is no turn, a list of prompts, a line of a batch; a chat at the member that is its home, and
at one that is not."""
CHAT = "/v1/chat/completions"
PATHS = {"list": "/v1/completions", "embedding": "/v1/embeddings"}
COMES_SLOWLY = ("chat", "embedding", "home")
"""Ways of which the body may still be coming."""
NUM_PROMPTS = 20


Sections: TypeAlias = Json | Callable[[list[Json], Path], Json]
"""Of the configuration; of some, once the entries of the engines and a folder are known."""


@dataclass
class Sent:
    """One call of a gateway's HTTP client."""

    url: str
    body: bytes
    timeouts: Timeouts


@dataclass
class Recording:
    """A `transport.Upstream` in front of the real one."""

    upstream: Upstream
    sent: list[Sent]

    def call(
        self, method: str, url: str, headers: HeaderList, body: Body | None, timeouts: Timeouts
    ) -> Coroutine[Any, Any, UpstreamReply]:
        self.sent.append(Sent(url, whole(body or b""), timeouts))
        return self.upstream.call(method, url, headers, body, timeouts)

    async def close(self) -> None:
        await self.upstream.close()


@dataclass
class Seen:
    """What became of a request."""

    calls: list[tuple[str, Call]]
    """Name of the engine, and what it was asked."""
    to_engines: list[Timeouts]
    to_members: list[Timeouts]
    rows: list[Json]
    """Of the log of requests, for each of its parts too."""
    status: int = 0
    body: bytes = b""

    @property
    def models(self) -> set[str]:
        return {call.body["model"] for _, call in self.calls}

    @property
    def engines(self) -> set[str]:
        return {name for name, _ in self.calls}

    @property
    def outcomes(self) -> set[str]:
        return {row["outcome"] for row in self.rows}


@dataclass(frozen=True)
class Case:
    """What a key changes for a request. Engines say nothing to one before the configuration has changed."""

    old: Sections
    new: Sections
    effect: Callable[[Seen], Any]
    was: Any
    becomes: Any
    unconcerned: Mapping[str, str] = field(default_factory=dict)
    """Way -> why nothing changes there."""
    ask: Json = field(default_factory=dict)
    """Keys of the request."""
    headers: Mapping[str, str] = field(default_factory=dict)
    tenant: str = "default"
    engines: tuple[str, ...] = ("m", "m", "n")
    """The model of each."""
    fails: Literal["first", "always", "never"] = "first"
    """After its silence an engine fails, so that another one is asked; of a list there is more to ask anyway."""
    holds_upload: bool = True
    """Whether a request is under way because its body is still coming, where that can be. Else because its engine
    is silent."""
    is_endless: frozenset[str] = frozenset()
    """A list is asked for ever, and left when one of its parts has an end."""
    before: Callable[[Stage], Awaitable[None]] | None = None
    during: Callable[[Stage], Awaitable[None]] | None = None
    """While its engine is silent."""


@dataclass
class Stage:
    """Where a case is played in one way."""

    case: Case
    way: str
    gateways: list[Gateway]
    engines: dict[str, FakeEngine]
    sent: list[Sent]
    members: list[Member]
    new: Json
    """Sections."""
    log: pytest.LogCaptureFixture
    sdk: openai.AsyncOpenAI
    may_answer: dict[str, asyncio.Event] = field(default_factory=lambda: {w: asyncio.Event() for w in (OLD, NEW)})
    may_end: asyncio.Event = field(default_factory=asyncio.Event)
    """The body that is still coming."""
    num_taken: int = 0
    """Rows of the log."""

    @property
    def door(self) -> Gateway:
        return self.gateways[0]

    async def play(self, call: Call) -> web.StreamResponse | None:
        gate = next((gate for words, gate in self.may_answer.items() if words.encode() in call.raw), None)
        if gate is not None:
            was_silent = not gate.is_set()
            await gate.wait()
            fails_first = self.case.fails == "first" and was_silent and self.way != "list"
            if fails_first or self.case.fails == "always":
                return await call.reply(500, error("It broke.", 500))
        return await (echoes if "prompt" in call.body else answers)(call)

    def body(self, words: str, **more: Any) -> Json:
        asked = {"model": "m", "user": words} | self.case.ask | more
        if self.way == "list" and words != OTHER:
            return {"prompt": [f"{words} {n}" for n in range(NUM_PROMPTS)], "max_tokens": 4} | asked
        if self.way == "embedding":
            return {"input": words} | asked
        return {"messages": [{"role": "user", "content": words}]} | asked

    def headers(self, words: str) -> dict[str, str]:
        """With a session whose home is the member that the way wants."""
        given = {"Authorization": f"Bearer {key_of(self.case.tenant)}"}
        for n in range(100 if self.members else 0):
            name = {"X-Turngate-Session": f"{words} {n}"}
            named = {header: f"{text} {n}" for header, text in self.case.headers.items()} or name
            origin = origin_of(self.case.tenant, {header.lower(): text for header, text in named.items()}, {})
            if by_preference(self.members, origin)[0].worker == (self.way == "forwarded"):
                return given | named
        return {**given, **self.case.headers}

    def calls(self, words: str) -> list[tuple[str, Call]]:
        found = ((name, call) for name, engine in self.engines.items() for call in engine.calls)
        return [(name, call) for name, call in found if words.encode() in call.raw]

    def rows(self) -> list[Json]:
        """Those that no request has yet."""
        rows = [vars(row)["fields"] for row in self.log.records if row.name == "turngate.request"]
        return rows[self.num_taken :]

    async def begin(self, words: str) -> asyncio.Task[Answer]:
        """Sends a request; returns when its first bytes have been read. The rest of a body may come later."""
        raw, has_begun, may_end = orjson.dumps(self.body(words)), asyncio.Event(), self.may_end
        is_held = words == OLD and self.case.holds_upload and self.way in COMES_SLOWLY

        async def parts() -> AsyncIterator[bytes]:
            yield raw[:10]
            has_begun.set()
            if is_held:
                await may_end.wait()
            yield raw[10:]

        headers = self.headers(words) | {"Content-Type": "application/json"}
        url = self.door.url(CHAT if words == OTHER else PATHS.get(self.way, CHAT))

        async def ask() -> Answer:
            async with self.door.client.post(url, data=parts(), headers=headers) as response:
                return await rest_of(response)

        task = asyncio.create_task(ask())
        self.door.tasks.append(task)
        await has_begun.wait()
        for _ in range(3):  # what came before them on the same loop has been read
            async with self.door.get("/ready"):
                pass
        return task

    async def has_come(self, words: str) -> None:
        """To an engine, to a queue, or to an end."""
        await self.door.until(lambda: bool(self.calls(words) or self.rows() or self.num_waiting))

    @property
    def num_waiting(self) -> int:
        return sum(gateway.num_waiting for gateway in self.gateways)

    async def reload(self, **sections: Any) -> None:
        for gateway in self.gateways:
            await reload(gateway.app, changed(gateway, **sections))

    async def played(self) -> tuple[Seen, Seen]:
        """A request that was under way when the configuration changed, and the next one."""
        if self.way == "line":
            return await self._played_lines()
        seen = []
        for words in (OLD, NEW):
            if self.case.before is not None:
                await self.case.before(self)
            task = await self.begin(words)
            if words == OLD:
                await self._changed()
            await self._go_on(words)
            if self.way == "list" and words in self.case.is_endless:
                await self.door.until(lambda: bool(self.rows()))
                seen.append(self._seen(words))
                await _ended([task])
                await self.door.until(lambda: not self.door.app._drain.num_running)
                self.num_taken += len(self.rows())
            else:
                answer = await task
                seen.append(self._seen(words))
                seen[-1].status, seen[-1].body = answer.status, answer.body
        return seen[0], seen[1]

    async def _played_lines(self) -> tuple[Seen, Seen]:
        """The next one was valid before, and waits: lines are asked one at a time."""
        batches, seen = {}, {}
        for words in (OLD, NEW):
            if self.case.before is not None:
                await self.case.before(self)
            if words == OLD:
                batches = {each: await self._waiting(each) for each in (OLD, NEW)}
                await self._changed()
            await self._go_on(words)
            if words == NEW:
                await over(self.sdk, batches[NEW])
            else:
                await self.door.until(lambda: bool(self.rows() or self.calls(NEW)))
            seen[words] = self._seen(words)
        for words, batch in batches.items():
            done = await over(self.sdk, batch)
            told = await rows_of(self.sdk, done.output_file_id) | await rows_of(self.sdk, done.error_file_id)
            response = told[words]["response"]
            seen[words].status, seen[words].body = response["status_code"], orjson.dumps(response["body"])
        return seen[OLD], seen[NEW]

    async def _waiting(self, words: str) -> Batch:
        batch = await self.in_progress(words)
        if words == OLD:
            await self.has_come(OLD)
        return batch

    async def in_progress(self, words: str) -> Batch:
        """A batch of one line, which was found to be valid or not."""
        batch = await create(self.sdk, [asks(words) | {"body": self.body(words)}])
        while batch.status == "validating":
            await asyncio.sleep(0)
            batch = await self.sdk.batches.retrieve(batch.id)
        return batch

    async def _changed(self) -> None:
        if not (self.case.holds_upload and self.way in COMES_SLOWLY):
            await self.has_come(OLD)
        await self.reload(**self.new)
        self.may_end.set()

    async def _go_on(self, words: str) -> None:
        await self.has_come(words)
        if self.case.during is not None:
            await self.case.during(self)
        self.may_answer[words].set()

    def _seen(self, words: str) -> Seen:
        rows = self.rows()[:1] if self.way == "line" else self.rows()
        self.num_taken += len(rows)
        sent = [one for one in self.sent if words.encode() in one.body]
        members = {member.url + CHAT for member in self.members}
        to_members = [one.timeouts for one in sent if one.url in members]
        return Seen(self.calls(words), [one.timeouts for one in sent if one.url not in members], to_members, rows)


def changed(gateway: Gateway, **sections: object) -> Settings:
    return Settings.model_validate(gateway.app.settings.current.model_dump() | sections)


class Staging:
    """Starts what a case needs."""

    def __init__(self, running: AsyncExitStack, clock: Clock, folder: Path, log: pytest.LogCaptureFixture) -> None:
        self._running, self._clock, self._folder, self._log = running, clock, folder, log

    async def __call__(self, case: Case, way: str) -> Stage:
        engines = {f"e{n}": FakeEngine(model) for n, model in enumerate(case.engines, 1)}
        for engine in engines.values():
            await engine.start()
            self._running.push_async_callback(engine.stop)
        entries = [{"url": f"vllm://127.0.0.1:{engine.port}", "name": name} for name, engine in engines.items()]
        old, new = (told(entries, self._folder) if callable(told) else told for told in (case.old, case.new))
        tree: Json = {
            "listen": {"port": 0},
            "transport": carrier(),
            "engines": entries,
            "probing": {"hints": False, "interval_s": 3600},
            "timeouts": {"shutdown_grace_s": 0},
            "policy": {"slots_per_replica": 16},
            "batches": {"directory": str(self._folder / "batches"), "in_flight": 1, "attempts": 1},
        }
        for name, section in old.items():
            tree[name] = tree.get(name, {}) | section if isinstance(section, dict) else section
        self._log.set_level("INFO")
        logging.getLogger().setLevel(tree.get("logging", {"level": "info"})["level"].upper())
        sent: list[Sent] = []
        places = self._places() if way in ("home", "forwarded") else [None]
        gateways = [await self._gateway(tree, place, list(engines.values()), sent) for place in places]
        members = [
            Member(
                f"{socket.gethostname()}:0", place.worker, f"http://127.0.0.1:{place.private_ports[place.worker]}"
            )
            for place in places
            if place is not None
        ]
        sdk = openai.AsyncOpenAI(base_url=gateways[0].url("/v1"), api_key=key_of(case.tenant), max_retries=0)
        self._running.push_async_callback(sdk.close)
        stage = Stage(case, way, gateways, engines, sent, members, new, self._log, sdk)
        for engine in engines.values():
            engine.plays = [stage.play] * 1_000
        return stage

    async def _gateway(
        self, tree: Json, place: WorkerIdentity | None, engines: list[FakeEngine], sent: list[Sent]
    ) -> Gateway:
        app = App(Settings.model_validate(tree), self._clock.now, place)
        transport = app._transport
        app._transport = replace(transport, upstream=lambda: Recording(transport.upstream(), sent))
        await app.start()
        self._running.push_async_callback(app.stop)
        client = await self._running.enter_async_context(
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None))
        )
        gateway = Gateway(app, engines, client, self._clock)
        self._running.push_async_callback(_ended, gateway.tasks)
        return gateway

    def _places(self) -> list[WorkerIdentity]:
        """Of two workers, each with a public port of its own, so that a test can choose one."""
        ports = []
        for _ in range(2):
            kept = self._running.enter_context(socket.socket())
            kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            kept.bind(("127.0.0.1", 0))
            ports.append(kept.getsockname()[1])
        return [WorkerIdentity(n, 0, tuple(ports), None, "a secret of both") for n in range(2)]


async def _ended(tasks: list[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
