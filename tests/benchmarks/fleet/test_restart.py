"""The balancer in front of a gateway that is restarted: new connections go to the one that is up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from benchmarks.fleet.restart import Balancer
from tests.deadline import DEADLINE_S


@asynccontextmanager
async def echo(name: bytes) -> AsyncIterator[str]:
    """A server that answers each line with its name; its base URL."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.readline():
            writer.write(name + b"\n")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    yield "http://{}:{}".format(*server.sockets[0].getsockname())
    server.close()


async def connect(base_url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = base_url.partition("://")[2].rpartition(":")
    return await asyncio.open_connection(host, int(port))


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    writer.write(b"?\n")
    return await reader.readline()


async def test_connections_stay_where_they_are_and_new_ones_go_to_the_next_gateway() -> None:
    balancer = Balancer()
    async with asyncio.timeout(DEADLINE_S), echo(b"old") as old, echo(b"new") as new, balancer.serving() as url:
        balancer.point_at(old)
        first = await connect(url)
        assert await ask(*first) == b"old\n"
        balancer.point_at(new)
        second = await connect(url)
        assert [await ask(*each) for each in (first, second)] == [b"old\n", b"new\n"]
        for _, writer in (first, second):
            writer.close()


async def test_while_no_gateway_is_up_connections_end_at_once() -> None:
    balancer = Balancer()
    async with asyncio.timeout(DEADLINE_S), balancer.serving() as url:
        reader, writer = await connect(url)
        assert await reader.read() == b""
        writer.close()
        balancer.point_at("http://127.0.0.1:1")  # nothing listens there
        reader, writer = await connect(url)
        assert await reader.read() == b""
        writer.close()
