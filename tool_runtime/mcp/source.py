"""MCP servers as sources of tools. Needs the extra `mcp`; imported only where servers are configured."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from typing import Any

from tool_runtime.mcp.options import Options
from tool_runtime.mcp.server import McpServer, Offer, State
from tool_runtime.options import read

START_WAIT_S = 10.0
_FOREIGN_LOGS = ("mcp", "client", "httpx2")
"""The SDK writes its own, with session ids and what servers have sent. What matters of it, we say."""


class McpServers:
    """All configured servers, each on its own: none waits for another, and none ends with another."""

    def __init__(self, servers: Iterable[Mapping[str, Any]], offer: Offer) -> None:
        """`offer` is told of the tools of each server when it is up, and when they change.

        Raises ValueError for settings that are wrong.
        """
        options = [read(Options, settings, f"MCP server {settings.get('name', '?')}") for settings in servers]
        names = [each.name for each in options]
        if twice := {name for name in names if names.count(name) > 1}:
            raise ValueError(f"two MCP servers are named {', '.join(twice)}")
        self._servers = [McpServer(each, offer) for each in options]
        for name in _FOREIGN_LOGS:
            logging.getLogger(name).setLevel(logging.CRITICAL)

    @property
    def states(self) -> list[State]:
        return [server.state for server in self._servers]

    async def start(self, wait_s: float = START_WAIT_S) -> None:
        """Start all. Waits until each is up or has failed, at most so long: the rest come up while others work."""
        for server in self._servers:
            server.start()
        if waiting := [asyncio.create_task(server.settled()) for server in self._servers]:
            _, late = await asyncio.wait(waiting, timeout=wait_s)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    async def close(self) -> None:
        await asyncio.gather(*(server.close() for server in self._servers))
