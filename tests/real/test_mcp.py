"""The reference server of the protocol's authors: another language, another SDK, an older protocol."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.real import parts
from tests.real.process import free_port
from tests.tool_runtime.mcp.joined import joined
from tool_runtime.types import Effect, Json, Status

NODE_SERVER = ["node", str(parts.MCP_SERVER_SCRIPT)]


async def started(port: int) -> asyncio.subprocess.Process:
    """Over HTTP, and ready."""
    parts.require("mcp", parts.MCP_SERVER_SCRIPT)
    process = await asyncio.create_subprocess_exec(
        *NODE_SERVER,
        "streamableHttp",
        env=os.environ | {"PORT": str(port)},
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    assert b"listening" in await process.stderr.readline()
    return process


async def stopped(process: asyncio.subprocess.Process) -> None:
    process.kill()
    await process.wait()


@asynccontextmanager
async def serving(kind: str) -> AsyncIterator[Json]:
    """The settings of a server while it runs."""
    parts.require("mcp", parts.MCP_SERVER_SCRIPT)
    if kind == "stdio":
        yield {"name": "it", "command": NODE_SERVER[0], "args": [*NODE_SERVER[1:], "stdio"]}
        return
    port = free_port()
    process = await started(port)
    try:
        yield {"name": "it", "url": f"http://127.0.0.1:{port}/mcp"}
    finally:
        await stopped(process)


@pytest.mark.parametrize("kind", ["stdio", "http"])
async def test_the_reference_server_is_listed_and_called(kind: str) -> None:
    async with serving(kind) as settings, joined(settings) as it:
        tools = it.runtime.tools
        names = ("it_echo", "it_gzip-file-as-resource", "it_toggle-simulated-logging")
        assert [tools[name].effect for name in names] == [Effect.READ_ONLY, Effect.IDEMPOTENT, Effect.DESTRUCTIVE]
        assert it.servers.states[0].left_out == {}
        assert (await it.call("it_get-sum", a=1, b=2)).text == "The sum of 1 and 2 is 3."
        assert "[image/png, not shown]" in (await it.call("it_get-tiny-image")).text
        assert "temperature" in (await it.call("it_get-structured-content", location="Chicago")).text
        assert (await it.call("it_get-sum", a="x", b=2)).status is Status.REFUSED


@pytest.mark.parametrize("kind", ["stdio", "http"])
async def test_calls_of_the_reference_server_run_side_by_side(kind: str) -> None:
    async with serving(kind) as settings, joined(settings) as it:
        slow = asyncio.create_task(it.call("it_trigger-long-running-operation", duration=600, steps=600))
        assert (await it.call("it_echo", message="x")).text == "Echo: x"
        assert not slow.done()
        slow.cancel()


async def test_a_reference_server_that_was_restarted_gets_a_new_session() -> None:
    port = free_port()
    first = await started(port)
    async with joined({"name": "it", "url": f"http://127.0.0.1:{port}/mcp"}) as it:
        assert (await it.call("it_echo", message="x")).text == "Echo: x"
        await stopped(first)
        second = await started(port)
        statuses = []
        while Status.OK not in statuses:
            statuses.append((await it.call("it_echo", message="x")).status)
            await asyncio.sleep(0.1)
        await stopped(second)
    assert set(statuses) <= {Status.OK, Status.ERROR}
    assert it.servers.states[0].num_starts > 1
