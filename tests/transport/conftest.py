"""A server of the listening edge for any handler, and clients of it, over each transport."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import TypeAlias

import aiohttp
import pytest

from gateway.core.transport import Handler, Server, Upstream
from gateway.transport import Transport, transport_of
from tests.clock import clock as clock
from tests.deadline import DEADLINE_S
from tests.transport.loops import AIOHTTP, FAST, FAST_ON_ASYNCIO, LoopFactory, carrier

Serve: TypeAlias = Callable[[Handler], Awaitable[int]]


def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> Mapping[str, LoopFactory]:
    on_asyncio = (AIOHTTP if item.path.parent.name != "fast" else {}) | FAST_ON_ASYNCIO
    return on_asyncio if "clock" in getattr(item, "fixturenames", ()) else on_asyncio | FAST


@pytest.fixture
async def transport() -> Transport:
    name = carrier()
    return transport_of("aiohttp" if name == "aiohttp" else "fast")


@pytest.fixture
async def serve(transport: Transport) -> AsyncIterator[Serve]:
    """Starts a server for a handler and gives its port."""
    servers: list[Server] = []

    async def start(handler: Handler) -> int:
        servers.append(server := transport.server(handler))
        return await server.start("127.0.0.1", 0)

    yield start
    for server in servers:
        await server.stop(grace_s=0)


@pytest.fixture
async def upstream(transport: Transport) -> AsyncIterator[Upstream]:
    upstream = transport.upstream()
    yield upstream
    await upstream.close()


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=DEADLINE_S)) as session:
        yield session


async def raw(port: int, data: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    await writer.drain()
    return reader, writer


async def within(awaitable: Awaitable[object]) -> object:
    return await asyncio.wait_for(awaitable, DEADLINE_S)
