"""Laws of the calling edge: every way in which an answer can be framed, and what may be sent again."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path

import pytest

from gateway.core.slices import LARGE_BYTES
from gateway.core.transport import HeaderList, Timeouts, Upstream, UpstreamCut, UpstreamRefused, joined
from tests.clock import Clock
from tests.deadline import DEADLINE_S
from tests.transport.conftest import within
from tests.transport.test_upstream import CHUNKED, OK, TIMEOUTS, Engine, take

Act = Callable[[int, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def answering(*answers: bytes, closes: bool = False) -> Act:
    """One answer per request of a connection; `closes` after the last."""

    async def act(_: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for answer in answers:
            await take(reader)
            writer.write(answer)
        if closes:
            writer.close()

    return act


@pytest.mark.parametrize(
    "early", [b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n", b"HTTP/1.1 100 Continue\r\n\r\n" * 2]
)
async def test_interim_answers_are_skipped(upstream: Upstream, early: bytes) -> None:
    engine = Engine(answering(early + OK, OK))
    async with engine as url:
        for _ in range(2):
            reply = await upstream.call("GET", url, [], None, TIMEOUTS)
            assert (reply.status, "link" in reply.headers) == (200, False)
            assert await reply.read(10) == b"ok"
        assert engine.num_connections == 1


@pytest.mark.parametrize("framing", ["length", "chunks", "end"])
@pytest.mark.parametrize("num_bytes", [LARGE_BYTES - 1, LARGE_BYTES, 5 * LARGE_BYTES + 1])
async def test_a_large_answer_is_read_whole_however_it_is_framed(
    upstream: Upstream, framing: str, num_bytes: int
) -> None:
    body = bytes(range(251)) * (num_bytes // 251 + 1)
    body = body[:num_bytes]
    answers = {
        "length": b"Content-Length: %d\r\n\r\n%b" % (num_bytes, body),
        "chunks": b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (num_bytes, body),
        "end": b"\r\n%b" % body,
    }
    async with Engine(answering(b"HTTP/1.1 200 OK\r\n" + answers[framing], closes=True)) as url:
        reply = await upstream.call("GET", url, [], None, TIMEOUTS)
        assert await reply.read(num_bytes) == body
    async with Engine(answering(b"HTTP/1.1 200 OK\r\n" + answers[framing], closes=True)) as url:
        reply = await upstream.call("GET", url, [], None, TIMEOUTS)
        with pytest.raises(UpstreamCut, match="longer than"):
            await reply.read(num_bytes - 1)


async def test_a_large_answer_of_known_length_takes_its_length_of_memory_and_is_not_joined() -> None:
    class Coming:
        status = 200
        header_list: HeaderList = ()
        headers: Mapping[str, str] = {"content-length": str(100 * LARGE_BYTES)}

        async def chunks(self) -> AsyncIterator[bytes]:
            for number in range(100):
                yield bytes([number]) * LARGE_BYTES

        async def read(self, limit_bytes: int) -> bytes:
            return await joined(self, limit_bytes)

        def close(self, *, reuse: bool) -> None: ...

    tracemalloc.start()
    try:
        body = await Coming().read(2**30)
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert body == b"".join(bytes([number]) * LARGE_BYTES for number in range(100))
    assert most_bytes < 110 * LARGE_BYTES


async def test_an_answer_may_end_with_its_connection(upstream: Upstream) -> None:
    engine = Engine(answering(b"HTTP/1.1 200 OK\r\n\r\nall of it", closes=True))
    async with engine as url:
        for _ in range(2):
            reply = await upstream.call("GET", url, [], None, TIMEOUTS)
            assert await reply.read(100) == b"all of it"
        assert engine.num_connections == 2


async def test_a_connection_that_its_engine_will_close_is_not_used_again(upstream: Upstream) -> None:
    closing = OK.replace(b"OK\r\n", b"OK\r\nConnection: close\r\n")
    engine = Engine(answering(closing))
    async with engine as url:
        for _ in range(2):
            assert await (await upstream.call("GET", url, [], None, TIMEOUTS)).read(10) == b"ok"
        assert engine.num_connections == 2


@pytest.mark.parametrize("status", [b"204 No Content", b"304 Not Modified"])
async def test_an_answer_without_a_body_leaves_the_connection_usable(upstream: Upstream, status: bytes) -> None:
    engine = Engine(answering(b"HTTP/1.1 %b\r\n\r\n" % status, OK))
    async with engine as url:
        assert await (await upstream.call("GET", url, [], None, TIMEOUTS)).read(10) == b""
        assert await (await upstream.call("GET", url, [], None, TIMEOUTS)).read(10) == b"ok"
        assert engine.num_connections == 1


async def test_head_has_the_length_and_no_body(upstream: Upstream) -> None:
    async with Engine(answering(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n")) as url:
        reply = await upstream.call("HEAD", url, [], None, TIMEOUTS)
        assert reply.headers["content-length"] == "5"
        assert await reply.read(10) == b""


async def test_trailers_and_extensions_are_no_part_of_a_body(upstream: Upstream) -> None:
    body = b"2;a=b\r\nok\r\n0\r\nX-Trailer: y\r\n\r\n"
    engine = Engine(answering(CHUNKED + body, OK))
    async with engine as url:
        for _ in range(2):
            reply = await upstream.call("GET", url, [], None, TIMEOUTS)
            assert await reply.read(10) == b"ok"
            assert "x-trailer" not in reply.headers
        assert engine.num_connections == 1


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok!",
        b"HTTP/1.1 200 OK\r\nX: " + b"a" * 200_000 + b"\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.2\r\n",
    ],
    ids=["two lengths", "a long header", "another protocol"],
)
async def test_an_answer_that_is_not_http_is_cut(upstream: Upstream, answer: bytes) -> None:
    async with Engine(answering(answer)) as url:
        with pytest.raises(UpstreamCut):
            await (await upstream.call("GET", url, [], None, Timeouts(first_byte_s=1.0))).read(100)


async def test_bytes_after_an_answer_belong_to_no_call(upstream: Upstream) -> None:
    engine = Engine(answering(OK + OK.replace(b"ok", b"no"), OK))
    async with engine as url:
        for _ in range(2):
            assert await (await upstream.call("GET", url, [], None, TIMEOUTS)).read(10) == b"ok"
            await asyncio.sleep(0.01)
        assert engine.num_connections == 2


async def test_a_fast_engine_waits_for_a_slow_reader(upstream: Upstream, clock: Clock) -> None:
    part = b"x" * 65536
    blocked = asyncio.Event()

    async def act(_: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await take(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (1000 * len(part)))
        for _ in range(1000):
            writer.write(part)
            if not (await asyncio.wait([asyncio.ensure_future(writer.drain())], timeout=0.3))[0]:
                blocked.set()
            await writer.drain()

    async with Engine(act) as url:
        reply = await upstream.call("GET", url, [], None, Timeouts(idle_s=DEADLINE_S))
        await within(blocked.wait())
        await clock.passes(2 * DEADLINE_S)
        assert len(await reply.read(10**9)) == 1000 * len(part)


async def test_an_engine_that_answers_and_closes_in_one_go_is_read_whole(upstream: Upstream) -> None:
    async with Engine(answering(CHUNKED + b"1\r\na\r\n0\r\n\r\n", closes=True)) as url:
        reply = await upstream.call("GET", url, [], None, TIMEOUTS)
        assert [chunk async for chunk in reply.chunks()] == [b"a"]


async def test_many_calls_at_once_have_a_connection_each_and_share_them_later(upstream: Upstream) -> None:
    together = asyncio.Barrier(20)

    async def act(_: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await take(reader)
        await together.wait()
        writer.write(OK)
        while True:
            await take(reader)
            writer.write(OK)

    engine = Engine(act)

    async def call(url: str) -> bytes:
        return await (await upstream.call("GET", url, [], None, TIMEOUTS)).read(10)

    async with engine as url:
        assert await asyncio.gather(*[call(url) for _ in range(20)]) == [b"ok"] * 20
        assert [await call(url) for _ in range(20)] == [b"ok"] * 20
        assert engine.num_connections == 20


@pytest.mark.parametrize("url", ["ftp://h/", "http://", "http://h:port/", "nonsense", "http://[::1/"])
async def test_what_is_no_url_is_refused(upstream: Upstream, url: str) -> None:
    with pytest.raises((UpstreamRefused, UpstreamCut)):
        await within(upstream.call("GET", url, [], None, TIMEOUTS))


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
async def test_an_engine_with_an_unknown_certificate_is_refused(upstream: Upstream, tmp_path: Path) -> None:
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    made = ["openssl", "req", "-x509", "-nodes", "-newkey", "rsa:2048", "-subj", "/CN=localhost", "-days", "1"]
    subprocess.run([*made, "-keyout", key, "-out", cert], check=True, capture_output=True)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(cert, key)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await take(reader)
        writer.write(OK)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=tls)
    port = server.sockets[0].getsockname()[1]
    with pytest.raises(UpstreamRefused, match="certificate"):
        await upstream.call("GET", f"https://127.0.0.1:{port}/", [], None, Timeouts(connect_s=DEADLINE_S))
    server.close()


@pytest.mark.parametrize("rest", [b"nonsense\r\n", b"2\r\nlonger than two\r\n"])
@pytest.mark.parametrize("closes", [True, False])
async def test_an_answer_that_becomes_nonsense_breaks_off_at_once(
    upstream: Upstream, rest: bytes, closes: bool
) -> None:
    has_begun = asyncio.Event()

    async def act(_: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await take(reader)
        writer.write(CHUNKED + b"5\r\nhello\r\n")
        await has_begun.wait()
        writer.write(rest)
        if closes:
            writer.close()

    async with Engine(act) as url:
        reply = await upstream.call("GET", url, [], None, TIMEOUTS)
        assert await within(anext(reply.chunks())) == b"hello"
        has_begun.set()
        with pytest.raises(UpstreamCut) as cut:
            await within(reply.read(1_000))
        assert not cut.value.is_silent
        reply.close(reuse=False)
