"""Laws of one connection with several requests: answers in order, bounded buffers, and a stated end."""

from __future__ import annotations

import asyncio
import socket

import aiohttp
import pytest

from gateway.core.transport import BodyTooLarge, Request, Responder, Timeouts
from gateway.transport import Transport
from tests.deadline import DEADLINE_S
from tests.transport.conftest import Serve, raw, within

CHUNK_BYTES = 65536


def get(path: str, *headers: str) -> bytes:
    lines = [f"GET {path} HTTP/1.1", "Host: h", *headers, "", ""]
    return "\r\n".join(lines).encode()


async def body_of(reader: asyncio.StreamReader) -> bytes:
    head = await within(reader.readuntil(b"\r\n\r\n"))
    assert isinstance(head, bytes)
    length = next(
        line.split(b":")[1] for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")
    )
    body = await within(reader.readexactly(int(length)))
    assert isinstance(body, bytes)
    return body


async def test_pipelined_requests_are_answered_in_order_one_at_a_time(serve: Serve) -> None:
    running: list[str] = []

    async def handler(request: Request, responder: Responder) -> None:
        assert not running
        running.append(request.path)
        for _ in range(10 if request.path == "/0" else 1):  # the first is the slowest
            await asyncio.sleep(0)
        await responder.reply(200, [], request.path.encode())
        running.clear()

    reader, writer = await raw(await serve(handler), b"".join(get(f"/{n}") for n in range(100)))
    assert [await body_of(reader) for _ in range(100)] == [b"/%d" % n for n in range(100)]
    writer.close()


@pytest.mark.parametrize(
    "body", ["Content-Length: 2\r\n\r\nhi", "Transfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n"]
)
@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("protocol", ["h2c", "websocket"])
async def test_a_request_behind_an_offer_of_another_protocol_is_answered_or_told_that_it_is_not(
    serve: Serve, protocol: str, streams: bool, body: str
) -> None:
    async def handler(request: Request, responder: Responder) -> None:
        text = request.path.encode() + await request.read(10)
        if not streams:
            await responder.reply(200, [], text)
            return
        await responder.open_stream(200, [])
        await responder.write(text)
        await responder.end()

    offer = f"POST /first HTTP/1.1\r\nHost: h\r\nUpgrade: {protocol}\r\nConnection: Upgrade\r\n{body}"
    reader, writer = await raw(await serve(handler), offer.encode() + get("/second", "Connection: close"))
    answer = await within(reader.read())
    assert isinstance(answer, bytes)
    assert b"/firsthi" in answer
    assert b"/second" in answer or b"connection: close" in answer.lower()
    writer.close()


@pytest.mark.parametrize("version", ["1.0", "1.1"])
async def test_a_client_that_wants_to_close_gets_its_answer_first(serve: Serve, version: str) -> None:
    async def handler(request: Request, responder: Responder) -> None:
        await responder.open_stream(200, [])
        await responder.write(b"x" * CHUNK_BYTES)
        await responder.end()

    header = "Connection: close\r\n" if version == "1.1" else ""
    reader, writer = await raw(await serve(handler), f"GET / HTTP/{version}\r\nHost: h\r\n{header}\r\n".encode())
    answer = await within(reader.read())
    assert isinstance(answer, bytes)
    assert answer.count(b"x") >= CHUNK_BYTES
    assert answer.endswith(b"\r\n0\r\n\r\n" if version == "1.1" else b"x")
    writer.close()


async def test_what_is_left_of_a_refused_body_is_no_request(serve: Serve) -> None:
    async def handler(request: Request, responder: Responder) -> None:
        try:
            await responder.reply(200, [], await request.read(10))
        except BodyTooLarge:
            await responder.reply(413, [], b"")

    hidden = get("/hidden") * 10
    head = b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % len(hidden)
    reader, writer = await raw(await serve(handler), head + hidden + get("/next", "Connection: close"))
    answer = await within(reader.read())
    assert isinstance(answer, bytes)
    statuses = [line.split()[1] for line in answer.split(b"\r\n") if line.startswith(b"HTTP/1.1")]
    assert statuses in ([b"413"], [b"413", b"200"])
    assert b"hidden" not in answer
    writer.close()


async def test_a_body_is_taken_as_fast_as_the_handler_reads_it(serve: Serve) -> None:
    """Memory holds a part of an upload that is written to a disk, not all of it."""
    first, go_on = asyncio.Event(), asyncio.Event()
    taken: list[int] = []

    async def handler(request: Request, responder: Responder) -> None:
        async for chunk in request.chunks(2**30):
            taken.append(len(chunk))
            if not first.is_set():
                first.set()
                await go_on.wait()
        await responder.reply(200, [], b"")

    total = 1000 * CHUNK_BYTES
    head = b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % total
    reader, writer = await raw(await serve(handler), head)
    sent = 0

    async def send() -> None:
        nonlocal sent
        while sent < total:
            writer.write(b"x" * CHUNK_BYTES)
            sent += CHUNK_BYTES
            await writer.drain()

    sending = asyncio.create_task(send())
    await within(first.wait())
    done, _ = await asyncio.wait([sending], timeout=0.3)
    assert not done
    assert sent < total / 2
    go_on.set()
    await within(sending)
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
    assert sum(taken) == total
    writer.close()


async def test_a_ready_socket_can_be_listened_on(transport: Transport, http: aiohttp.ClientSession) -> None:
    async def handler(request: Request, responder: Responder) -> None:
        await responder.reply(200, [], b"yes")

    sock = socket.create_server(("127.0.0.1", 0))
    sock.setblocking(False)
    server = transport.server(handler)
    port = await server.start("", 0, sock=sock)
    async with http.get(f"http://127.0.0.1:{port}/") as response:
        assert await response.read() == b"yes"
    await server.stop(grace_s=DEADLINE_S)


async def test_servers_can_share_a_port(transport: Transport, http: aiohttp.ClientSession) -> None:
    async def handler(request: Request, responder: Responder) -> None:
        await responder.reply(200, [], b"yes")

    one, other = transport.server(handler), transport.server(handler)
    port = await one.start("127.0.0.1", 0, reuse_port=True)
    assert await other.start("127.0.0.1", port, reuse_port=True) == port
    await one.stop(grace_s=0)
    async with http.get(f"http://127.0.0.1:{port}/") as response:
        assert await response.read() == b"yes"
    await other.stop(grace_s=0)


async def test_ipv6_is_served_and_called(transport: Transport) -> None:
    async def handler(request: Request, responder: Responder) -> None:
        await responder.reply(200, [], f"{request.remote} {request.headers['host']}".encode())

    server = transport.server(handler)
    try:
        port = await server.start("::1", 0)
    except OSError:
        pytest.skip("no IPv6 on this machine")
    upstream = transport.upstream()
    reply = await upstream.call("GET", f"http://[::1]:{port}/", [], None, Timeouts())
    assert await reply.read(100) == f"::1 [::1]:{port}".encode()
    await upstream.close()
    await server.stop(grace_s=0)
