"""A request that two servers could read differently is answered 400 and its connection closes, or the stated
outcome of this table; nothing after it is ever taken for a request."""

from __future__ import annotations

import asyncio
import re

import pytest

from gateway.core.transport import Request, Responder, Timeouts, Upstream, UpstreamCut, UpstreamRefused
from tests.transport.conftest import Serve, raw, within

POST = b"POST / HTTP/1.1\r\nHost: h\r\n"
GET = b"GET / HTTP/1.1\r\nHost: h\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"
HIDDEN = b"GET /hidden HTTP/1.1\r\nHost: h\r\n\r\n"
NEXT = HIDDEN.replace(b"hidden", b"next")

REFUSED = {
    "both lengths": POST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "both lengths, chunked first": POST + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
    "two lengths": POST + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\nhi",
    "the same length twice": POST + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\nhi",
    "a list of lengths": POST + b"Content-Length: 2, 2\r\n\r\nhi",
    "a signed length": POST + b"Content-Length: +2\r\n\r\nhi",
    "a negative length": POST + b"Content-Length: -2\r\n\r\nhi",
    "a hexadecimal length": POST + b"Content-Length: 0x2\r\n\r\nhi",
    "an empty length": POST + b"Content-Length:\r\n\r\nhi",
    "a length with underscores": POST + b"Content-Length: 1_0\r\n\r\n0123456789",
    "another coding": POST + b"Transfer-Encoding: gzip\r\n\r\n",
    "another coding before chunked": POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "another coding after chunked": POST + b"Transfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n",
    "chunked twice": POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunked twice in a list": POST + b"Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
    "nearly chunked": POST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "chunked behind a control": POST + b"Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n",
    "identity": POST + b"Transfer-Encoding: identity\r\n\r\n",
    "chunked in 1.0": b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a folded header": GET + b"X: a\r\n b\r\n\r\n",
    "a folded length": POST + b"Content-Length:\r\n 2\r\n\r\nhi",
    "a head with bare LFs": b"GET / HTTP/1.1\nHost: h\n\n",
    "a header with a bare LF": GET + b"X: a\nY: b\r\n\r\n",
    "a bare CR in a value": GET + b"X: a\rb\r\n\r\n",
    "NUL in a value": GET + b"X: a\0b\r\n\r\n",
    "a control in a value": GET + b"X: a\x01b\r\n\r\n",
    "a space before the colon": GET + b"X : a\r\n\r\n",
    "a space before the length's colon": POST + b"Content-Length : 2\r\n\r\nhi",
    "a space before the first header": b"GET / HTTP/1.1\r\n Host: h\r\n\r\n",
    "a header without a colon": GET + b"X\r\n\r\n",
    "a header without a name": GET + b": a\r\n\r\n",
    "a name that is no token": GET + b"X(y): a\r\n\r\n",
    "a chunk size that is no number": CHUNKED + b"g\r\nhi\r\n0\r\n\r\n",
    "a signed chunk size": CHUNKED + b"+2\r\nhi\r\n0\r\n\r\n",
    "a negative chunk size": CHUNKED + b"-2\r\nhi\r\n0\r\n\r\n",
    "a prefixed chunk size": CHUNKED + b"0x2\r\nhi\r\n0\r\n\r\n",
    "a chunk size with a space": CHUNKED + b"2 \r\nhi\r\n0\r\n\r\n",
    "an empty chunk size": CHUNKED + b"\r\nhi\r\n0\r\n\r\n",
    "a chunk size with a bare LF": CHUNKED + b"2\nhi\r\n0\r\n\r\n",
    "a chunk longer than it says": CHUNKED + b"2\r\nhix\r\n0\r\n\r\n",
    "a bare LF in a chunk extension": CHUNKED + b"2;a\nb\r\nhi\r\n0\r\n\r\n",
    "a length in the trailers": CHUNKED + b"2\r\nhi\r\n0\r\nContent-Length: 9\r\n\r\n",
    "an absolute target": b"GET http://other/x HTTP/1.1\r\nHost: h\r\n\r\n",
    "an absolute target with a name": b"GET http://user@h/x HTTP/1.1\r\nHost: h\r\n\r\n",
    "an absolute target without a host": b"GET http:///x HTTP/1.1\r\nHost: \r\n\r\n",
    "an absolute target of another scheme": b"GET ftp://h/x HTTP/1.1\r\nHost: h\r\n\r\n",
    "an authority for a target": b"GET other:80 HTTP/1.1\r\nHost: h\r\n\r\n",
    "a tunnel": b"CONNECT other:80 HTTP/1.1\r\nHost: h\r\n\r\n",
    "a relative target": b"GET x HTTP/1.1\r\nHost: h\r\n\r\n",
    "a target with a space": b"GET /a b HTTP/1.1\r\nHost: h\r\n\r\n",
    "no host": b"GET / HTTP/1.1\r\n\r\n",
    "two hosts": GET + b"Host: other\r\n\r\n",
    "no version": b"GET /\r\n\r\n",
    "another version": b"GET / HTTP/2.0\r\nHost: h\r\n\r\n",
    "a version that is none": b"GET / HTTP/1.2\r\nHost: h\r\n\r\n",
    "a method that is no token": b"G(T / HTTP/1.1\r\nHost: h\r\n\r\n",
    "the preface of HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "a long header": GET + b"X: " + b"a" * 70_000 + b"\r\n\r\n",
    "many headers": GET + b"".join(b"X-%d: a\r\n" % n for n in range(200)) + b"\r\n",
    "a long target": b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\nHost: h\r\n\r\n",
}


@pytest.mark.parametrize("data", REFUSED.values(), ids=REFUSED)
async def test_what_can_be_read_in_two_ways_is_refused(serve: Serve, data: bytes) -> None:
    seen: list[str] = []

    async def handler(request: Request, responder: Responder) -> None:
        seen.append(request.path)
        await responder.reply(200, [], await request.read(100))

    reader, writer = await raw(await serve(handler), data + HIDDEN)
    answer = await within(reader.read())
    writer.close()
    assert isinstance(answer, bytes)
    assert re.findall(rb"HTTP/1\.[01] (\d+)", answer) == [b"400"], answer[:200]
    assert "/hidden" not in seen


async def echo(request: Request, responder: Responder) -> None:
    await responder.reply(200, [], request.path.encode() + b" " + await request.read(100))


PASSED = {
    "a chunk with an extension": (CHUNKED + b"2;a=b\r\nhi\r\n0\r\n\r\n", b"/ hi"),
    "trailers": (CHUNKED + b"2\r\nhi\r\n0\r\nX: y\r\n\r\n", b"/ hi"),
    "another case of chunked": (POST + b"transfer-encoding: Chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n", b"/ hi"),
    "a body with a GET": (GET + b"Content-Length: 2\r\n\r\nhi", b"/ hi"),
    "two slashes": (b"GET //other/x HTTP/1.1\r\nHost: h\r\n\r\n", b"//other/x "),
    "dots": (b"GET /a/../b/%2e%2e HTTP/1.1\r\nHost: h\r\n\r\n", b"/a/../b/%2e%2e "),
    "a CRLF before it": (b"\r\n" + GET + b"\r\n", b"/ "),
}


@pytest.mark.parametrize(("data", "body"), PASSED.values(), ids=PASSED)
@pytest.mark.parametrize("is_dripped", [False, True], ids=["at once", "byte by byte"])
async def test_what_passes_ends_where_it_says(serve: Serve, data: bytes, body: bytes, is_dripped: bool) -> None:
    """The next request is read apart, and headers of a trailer belong to no request."""
    reader, writer = await raw(await serve(echo), b"")
    for part in [bytes([byte]) for byte in data + NEXT] if is_dripped else [data + NEXT]:
        writer.write(part)
        await asyncio.sleep(0)
    for expected in (body, b"/next "):
        head = await within(reader.readuntil(b"\r\n\r\n"))
        assert isinstance(head, bytes)
        assert head.startswith(b"HTTP/1.1 200 ")
        assert await within(reader.readexactly(len(expected))) == expected
    writer.close()


@pytest.mark.parametrize(
    "evil", ["a\r\nX-Evil: 1", "a\nX-Evil: 1", "a\rX-Evil: 1", "a\r\n\r\nHTTP/1.1 200 OK", "a\0b"]
)
async def test_a_header_that_we_write_cannot_end_its_line(serve: Serve, evil: str) -> None:
    async def handler(request: Request, responder: Responder) -> None:
        headers = [("X-Value", evil), (f"X-{evil}", "1")]
        if request.path == "/stream":
            await responder.open_stream(200, headers)
            await responder.end()
        else:
            await responder.reply(200, headers, b"")

    port = await serve(handler)
    for path in (b"/", b"/stream"):
        reader, writer = await raw(port, b"GET %b HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n" % path)
        answer = await within(reader.read())
        assert isinstance(answer, bytes)
        assert not re.search(rb"[\r\n]X-Evil|\0", answer)
        assert answer.count(b"\r\n\r\n") == (1 if path == b"/" else 2)
        writer.close()


async def test_a_header_that_we_send_to_an_engine_cannot_end_its_line(upstream: Upstream) -> None:
    taken = asyncio.get_running_loop().create_future()

    async def engine(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        taken.set_result(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(engine, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    headers = [("X-Value", "a\r\nX-Evil: 1"), ("X-\nX-Evil", "1")]
    await (await upstream.call("GET", url, headers, None, Timeouts())).read(10)
    assert not re.search(rb"[\r\n]X-Evil", taken.result())
    for evil in ("x HTTP/1.1\r\nX-Evil: 1", "a b"):
        with pytest.raises((UpstreamRefused, UpstreamCut)):
            await upstream.call("GET", url + evil, [], None, Timeouts(first_byte_s=1))
    server.close()
