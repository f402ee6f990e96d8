"""MCP servers in processes of their own (`program.py`), joined to a runtime."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.deadline import DEADLINE_S
from tool_runtime.mcp.server import McpServers
from tool_runtime.runtime import ToolRuntime
from tool_runtime.types import Call, Context, Result, Tool

PROGRAM = str(Path(__file__).with_name("program.py"))


def stdio(name: str = "it", *arguments: str, **settings: Any) -> dict[str, Any]:
    return {
        "name": name,
        "command": sys.executable,
        "args": [PROGRAM, *arguments],
        "start_timeout_s": DEADLINE_S,
        **settings,
    }


class Http:
    """The program over HTTP. It can be started again on the same port."""

    def __init__(self) -> None:
        self.port = 0
        self.process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        command = (sys.executable, PROGRAM, "--port", str(self.port))
        self.process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        assert self.process.stdout is not None
        self.port = int(await self.process.stdout.readline())

    async def stop(self) -> None:
        assert self.process is not None
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()

    def settings(self, **settings: Any) -> dict[str, Any]:
        return {"name": "it", "url": f"http://127.0.0.1:{self.port}/mcp", **settings}


class Joined:
    """Servers and the runtime that their tools are offered to."""

    def __init__(self, *settings: dict[str, Any]) -> None:
        self.runtime = ToolRuntime(clock=time.monotonic)
        self.has_changed = asyncio.Event()
        self.servers = McpServers(settings, self.offer)

    def offer(self, source: str, tools: Iterable[Tool]) -> None:
        self.runtime.replace(source, tools)
        self.has_changed.set()

    async def call(self, name: str, session: str = "ann", **arguments: Any) -> Result:
        return await self.runtime.run(Call("1", name, json.dumps(arguments)), Context("acme", session))

    @property
    def problem(self) -> str:
        return self.servers.states[0].problem


@asynccontextmanager
async def joined(*settings: dict[str, Any], wait_s: float = DEADLINE_S) -> AsyncIterator[Joined]:
    everything = Joined(*settings)
    await everything.servers.start(wait_s)
    try:
        yield everything
    finally:
        await everything.servers.close()
        await everything.runtime.close()


@asynccontextmanager
async def joined_by(kind: str, **settings: Any) -> AsyncIterator[Joined]:
    if kind == "stdio":
        async with joined(stdio(**settings)) as it:
            yield it
        return
    program = Http()
    await program.start()
    try:
        async with joined(program.settings(**settings)) as it:
            yield it
    finally:
        await program.stop()
