"""Laws of the calling edge, against real servers and raw sockets."""

from __future__ import annotations

import asyncio
import gzip
import socket
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest
from aiohttp import web

from gateway.core.transport import Timeouts, Upstream, UpstreamCut, UpstreamRefused
from tests.deadline import DEADLINE_S
from tests.transport.conftest import within

TIMEOUTS = Timeouts(connect_s=DEADLINE_S, first_byte_s=DEADLINE_S, idle_s=DEADLINE_S)
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


class Engine:
    """A raw server; `act(connection number, reader, writer)` plays each connection."""

    def __init__(self, act: Callable[[int, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]) -> None:
        self._act = act
        self.num_connections = 0
        self.num_gone = 0
        self.gone = asyncio.Event()
        """Set when a peer has closed its connection."""

    async def __aenter__(self) -> str:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/v1"

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        try:
            await self._act(self.num_connections, reader, writer)
            await reader.read()
        except ConnectionError:
            pass
        finally:
            self.gone.set()
            writer.close()


async def take(reader: asyncio.StreamReader, length: int = 0) -> bytes:
    """One request head; `length` bytes of body are read and dropped."""
    head = await reader.readuntil(b"\r\n\r\n")
    await reader.readexactly(length)
    return head


async def test_only_the_given_headers_are_sent(upstream: Upstream) -> None:
    heads: list[bytes] = []

    async def act(_: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await take(reader, 2))
        writer.write(OK)

    async with Engine(act) as url:
        given = [
            ("X-a", "Jos\udce9"),
            ("X-a", "2"),
            ("Connection", "upgrade"),
            ("Content-Length", "99"),
            ("Host", "other"),
        ]
        reply = await upstream.call("POST", url + "/a%2Fb?q=%20", given, b"{}", TIMEOUTS)
        assert await reply.read(10) == b"ok"
    lines = heads[0].decode().split("\r\n")
    assert lines[0] == "POST /v1/a%2Fb?q=%20 HTTP/1.1"
    names = sorted(line.split(":")[0] for line in lines[1:] if line)
    assert names == ["Content-Length", "Host", "X-a", "X-a"]
    assert "Content-Length: 2" in lines


async def test_a_body_of_many_megabytes_arrives_whole(upstream: Upstream) -> None:
    async def handler(request: web.Request) -> web.Response:
        return web.Response(text=str(len(await request.read())))

    app = web.Application(client_max_size=10**8)
    app.router.add_post("/", handler)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/"
    reply = await upstream.call("POST", url, [], b"x" * 5_000_000, TIMEOUTS)
    assert await reply.read(100) == b"5000000"
    await runner.cleanup()


async def test_the_answer_is_given_as_it_came(upstream: Upstream) -> None:
    body = gzip.compress(b"hello")

    async def act(_: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await take(reader)
        head = b"HTTP/1.1 307 Moved\r\nLocation: /x\r\nSet-Cookie: a=1\r\nx-A: 1\r\nX-a: 2\r\n"
        writer.write(head + b"Content-Encoding: gzip\r\n" + b"Content-Length: %d\r\n\r\n" % len(body) + body)

    async with Engine(act) as url:
        reply = await upstream.call("GET", url, [], None, TIMEOUTS)
        assert reply.status == 307
        assert [item for item in reply.header_list if item[0].lower() == "x-a"] == [("x-A", "1"), ("X-a", "2")]
        assert b"".join([chunk async for chunk in reply.chunks()]) == body


async def test_chunks_come_as_they_arrive(upstream: Upstream) -> None:
    seen = asyncio.Event()

    async def act(_: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await take(reader)
        writer.write(CHUNKED + b"1\r\na\r\n")
        await within(seen.wait())
        writer.write(b"1\r\nb\r\n0\r\n\r\n")

    async with Engine(act) as url:
        reply = await upstream.call("GET", url, [], None, TIMEOUTS)
        chunks = reply.chunks()
        assert await anext(chunks) == b"a"
        seen.set()
        assert await anext(chunks) == b"b"
        with pytest.raises(StopAsyncIteration):
            await anext(chunks)


async def test_whole_answers_share_a_connection(upstream: Upstream) -> None:
    async def act(_: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(3):
            await take(reader)
            writer.write(OK)

    engine = Engine(act)
    async with engine as url:
        for _ in range(3):
            reply = await upstream.call("GET", url, [], None, TIMEOUTS)
            assert await reply.read(10) == b"ok"
            reply.close(reuse=True)
        assert engine.num_connections == 1


async def test_a_closed_port_is_refused(upstream: Upstream) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(UpstreamRefused):
            await upstream.call("GET", f"http://127.0.0.1:{taken.getsockname()[1]}/", [], None, TIMEOUTS)


async def test_an_unknown_host_is_refused(upstream: Upstream) -> None:
    with pytest.raises(UpstreamRefused):
        await upstream.call("GET", "http://turngate.invalid/", [], None, TIMEOUTS)


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 200", b"nonsense\r\n\r\n"])
async def test_a_connection_that_ends_before_the_headers_is_cut(upstream: Upstream, answer: bytes) -> None:
    async def act(_: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await take(reader, 2)
        writer.write(answer)
        writer.close()

    engine = Engine(act)
    async with engine as url:
        with pytest.raises(UpstreamCut):
            await upstream.call("POST", url, [], b"{}", TIMEOUTS)
        assert engine.num_connections == 1


@pytest.mark.parametrize("head", [CHUNKED + b"5\r\nab", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab"])
async def test_a_body_that_breaks_off_is_cut_not_ended(upstream: Upstream, head: bytes) -> None:
    async def act(_: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await take(reader)
        writer.write(head)
        writer.close()

    async with Engine(act) as url:
        reply = await upstream.call("GET", url, [], None, TIMEOUTS)
        with pytest.raises(UpstreamCut):
            async for _ in reply.chunks():
                pass


async def test_an_answer_above_the_limit_is_cut(upstream: Upstream) -> None:
    async def act(_: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await take(reader)
        writer.write(OK)

    async with Engine(act) as url:
        reply = await upstream.call("GET", url, [], None, TIMEOUTS)
        with pytest.raises(UpstreamCut, match="longer than 1 bytes"):
            await reply.read(1)


async def silent(_: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await take(reader)


async def test_an_engine_that_never_answers_is_cut_after_the_first_byte_time(upstream: Upstream) -> None:
    engine = Engine(silent)
    async with engine as url:
        with pytest.raises(UpstreamCut, match="silent"):
            await upstream.call("GET", url, [], None, Timeouts(first_byte_s=0.05))
        await within(engine.gone.wait())


async def test_an_engine_that_falls_silent_is_cut_after_the_idle_time(upstream: Upstream) -> None:
    async def act(_: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await take(reader)
        writer.write(CHUNKED)

    async with Engine(act) as url:
        reply = await upstream.call("GET", url, [], None, Timeouts(first_byte_s=None, idle_s=0.05))
        with pytest.raises(UpstreamCut, match="silent"):
            await anext(reply.chunks())
        reply.close(reuse=False)


async def test_a_cancelled_call_closes_its_connection_at_once(upstream: Upstream) -> None:
    has_begun = asyncio.Event()

    async def act(_: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await take(reader)
        has_begun.set()

    engine = Engine(act)
    async with engine as url:
        call = asyncio.create_task(upstream.call("GET", url, [], None, TIMEOUTS))
        await within(has_begun.wait())
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await within(engine.gone.wait())


@pytest.mark.parametrize("reuse", [False, True])
async def test_closing_an_unread_answer_closes_its_connection(upstream: Upstream, reuse: bool) -> None:
    async def act(_: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await take(reader)
        writer.write(CHUNKED + b"1\r\na\r\n")

    engine = Engine(act)
    async with engine as url:
        reply = await upstream.call("GET", url, [], None, TIMEOUTS)
        reply.close(reuse=reuse)
        await within(engine.gone.wait())


async def test_a_stale_pooled_connection_is_replaced_unseen(upstream: Upstream) -> None:
    upstream = cast(Any, type(upstream))(stale_within_s=DEADLINE_S)

    async def act(number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await take(reader)
        writer.write(OK)
        if number == 1:
            # What a server does whose keep-alive time ends while the next request is on its way.
            await take(reader, 2)
            writer.transport.abort()
        await take(reader, 2)
        writer.write(OK)

    engine = Engine(act)
    async with engine as url:
        await (await upstream.call("GET", url, [], None, TIMEOUTS)).read(10)
        reply = await upstream.call("POST", url, [], b"{}", TIMEOUTS)
        assert await reply.read(10) == b"ok"
        assert engine.num_connections == 2
    await upstream.close()


async def test_a_call_that_an_engine_worked_on_is_not_sent_twice(upstream: Upstream) -> None:
    upstream = cast(Any, type(upstream))(stale_within_s=-1.0)

    async def act(_: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await take(reader)
        writer.write(OK)
        await take(reader, 2)
        writer.transport.abort()

    engine = Engine(act)
    async with engine as url:
        await (await upstream.call("GET", url, [], None, TIMEOUTS)).read(10)
        with pytest.raises(UpstreamCut):
            await upstream.call("POST", url, [], b"{}", TIMEOUTS)
        assert engine.num_connections == 1
    await upstream.close()
