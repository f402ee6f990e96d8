"""Laws of the listening edge: requests as they come, answers as they are written."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator

import aiohttp
import pytest

from gateway.core.transport import BodyTooLarge, Request, Responder
from tests.transport.conftest import Serve, raw, within


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
            await responder.open_stream(200, [])
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


async def test_header_bytes_that_are_no_utf8_do_no_harm(serve: Serve) -> None:
    async def handler(request: Request, responder: Responder) -> None:
        await responder.reply(200, [("X-Echo", request.headers["x-name"])], b"")

    port = await serve(handler)
    reader, writer = await raw(port, b"GET / HTTP/1.1\r\nHost: h\r\nX-Name: Jos\xe9 \xc3\xa9\r\n\r\n")
    assert "X-Echo: Jos\ufffd é\r\n".encode() in await reader.readuntil(b"\r\n\r\n")
    writer.close()


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
            await responder.open_stream(200, [])
            await responder.write(b"body")
            await responder.end()
        else:
            await responder.reply(200, [], b"body")

    port = await serve(handler)
    for path in ("/stream", "/", "/stream"):
        async with http.head(f"http://127.0.0.1:{port}{path}") as response:
            assert response.status == 200
            assert await response.read() == b""


@pytest.mark.parametrize("url", ["http://H:80/a%2Fb?c=d", "HTTPS://h:80/a%2Fb?c=d"])
async def test_a_target_may_be_a_url_of_the_host_that_is_named(serve: Serve, url: str) -> None:
    async def handler(request: Request, responder: Responder) -> None:
        await responder.reply(200, [], f"{request.path} {request.query}".encode())

    reader, writer = await raw(
        await serve(handler), f"GET {url} HTTP/1.1\r\nHost: h:80\r\nConnection: close\r\n\r\n".encode()
    )
    answer = await within(reader.read())
    assert isinstance(answer, bytes)
    assert answer.endswith(b"/a%2Fb c=d")
    writer.close()


async def test_a_client_that_may_not_have_sent_its_body_is_closed_upon(serve: Serve) -> None:
    async def handler(request: Request, responder: Responder) -> None:
        await responder.reply(401, [], b"")

    head = b"POST / HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 100\r\n\r\n"
    reader, writer = await raw(await serve(handler), head)
    answer = await within(reader.readuntil(b"\r\n\r\n"))
    assert isinstance(answer, bytes)
    assert answer.startswith(b"HTTP/1.1 401")
    assert b"connection: close" in answer.lower()
    writer.write(b"GET /hidden HTTP/1.1\r\nHost: h\r\n\r\n")
    with pytest.raises(asyncio.IncompleteReadError):
        await within(reader.readuntil(b"\r\n\r\n"))
    writer.close()


@pytest.mark.parametrize("sent", [b"GET /secret\x01 HTTP/1.1\r\nHost: h\r\n\r\n", b"GET / secret\r\n\r\n"])
async def test_what_is_no_http_is_refused_in_json_that_does_not_quote_it(serve: Serve, sent: bytes) -> None:
    async def handler(request: Request, responder: Responder) -> None:
        raise AssertionError

    reader, writer = await raw(await serve(handler), sent)
    answer = await within(reader.read())
    assert isinstance(answer, bytes)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.split()[1] == b"400"
    assert json.loads(body)["error"]["type"] == "invalid_request_error"
    assert b"secret" not in body
    writer.close()


async def test_an_upgrade_is_an_ordinary_request(serve: Serve) -> None:
    async def handler(request: Request, responder: Responder) -> None:
        if request.headers.get("upgrade") == "websocket":
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
        await responder.open_stream(200, [("Content-Type", "text/event-stream")])
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
