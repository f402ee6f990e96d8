"""A server of the listening edge for any handler, and clients of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeAlias

import aiohttp
import pytest

from gateway.transport import Handler
from gateway.transports.aiohttp_server import AiohttpServer

TIMEOUT_S = 5.0
Serve: TypeAlias = Callable[[Handler], Awaitable[int]]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """Starts a server for a handler and gives its port."""
    servers = []

    async def start(handler: Handler) -> int:
        server = AiohttpServer(handler)
        servers.append(server)
        return await server.start("127.0.0.1", 0)

    yield start
    for server in servers:
        await server.stop(grace_s=0)


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=TIMEOUT_S)) as session:
        yield session


async def raw(port: int, data: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    await writer.drain()
    return reader, writer


async def within(awaitable: Awaitable[object]) -> object:
    return await asyncio.wait_for(awaitable, TIMEOUT_S)
