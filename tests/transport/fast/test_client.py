"""Laws of the fast calling edge: aiohttp reads its certificates once per process and takes a 101 for an answer."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
from pathlib import Path

import pytest

from gateway.core.transport import Timeouts, Upstream, UpstreamCut
from gateway.transport.fast import client as pools
from tests.deadline import DEADLINE_S
from tests.transport.test_upstream import CHUNKED, OK, TIMEOUTS, Engine, take
from tests.transport.test_upstream_answers import answering


async def test_an_answer_that_changes_the_protocol_is_cut(upstream: Upstream) -> None:
    upgrade = b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n"
    async with Engine(answering(upgrade)) as url:
        with pytest.raises(UpstreamCut):
            await upstream.call("GET", url, [], None, Timeouts(first_byte_s=1.0))


async def test_a_call_that_an_interim_answer_came_to_is_not_sent_twice(upstream: Upstream) -> None:
    async def act(_: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await take(reader)
        writer.write(OK)
        await take(reader, 2)
        writer.write(b"HTTP/1.1 103 Early Hints\r\n\r\n")
        writer.close()

    engine = Engine(act)
    async with engine as url:
        await (await upstream.call("GET", url, [], None, TIMEOUTS)).read(10)
        with pytest.raises(UpstreamCut):
            await upstream.call("POST", url, [], b"{}", TIMEOUTS)
        assert engine.num_connections == 1


async def test_a_request_that_was_not_taken_whole_ends_its_connection(upstream: Upstream) -> None:
    """The rest of it would be read as the next request."""

    async def act(_: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await take(reader)
        writer.write(OK)

    engine = Engine(act)
    async with engine as url:
        reply = await upstream.call("POST", url, [], b"x" * 50_000_000, TIMEOUTS)
        assert await reply.read(10) == b"ok"
        assert await (await upstream.call("GET", url, [], None, TIMEOUTS)).read(10) == b"ok"
        assert engine.num_connections == 2


async def test_idle_connections_are_closed_before_their_engine_does(
    upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pools, "KEEPALIVE_S", 0.05)
    engine = Engine(answering(OK))
    async with engine as url:
        times = Timeouts(idle_s=0.05)
        await (await upstream.call("GET", url, [], None, times)).read(10)
        async with asyncio.timeout(DEADLINE_S):
            await engine.gone.wait()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
async def test_an_engine_is_called_over_tls(
    upstream: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    made = ["openssl", "req", "-x509", "-nodes", "-newkey", "rsa:2048", "-subj", "/CN=localhost", "-days", "1"]
    names = ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    subprocess.run([*made, *names, "-keyout", key, "-out", cert], check=True, capture_output=True)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(cert, key)
    monkeypatch.setenv("SSL_CERT_FILE", str(cert))

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(2):
            await take(reader, 2)
            writer.write(CHUNKED + b"2\r\nok\r\n0\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=tls)
    url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    for _ in range(2):
        assert await (await upstream.call("POST", url, [], b"{}", TIMEOUTS)).read(10) == b"ok"
    server.close()


async def test_thousands_of_chunks_that_come_in_one_read_are_handed_over_in_slices(
    upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pools, "MOST_LINES", 100)
    monkeypatch.setattr(pools, "LARGE_READ_BYTES", 1_000)
    monkeypatch.setattr(pools, "SLICE_BYTES", 60)
    text = bytes(ord("a") + at % 26 for at in range(50_000))
    chunks = b"".join(b"1\r\n%c\r\n" % char for char in text)
    async with Engine(answering(CHUNKED + chunks + b"0\r\n\r\n", OK)) as url:
        reply = await upstream.call("GET", url, [], None, TIMEOUTS)
        taken = [chunk async for chunk in reply.chunks()]
        assert b"".join(taken) == text
        assert max(map(len, taken)) <= 200
        assert await (await upstream.call("GET", url, [], None, TIMEOUTS)).read(10) == b"ok"
