"""Keep-alives at their default times, under clients that give up on silence: each waits, and has its whole answer.

All times are scaled alike: those of the gateway, and the client's own timers from what they are by default.
client -> shim -> gateway whose one slot is taken -> scripted engine
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway.config.settings import Stream
from tests.path.fake_engine import answers, stalls_after
from tests.real import parts
from tests.real.agents import AgentRun, openai_environment, run_command
from tests.real.clients import INSIDE, MODEL, TASK, VERDICT, node_agent
from tests.real.gateway import gateway
from tests.real.scripted_engine import scripted_engine
from tests.real.scripts import steps
from tests.real.shim import Exchange, Shim, shim

DEADLINE_S = 120.0
POLL_INTERVAL_S = 0.02
DEFAULTS = Stream()
NEVER_S = 10_000
PAST = 1.3
"""Of the time between two events that a client bears: it waits so long after its first one."""
Start = Callable[[str, Path, "Patience"], Coroutine[Any, Any, AgentRun]]
"""(base URL without /v1, directory to run in, the client's timers) -> the run."""


@dataclass(frozen=True)
class Patience:
    """Seconds of silence after which a client gives up."""

    first_s: float
    """Before the first event."""
    gap_s: float
    """Between two."""

    def scaled(self, scale: float) -> Patience:
        return Patience(self.first_s / scale, self.gap_s / scale)


@dataclass(frozen=True)
class Client:
    start: Start
    by_default: Patience
    scale: float
    """Here all times are so many times shorter."""
    path: str = "/v1/chat/completions"

    @property
    def silent_queue_s(self) -> float:
        return DEFAULTS.silent_queue_s / self.scale

    @property
    def wait_s(self) -> float:
        return self.silent_queue_s + PAST * self.by_default.gap_s / self.scale


def of_python(name: str, python: Path, part: str) -> Start:
    async def start(base_url: str, place: Path, patience: Patience) -> AgentRun:
        parts.require(part, python)
        timers = [str(patience.first_s), str(patience.gap_s)]
        command: list[str | Path] = [python, INSIDE / "agents.py", base_url, name, TASK, *timers]
        return await run_command(command, {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}, place=place)

    return start


async def qwen_code(base_url: str, place: Path, patience: Patience) -> AgentRun:
    timers = {
        "QWEN_CODE_API_TIMEOUT_MS": f"{patience.first_s * 1000:.0f}",
        "QWEN_STREAM_IDLE_TIMEOUT_MS": f"{patience.gap_s * 1000:.0f}",
    }
    command = [*node_agent("qwen"), "--auth-type", "openai", "-p", TASK]
    env = openai_environment(base_url) | {"OPENAI_MODEL": MODEL} | timers
    return await run_command(command, env, place=place)


FRAMEWORKS = (parts.PYTHON_AGENTS_PYTHON, "python-agents")
CLIENTS = {
    "qwen-code": Client(qwen_code, Patience(120, 240), scale=30),
    "langchain": Client(of_python("langchain", *FRAMEWORKS), Patience(600, 120), 30, "/v1/responses"),
    "pydantic-ai": Client(of_python("pydantic-ai", *FRAMEWORKS), Patience(600, 600), scale=120),
    "litellm": Client(of_python("litellm", parts.AIDER_PYTHON, "aider"), Patience(600, 600), scale=120),
}


@asynccontextmanager
async def taken(client: Client, keep_alive_s: float) -> AsyncIterator[tuple[Shim, asyncio.Event]]:
    """A way to a gateway whose slot is taken until the event."""
    go_on = asyncio.Event()
    ask = {"model": MODEL, "messages": [{"role": "user", "content": "Wait."}], "stream": True}
    async with (
        scripted_engine(steps(VERDICT, title=VERDICT)) as engine,
        gateway(
            f"vllm://127.0.0.1:{engine.port}",
            probing__hints=False,
            policy__slots_per_replica=1,
            stream__silent_queue_s=client.silent_queue_s,
            stream__keep_alive_s=keep_alive_s,
        ) as front,
        shim(front.base_url) as outside,
        aiohttp.ClientSession() as session,
    ):
        engine.plays = [stalls_after(until=go_on, then=answers)]
        first = asyncio.create_task(_read(session, f"{front.base_url}/v1/chat/completions", ask))
        async with asyncio.timeout(DEADLINE_S):
            await engine.has_seen(1)
        try:
            yield outside, go_on
        finally:
            go_on.set()
            await first


async def _read(session: aiohttp.ClientSession, url: str, ask: dict[str, object]) -> None:
    async with session.post(url, json=ask) as response:
        await response.read()


async def first_exchange(link: Shim, is_so: Callable[[Exchange], bool] = lambda _: True) -> Exchange:
    """The client's first request, once it is so."""
    async with asyncio.timeout(DEADLINE_S):
        while not (link.exchanges and is_so(link.exchanges[0])):
            await asyncio.sleep(POLL_INTERVAL_S)
    return link.exchanges[0]


@pytest.mark.parametrize("name", CLIENTS)
async def test_keep_alives_are_what_a_client_waits_by(name: str, tmp_path: Path) -> None:
    """It has its whole answer; where they end with the first one, it gives up after the time that it states."""
    client = CLIENTS[name]
    await asyncio.gather(waits(client, tmp_path / "waits"), gives_up(client, tmp_path / "gives up"))


async def waits(client: Client, place: Path) -> None:
    async with taken(client, DEFAULTS.keep_alive_s / client.scale) as (link, go_on):
        patience = client.by_default.scaled(client.scale)
        running = asyncio.create_task(client.start(link.base_url, place, patience))
        exchange = await first_exchange(link)
        await asyncio.sleep(exchange.started_s + client.wait_s - time.monotonic())
        go_on.set()
        run = await running
    assert run.exit_code == 0, run.stderr
    assert VERDICT in run.stdout, run.stdout + run.stderr
    assert exchange.received.path == client.path
    assert not exchange.has_client_left
    first_s, *_, last_s = (at_s - exchange.started_s for at_s, _ in exchange.chunks)
    assert first_s < patience.first_s
    assert last_s >= client.wait_s


async def gives_up(client: Client, place: Path) -> None:
    async with taken(client, NEVER_S) as (link, _):
        patience = client.by_default.scaled(client.scale)
        running = asyncio.create_task(client.start(link.base_url, place, patience))
        exchange = await first_exchange(link, lambda exchange: exchange.has_client_left)
        running.cancel()
    assert exchange.ended_s is not None
    assert len(exchange.chunks) == 1
    assert patience.gap_s <= exchange.ended_s - exchange.chunks[0][0] < PAST * patience.gap_s
