"""Laws of the fast listening edge that the one over aiohttp does not keep: that ends a pipeline at a bad request
without the answers before it, gives up the body of a request to upgrade, and has no time-out for a slow client."""

from __future__ import annotations

import asyncio
import random
import socket
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from gateway.core.transport import Handler, Request, Responder
from gateway.transport.fast.request import COUNTED_BYTES
from gateway.transport.fast.server import Connection, FastServer
from gateway.transport.fast.timeouts import ConnectionLimits
from tests.clock import Clock
from tests.deadline import DEADLINE_S
from tests.transport.conftest import Serve, raw, within
from tests.transport.test_server_pipelining import CHUNK_BYTES, body_of, get

SHORT_S = 0.05
Limited = Callable[[Handler, ConnectionLimits], Awaitable[int]]


@pytest.fixture
async def limited() -> AsyncIterator[Limited]:
    servers: list[FastServer] = []

    async def start(handler: Handler, limits: ConnectionLimits) -> int:
        servers.append(server := FastServer(handler, limits))
        return await server.start("127.0.0.1", 0)

    yield start
    for server in servers:
        await server.stop(grace_s=0)


async def echo(request: Request, responder: Responder) -> None:
    await responder.reply(200, [], request.path.encode() + b" " + await request.read(100))


async def test_a_bad_request_behind_good_ones_waits_for_their_answers(serve: Serve) -> None:
    async def handler(request: Request, responder: Responder) -> None:
        await asyncio.sleep(0.01)
        await responder.reply(200, [], request.path.encode())

    reader, writer = await raw(await serve(handler), get("/1") + get("/2") + b"nonsense\r\n\r\n")
    assert [await body_of(reader), await body_of(reader)] == [b"/1", b"/2"]
    rest = await within(reader.read())
    assert isinstance(rest, bytes)
    assert rest.split()[1] == b"400"
    writer.close()


@pytest.mark.parametrize("is_chunked", [False, True], ids=["length", "chunks"])
async def test_a_request_that_asks_to_upgrade_keeps_its_body(serve: Serve, is_chunked: bool) -> None:
    """Java's HTTP client asks for h2c with every first POST."""
    head = b"POST / HTTP/1.1\r\nHost: h\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
    framed = (
        b"Transfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n" if is_chunked else b"Content-Length: 2\r\n\r\nhi"
    )
    reader, writer = await raw(await serve(echo), head + framed + get("/next"))
    assert [await body_of(reader), await body_of(reader)] == [b"/ hi", b"/next "]
    writer.close()


async def closed(reader: asyncio.StreamReader) -> bytes:
    """What still comes before the server closes."""
    answer = await within(reader.read())
    assert isinstance(answer, bytes)
    return answer


@pytest.mark.parametrize(
    ("sent", "limits", "answer"),
    [
        (b"", ConnectionLimits(idle_s=SHORT_S), b""),
        (b"GET / HTTP/1.1\r\nHo", ConnectionLimits(head_s=SHORT_S), b"408"),
        (b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\nhi", ConnectionLimits(body_s=SHORT_S), b"400"),
    ],
    ids=["nothing", "a head", "a body"],
)
async def test_a_client_that_stops_sending_is_told_and_closed(
    limited: Limited, sent: bytes, limits: ConnectionLimits, answer: bytes
) -> None:
    reader, writer = await raw(await limited(echo, limits), sent)
    assert (await closed(reader))[9:12] == answer
    writer.close()


async def test_a_head_that_drips_is_no_reason_to_wait_longer(limited: Limited) -> None:
    reader, writer = await raw(
        await limited(echo, ConnectionLimits(head_s=SHORT_S)), b"GET / HTTP/1.1\r\nHost: h\r\n"
    )
    answer = asyncio.create_task(closed(reader))
    while not answer.done():
        writer.write(b"X: y\r\n")
        await asyncio.sleep(SHORT_S / 5)
    assert answer.result().startswith(b"HTTP/1.1 408 ")
    writer.close()


async def test_a_handler_that_takes_its_time_is_left_alone(serve: Serve, clock: Clock) -> None:
    has_begun, goes_on = asyncio.Event(), asyncio.Event()

    async def handler(request: Request, responder: Responder) -> None:
        has_begun.set()
        await goes_on.wait()
        await responder.reply(200, [], b"late")

    reader, writer = await raw(await serve(handler), get("/"))
    await within(has_begun.wait())
    await clock.passes(600)
    goes_on.set()
    assert await body_of(reader) == b"late"
    writer.close()


async def test_a_client_that_takes_nothing_of_its_answer_is_gone(limited: Limited) -> None:
    """It holds a slot at an engine."""
    ended = asyncio.Event()

    async def handler(request: Request, responder: Responder) -> None:
        await responder.open_stream(200, [])
        try:
            while True:
                await responder.write(b"x" * CHUNK_BYTES)
        finally:
            ended.set()

    _, writer = await raw(await limited(handler, ConnectionLimits(write_s=SHORT_S)), get("/"))
    await within(ended.wait())
    writer.transport.abort()


async def test_headers_and_trailers_are_bounded_however_they_are_cut(serve: Serve) -> None:
    port = await serve(echo)
    for begin in (
        b"GET / HTTP/1.1\r\nX: ",
        b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: ",
    ):
        reader, writer = await raw(port, begin)
        answer = asyncio.create_task(closed(reader))
        for _ in range(100):
            if writer.transport.is_closing():
                break
            writer.write(b"x" * 1000)
            await asyncio.sleep(0)
        assert (await answer).startswith(b"HTTP/1.1 400 ")
        writer.close()


@pytest.mark.parametrize("trailers", [b"X: " + b"x" * 100_000 + b"\r\n", b"X: y\r\n" * 129], ids=["long", "many"])
@pytest.mark.parametrize("cut_bytes", [10, 10**9])
async def test_trailers_that_come_whole_are_bounded_like_headers(
    serve: Serve, trailers: bytes, cut_bytes: int
) -> None:
    begin = (
        b"POST / HTTP/1.1\r\nHost: h\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n"
    )
    sent = begin + trailers + b"\r\n"
    reader, writer = await raw(await serve(echo), sent[:cut_bytes])
    writer.write(sent[cut_bytes:])
    assert (await closed(reader)).startswith(b"HTTP/1.1 400 ")
    writer.close()


async def test_nothing_is_left_of_connections_that_ended(limited: Limited) -> None:
    server = FastServer(echo)
    port = await server.start("127.0.0.1", 0)
    for data in (get("/"), b"nonsense\r\n\r\n", b"GET / HT", b""):
        _, writer = await raw(port, data)
        writer.transport.abort()
    async with asyncio.timeout(DEADLINE_S):
        while server.connections:
            await asyncio.sleep(0.001)
    await server.stop(grace_s=0)


async def test_requests_behind_the_last_answer_of_a_draining_server_are_dropped(limited: Limited) -> None:
    server = FastServer(echo)
    port = await server.start("127.0.0.1", 0)
    server.is_draining = True
    reader, writer = await raw(port, get("/1") + get("/2") + b"nonsense\r\n\r\n")
    answer = await closed(reader)
    assert answer.count(b"HTTP/1.1 ") == 1
    assert b"Connection: close" in answer
    writer.close()
    await server.stop(grace_s=0)


async def test_bodies_that_come_in_place_are_whole_and_what_follows_is_the_next_request(serve: Serve) -> None:
    async def handler(request: Request, responder: Responder) -> None:
        await responder.reply(200, [], str(zlib.crc32(await request.read(2**24))).encode())

    bodies = [random.Random(size).randbytes(size) for size in (3 * COUNTED_BYTES, 2**20, 2**22)]
    head = b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n"
    sent = b"".join(head % len(body) + body for body in bodies)
    reader, writer = await raw(await serve(handler), sent[:100_000])
    writer.write(sent[100_000:] + get("/"))
    for body in [*bodies, b""]:
        assert await body_of(reader) == str(zlib.crc32(body)).encode()
    writer.close()


async def test_a_body_that_comes_in_place_may_be_asked_for(serve: Serve) -> None:
    async def handler(request: Request, responder: Responder) -> None:
        await responder.reply(200, [], str(len(await request.read(2**24))).encode())

    head = b"POST / HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 1000000\r\n\r\n"
    reader, writer = await raw(await serve(handler), head)
    assert await within(reader.readuntil(b"\r\n\r\n")) == b"HTTP/1.1 100 Continue\r\n\r\n"
    writer.write(bytes(1_000_000) + get("/"))
    assert [await body_of(reader), await body_of(reader)] == [b"1000000", b"0"]
    writer.close()


async def test_a_handler_that_gives_up_a_body_answers_and_drops_the_rest(serve: Serve) -> None:
    async def handler(request: Request, responder: Responder) -> None:
        reading.set()
        try:
            async with asyncio.timeout(SHORT_S):
                await request.read(2**24)
        except TimeoutError:
            await responder.reply(408, [], b"too slow")
        else:
            await responder.reply(200, [], b"whole")

    reading, half = asyncio.Event(), bytes(2**20)
    head = b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % (2 * len(half))
    reader, writer = await raw(await serve(handler), head + half)
    await reading.wait()
    assert await body_of(reader) == b"too slow"
    writer.write(half + get("/"))
    assert await body_of(reader) == b"whole"
    writer.close()


@pytest.mark.parametrize("connection", ["close", "keep-alive"])
async def test_the_loop_goes_round_for_each_block_of_a_body_that_is_dropped(
    serve: Serve, connection: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """libuv receives further blocks of a connection, up to 32, as long as they come full."""

    async def handler(request: Request, responder: Responder) -> None:
        await responder.reply(400, [], b"no")

    num_rounds = 0

    async def count_rounds() -> None:
        nonlocal num_rounds
        while True:
            num_rounds += 1
            await asyncio.sleep(0)

    def noted(connection: Connection, data: bytes) -> None:
        rounds.append(num_rounds)
        receive(connection, data)

    rounds, receive = list[int](), Connection.data_received
    monkeypatch.setattr(Connection, "data_received", noted)
    beside = asyncio.create_task(count_rounds())
    head = f"POST / HTTP/1.1\r\nHost: h\r\nConnection: {connection}\r\nContent-Length: {2**24}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", await serve(handler))) as client:
        await asyncio.to_thread(client.sendall, head.encode())
        assert (await asyncio.to_thread(client.recv, 1000)).startswith(b"HTTP/1.1 400")
        await asyncio.to_thread(client.sendall, bytes(2**24))
        if connection == "keep-alive":
            await asyncio.to_thread(client.sendall, get("/"))
            assert (await asyncio.to_thread(client.recv, 1000)).startswith(b"HTTP/1.1 400")
    beside.cancel()
    assert len(rounds) > 2**24 / 2**19
    assert max(Counter(rounds).values()) <= 2
