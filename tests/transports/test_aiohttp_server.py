"""Laws of the listening edge."""

from __future__ import annotations

import asyncio
import gzip
import logging
from collections.abc import AsyncIterator, Awaitable, Callable

import aiohttp
import pytest

from gateway.transport import BodyTooLarge, Handler, Request, Responder
from gateway.transports.aiohttp_server import AiohttpServer

TIMEOUT_S = 5.0
PHASES = ["reading", "waiting", "started", "streaming"]
Serve = Callable[[Handler], Awaitable[int]]


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


async def echo(request: Request, responder: Responder) -> None:
    body = await request.read(1000)
    await responder.reply(200, [("Content-Type", "text/plain")], body)


async def test_a_request_arrives_as_it_was_sent(serve: Serve) -> None:
    seen: list[Request] = []

    async def handler(request: Request, responder: Responder) -> None:
        seen.append(request)
        await responder.reply(200, [], await request.read(1000))

    port = await serve(handler)
    head = b"POST /a%2Fb//c?x=%20y&x HTTP/1.1\r\nhost: h\r\nX-One: 1\r\nx-ONE: 2\r\nContent-Length: 5\r\n\r\n"
    reader, writer = await raw(port, head + b"\x00{ }\xff")
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 OK\r\n")
    assert await reader.readexactly(5) == b"\x00{ }\xff"
    request = seen[0]
    assert (request.method, request.path, request.query) == ("POST", "/a%2Fb//c", "x=%20y&x")
    assert list(request.header_list)[1:3] == [("X-One", "1"), ("x-ONE", "2")]
    assert request.headers["x-one"] == "1"
    assert request.remote == "127.0.0.1"
    writer.close()


async def test_a_connection_lives_on_after_whole_answers(serve: Serve) -> None:
    async def handler(request: Request, responder: Responder) -> None:
        if request.path == "/stream":
            await responder.start(200, [])
            await responder.write(b"data: x\n\n")
            await responder.end()
        else:
            await echo(request, responder)

    port = await serve(handler)
    reader, writer = await raw(port, b"POST /stream HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nhi")
    assert b"chunked" in await reader.readuntil(b"\r\n\r\n")
    assert await reader.readuntil(b"0\r\n\r\n") == b"9\r\ndata: x\n\n\r\n0\r\n\r\n"
    for _ in range(2):
        writer.write(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nhi")
        await reader.readuntil(b"\r\n\r\n")
        assert await reader.readexactly(2) == b"hi"
    writer.close()


async def test_headers_of_one_connection_are_not_relayed_and_the_rest_is(
    serve: Serve, http: aiohttp.ClientSession
) -> None:
    async def handler(request: Request, responder: Responder) -> None:
        headers = [("Transfer-Encoding", "gzip"), ("Connection", "close"), ("X-a", "1"), ("X-a", "2")]
        await responder.reply(201, [*headers, ("Content-Length", "77")], b"abc")

    async with http.get(f"http://127.0.0.1:{await serve(handler)}/") as response:
        assert response.status == 201
        assert response.headers.getall("X-a") == ["1", "2"]
        assert response.headers["Content-Length"] == "3"
        assert "Transfer-Encoding" not in response.headers
        assert "aiohttp" not in response.headers["Server"]
        assert await response.read() == b"abc"


@pytest.mark.parametrize("is_chunked", [False, True])
async def test_a_body_above_the_limit_is_told_apart(
    serve: Serve, http: aiohttp.ClientSession, is_chunked: bool
) -> None:
    async def handler(request: Request, responder: Responder) -> None:
        try:
            await request.read(10)
        except BodyTooLarge:
            await responder.reply(413, [], b"")

    async def pieces() -> AsyncIterator[bytes]:
        yield b"x" * 6
        yield b"x" * 6

    url = f"http://127.0.0.1:{await serve(handler)}/"
    async with http.post(url, data=pieces() if is_chunked else b"x" * 12) as response:
        assert response.status == 413


async def test_a_compressed_body_is_refused_clearly(serve: Serve, http: aiohttp.ClientSession) -> None:
    port = await serve(echo)
    headers = {"Content-Encoding": "gzip"}
    async with http.post(f"http://127.0.0.1:{port}/", data=gzip.compress(b"{}"), headers=headers) as response:
        assert response.status == 415
        assert "Content-Encoding" in (await response.json())["error"]["message"]


async def test_a_client_that_expects_100_gets_it_once_the_body_is_wanted(serve: Serve) -> None:
    port = await serve(echo)
    head = b"POST / HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n"
    reader, writer = await raw(port, head)
    assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    writer.write(b"hi")
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
    assert await reader.readexactly(2) == b"hi"
    writer.close()


async def test_head_gets_the_headers_alone(serve: Serve, http: aiohttp.ClientSession) -> None:
    async def handler(request: Request, responder: Responder) -> None:
        if request.path == "/stream":
            await responder.start(200, [])
            await responder.write(b"body")
            await responder.end()
        else:
            await responder.reply(200, [], b"body")

    port = await serve(handler)
    for path in ("/stream", "/", "/stream"):
        async with http.head(f"http://127.0.0.1:{port}{path}") as response:
            assert response.status == 200
            assert await response.read() == b""


async def test_an_upgrade_is_an_ordinary_request(serve: Serve) -> None:
    async def handler(request: Request, responder: Responder) -> None:
        if request.headers.get("Upgrade") == "websocket":
            await responder.reply(426, [("Upgrade", "HTTP/1.1"), ("Connection", "Upgrade")], b"")
        else:
            await responder.reply(200, [], b"")

    port = await serve(handler)
    upgrade = b"GET /v1/responses HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
    reader, writer = await raw(port, upgrade)
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 426 ")
    assert b"\r\nUpgrade: HTTP/1.1\r\n" in head
    writer.write(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
    writer.close()


async def test_each_write_goes_out_at_once(serve: Serve, http: aiohttp.ClientSession) -> None:
    seen = asyncio.Event()

    async def handler(request: Request, responder: Responder) -> None:
        await responder.start(200, [("Content-Type", "text/event-stream")])
        await within(seen.wait())
        for number in b"12":
            seen.clear()
            await responder.write(b"data: %c\n\n" % number)
            await within(seen.wait())
        await responder.end()

    async with http.get(f"http://127.0.0.1:{await serve(handler)}/") as response:
        seen.set()
        for number in b"12":
            assert await response.content.readany() == b"data: %c\n\n" % number
            seen.set()
        assert await response.content.readany() == b""


@pytest.mark.parametrize("phase", PHASES)
async def test_a_client_that_leaves_cancels_its_handler(serve: Serve, phase: str) -> None:
    reached, ended = asyncio.Event(), asyncio.Event()
    endings: list[BaseException] = []

    async def handler(request: Request, responder: Responder) -> None:
        try:
            if phase == "reading":
                reached.set()
            await request.read(1000)
            if phase in ("started", "streaming"):
                await responder.start(200, [])
            if phase == "streaming":
                await responder.write(b"data: x\n\n")
            reached.set()
            await asyncio.Event().wait()
        except BaseException as ending:
            endings.append(ending)
            ended.set()
            raise

    length = 1 if phase == "reading" else 0
    _, writer = await raw(
        await serve(handler), b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % length
    )
    await within(reached.wait())
    writer.close()
    await within(ended.wait())
    assert isinstance(endings[0], asyncio.CancelledError | ConnectionError)


async def test_a_write_waits_for_a_slow_client_and_notices_when_it_leaves(serve: Serve) -> None:
    blocked, ended = asyncio.Event(), asyncio.Event()

    async def handler(request: Request, responder: Responder) -> None:
        await responder.start(200, [])
        try:
            for _ in range(2000):
                write = asyncio.ensure_future(responder.write(b"x" * 65536))
                done, _ = await asyncio.wait([write], timeout=0.3)
                if not done:
                    blocked.set()
                await write
        except (asyncio.CancelledError, ConnectionError):
            ended.set()
            raise

    _, writer = await raw(await serve(handler), b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
    await within(blocked.wait())  # long before 128 MB
    writer.close()
    await within(ended.wait())


async def broken(request: Request, responder: Responder) -> None:
    """Starts an answer and breaks it as its path says."""
    await responder.start(200, [])
    await responder.write(b"data: x\n\n")
    if request.path == "/reset":
        responder.reset()
    elif request.path == "/raise":
        raise RuntimeError("secret")


@pytest.mark.parametrize("path", ["/reset", "/raise", "/return"])
async def test_a_cut_answer_is_never_a_clean_end(serve: Serve, http: aiohttp.ClientSession, path: str) -> None:
    async with http.get(f"http://127.0.0.1:{await serve(broken)}{path}") as response:
        assert await response.content.readany() == b"data: x\n\n"
        with pytest.raises(aiohttp.ClientPayloadError):
            await response.content.readany()


async def test_a_cut_answer_without_chunks_is_a_connection_reset(serve: Serve) -> None:
    reader, writer = await raw(await serve(broken), b"GET /reset HTTP/1.0\r\n\r\n")
    with pytest.raises(ConnectionResetError):
        await within(reader.read())
    writer.close()


async def test_a_failing_handler_is_a_500_that_tells_nothing(
    serve: Serve, http: aiohttp.ClientSession, caplog: pytest.LogCaptureFixture
) -> None:
    async def handler(request: Request, responder: Responder) -> None:
        if request.path == "/raise":
            raise RuntimeError("secret")

    port = await serve(handler)
    with caplog.at_level(logging.ERROR):
        async with http.get(f"http://127.0.0.1:{port}/raise") as response:
            assert response.status == 500
            assert "secret" not in await response.text()
        async with http.get(f"http://127.0.0.1:{port}/nothing") as response:
            assert response.status == 500
    assert "secret" in caplog.text


async def test_stopping_lets_running_answers_finish_within_the_grace(http: aiohttp.ClientSession) -> None:
    started, release = asyncio.Event(), asyncio.Event()

    async def handler(request: Request, responder: Responder) -> None:
        await responder.start(200, [])
        started.set()
        await release.wait()
        await responder.write(b"whole")
        await responder.end()

    server = AiohttpServer(handler)
    port = await server.start("127.0.0.1", 0)
    async with http.get(f"http://127.0.0.1:{port}/") as response:
        await within(started.wait())
        stopping = asyncio.create_task(server.stop(grace_s=TIMEOUT_S))
        await asyncio.wait([stopping], timeout=0.05)
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)
        release.set()
        assert await response.read() == b"whole"
        await within(stopping)


async def test_stopping_cancels_what_runs_past_the_grace(http: aiohttp.ClientSession) -> None:
    cancelled = asyncio.Event()

    async def handler(request: Request, responder: Responder) -> None:
        await responder.start(200, [])
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    server = AiohttpServer(handler)
    port = await server.start("127.0.0.1", 0)
    async with http.get(f"http://127.0.0.1:{port}/") as response:
        await within(server.stop(grace_s=0.05))
        assert cancelled.is_set()
        with pytest.raises(aiohttp.ClientPayloadError):
            await response.read()
