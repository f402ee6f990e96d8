"""Tools of gateway processes that do their work at a server of the test, which survives them and counts."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import aiohttp
from aiohttp import web

from tool_runtime.types import Context, Effect, Json, Tool

Started: TypeAlias = tuple[str, int]
"""A tool, and the session that it was called for."""


@dataclass
class ToolServer:
    """Each call that starts is counted, and ends at once unless it is held."""

    held: set[Started] = field(default_factory=set)
    go_on: asyncio.Event = field(default_factory=asyncio.Event)
    starts: Counter[Started] = field(default_factory=Counter)
    port: int = 0

    async def start(self) -> None:
        self._runner = web.ServerRunner(web.Server(self._answer, access_log=None), shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        await self._runner.cleanup()

    def settings(self) -> Json:
        """One entry of `tools.use`."""
        return {"use": "tests.path.counted_tools:build", "options": {"url": f"http://127.0.0.1:{self.port}/"}}

    async def _answer(self, request: web.BaseRequest) -> web.Response:
        tool, _, session = request.path[1:].partition("/")
        started = tool, int(session)
        self.starts[started] += 1
        if started in self.held:
            await self.go_on.wait()
        return web.Response(text=f"{tool} {session} is done")


def build(settings: Mapping[str, Any]) -> list[Tool]:
    """As configuration loads it: `order` must run once, `fetch` may be repeated."""
    schema = {"type": "object", "properties": {"session": {"type": "integer"}}, "required": ["session"]}

    def tool(name: str, effect: Effect) -> Tool:
        async def run(arguments: Json, context: Context) -> str:
            url = f"{settings['url']}{name}/{arguments['session']}"
            async with aiohttp.ClientSession() as client, client.get(url) as response:
                return await response.text()

        return Tool(name=name, description=f"To {name}.", parameters=schema, run=run, effect=effect)

    return [tool("order", Effect.DESTRUCTIVE), tool("fetch", Effect.IDEMPOTENT)]
