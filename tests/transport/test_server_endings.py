"""Laws of the listening edge: clients that leave, answers that break, a server that stops."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

import aiohttp
import pytest

from gateway.core.transport import Request, Responder
from gateway.transport import Transport
from tests.deadline import DEADLINE_S
from tests.transport.conftest import Serve, raw, within

PHASES = ["reading", "waiting", "started", "streaming"]


@pytest.mark.parametrize("num_bytes", [0, 100_000, 250_000, 1_000_000])
@pytest.mark.parametrize("phase", PHASES)
async def test_a_client_that_leaves_cancels_its_handler(serve: Serve, phase: str, num_bytes: int) -> None:
    """Also one whose body filled the buffer of its connection, which then was not read for a while."""
    reached, ended = asyncio.Event(), asyncio.Event()
    endings: list[BaseException] = []

    async def handler(request: Request, responder: Responder) -> None:
        try:
            if phase == "reading":
                reached.set()
            await request.read(num_bytes + 1)
            if phase in ("started", "streaming"):
                await responder.open_stream(200, [])
            if phase == "streaming":
                await responder.write(b"data: x\n\n")
            reached.set()
            await asyncio.Event().wait()
        except BaseException as ending:
            endings.append(ending)
            ended.set()
            raise

    length = num_bytes + (phase == "reading")
    head = b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % length
    _, writer = await raw(await serve(handler), head + b"x" * num_bytes)
    await within(reached.wait())
    writer.close()
    await within(ended.wait())
    assert isinstance(endings[0], asyncio.CancelledError | ConnectionError)


async def test_a_write_waits_for_a_slow_client_and_notices_when_it_leaves(serve: Serve) -> None:
    blocked, ended = asyncio.Event(), asyncio.Event()

    async def handler(request: Request, responder: Responder) -> None:
        await responder.open_stream(200, [])
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


async def test_every_writer_of_an_answer_goes_on_once_a_slow_client_reads(serve: Serve) -> None:
    """The parts of a list write to one client."""
    blocked, ended = asyncio.Event(), asyncio.Event()

    async def handler(request: Request, responder: Responder) -> None:
        await responder.open_stream(200, [])
        writes = [asyncio.ensure_future(responder.write(b"x" * 2**23)) for _ in range(3)]
        await asyncio.wait(writes, timeout=0.1)
        if not any(write.done() for write in writes):
            blocked.set()
        await asyncio.gather(*writes)
        await responder.end()
        ended.set()

    reader, writer = await raw(await serve(handler), b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
    await within(blocked.wait())
    async with asyncio.timeout(DEADLINE_S):
        while not (await reader.read(2**20)).endswith(b"0\r\n\r\n"):
            pass
        await ended.wait()
    writer.close()


async def broken(request: Request, responder: Responder) -> None:
    """Starts an answer and breaks it as its path says."""
    await responder.open_stream(200, [])
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


async def refused(port: int) -> None:
    """Return once the port is closed."""
    with suppress(ConnectionRefusedError):
        while True:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.close()


async def test_stopping_lets_running_answers_finish_within_the_grace(
    transport: Transport, http: aiohttp.ClientSession
) -> None:
    started, release = asyncio.Event(), asyncio.Event()

    async def handler(request: Request, responder: Responder) -> None:
        await responder.open_stream(200, [])
        started.set()
        await release.wait()
        await responder.write(b"whole")
        await responder.end()

    server = transport.server(handler)
    port = await server.start("127.0.0.1", 0)
    async with http.get(f"http://127.0.0.1:{port}/") as response:
        await within(started.wait())
        stopping = asyncio.create_task(server.stop(grace_s=DEADLINE_S))
        await within(refused(port))
        release.set()
        assert await response.read() == b"whole"
        await within(stopping)


async def test_stopping_cancels_what_runs_past_the_grace(
    transport: Transport, http: aiohttp.ClientSession
) -> None:
    cancelled = asyncio.Event()

    async def handler(request: Request, responder: Responder) -> None:
        await responder.open_stream(200, [])
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    server = transport.server(handler)
    port = await server.start("127.0.0.1", 0)
    async with http.get(f"http://127.0.0.1:{port}/") as response:
        await within(server.stop(grace_s=0.05))
        assert cancelled.is_set()
        with pytest.raises(aiohttp.ClientPayloadError):
            await response.read()
