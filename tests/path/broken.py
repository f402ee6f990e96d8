"""Requests that are broken in every way, each with a secret in its headers and in its body."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress

import orjson

from tests.deadline import DEADLINE_S

SECRET = "sk-do-not-log-this-0123456789abcdefghij"
S = SECRET.encode()
LINE = b"POST /v1/chat/completions HTTP/1.1\r\n"
KEY = b"Host: h\r\nAuthorization: Bearer " + S + b"\r\nX-Api-Key: " + S + b"\r\nContent-Type: application/json\r\n"
HEAD = LINE + KEY
BODY = orjson.dumps({"model": "m", "messages": [{"role": "user", "content": f"My password is {SECRET}."}]})
SIZED = b"Content-Length: %d\r\n\r\n" % len(BODY)
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"
UPGRADE = b"Connection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: " + S + b"\r\n"
CHUNK = b"%x\r\n%b\r\n" % (len(BODY), BODY)

BROKEN: Mapping[str, bytes] = {
    "a header without a colon": HEAD + S + b"\r\n" + SIZED + BODY,
    "a header with a space in its name": HEAD + b"X " + S + b": a\r\n" + SIZED + BODY,
    "a header without a name": HEAD + b": " + S + b"\r\n" + SIZED + BODY,
    "a folded header": HEAD + b" " + S + b"\r\n" + SIZED + BODY,
    "a null in a header": HEAD + b"X: \0" + S + b"\r\n" + SIZED + BODY,
    "a control character in a header": HEAD + b"X: \x01" + S + b"\r\n" + SIZED + BODY,
    "a lone carriage return": HEAD + b"X: \r" + S + b"\r\n" + SIZED + BODY,
    "a name that is no ASCII": HEAD + b"X\xff" + S + b": a\r\n" + SIZED + BODY,
    "a value that is no UTF-8": HEAD + b"X: \xff" + S + b"\r\n" + SIZED + BODY,
    "lines without carriage returns": HEAD.replace(b"\r\n", b"\n") + b"\n" + BODY,
    "a length that is no number": HEAD + b"Content-Length: " + S + b"\r\n\r\n" + BODY,
    "a negative length": HEAD + b"Content-Length: -5\r\n\r\n" + BODY,
    "an endless length": HEAD + b"Content-Length: 99999999999999999999999\r\n\r\n" + BODY,
    "two lengths": HEAD + b"Content-Length: 5\r\n" + SIZED + BODY,
    "a length and chunks": HEAD + b"Content-Length: 5\r\n" + CHUNKED + CHUNK + b"0\r\n\r\n",
    "an unknown coding": HEAD + b"Transfer-Encoding: " + S + b"\r\n\r\n" + BODY,
    "a packed body": HEAD + b"Content-Encoding: gzip\r\n" + SIZED + BODY,
    "a packed body that is none": HEAD + b"Content-Encoding: " + S + b"\r\n" + SIZED + BODY,
    "a chunk size that is none": HEAD + CHUNKED + S + b"\r\n" + BODY,
    "a negative chunk size": HEAD + CHUNKED + b"-1\r\n" + BODY,
    "an endless chunk size": HEAD + CHUNKED + b"f" * 40 + b"\r\n" + BODY,
    "a chunk without its end": HEAD + CHUNKED + b"5\r\n" + BODY,
    "a chunk extension": HEAD + CHUNKED + b"5;a=" + S + b"\x00\r\nhello\r\n0\r\n\r\n",
    "a chunk after a whole one": HEAD + CHUNKED + CHUNK + S + b"\r\n\r\n",
    "a bad trailer": HEAD + CHUNKED + CHUNK + b"0\r\n" + S + b"\r\n\r\n",
    "a long trailer": HEAD + CHUNKED + CHUNK + b"0\r\nX: " + S * 3_000 + b"\r\n\r\n",
    "an unknown method": S + b" / HTTP/1.1\r\n" + KEY + SIZED + BODY,
    "a method of odd characters": b"(" + S + b") / HTTP/1.1\r\n" + KEY + SIZED + BODY,
    "no method": b" /v1/" + S + b" HTTP/1.1\r\n" + KEY + SIZED + BODY,
    "no target": b"POST  HTTP/1.1\r\n" + KEY + SIZED + BODY,
    "a target that is no path": b"POST " + S + b" HTTP/1.1\r\n" + KEY + SIZED + BODY,
    "a target with spaces": b"POST / " + S + b" HTTP/1.1\r\n" + KEY + SIZED + BODY,
    "a target with a bad port": b"POST http://h:" + S + b"/ HTTP/1.1\r\n" + KEY + SIZED + BODY,
    "a target that is no ASCII": b"POST /\xff" + S + b" HTTP/1.1\r\n" + KEY + SIZED + BODY,
    "a tunnel": b"CONNECT " + S + b":443 HTTP/1.1\r\n" + KEY + b"\r\n" + BODY,
    "a secret in the query": b"POST /v1/chat/completions?key=" + S + b" HTTP/1.1\r\n" + KEY + SIZED + BODY,
    "an unknown protocol": b"POST / " + S + b"/1.1\r\n" + KEY + SIZED + BODY,
    "an unknown version": b"POST / HTTP/9.7\r\n" + KEY + SIZED + BODY,
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + S,
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + S,
    "no request at all": BODY + b"\r\n\r\n",
    "only line ends": b"\r\n\r\n\r\n" + BODY,
    "a head that breaks off": HEAD[:-20],
    "a body that breaks off": HEAD + b"Content-Length: 100000\r\n\r\n" + BODY,
    "chunks that break off": HEAD + CHUNKED + CHUNK,
    "garbage behind the body": HEAD + SIZED + BODY + S + b"\r\n\r\n" + BODY,
    "a longer body than said": HEAD + b"Content-Length: 5\r\n\r\n" + BODY,
    "too long a line": b"POST /" + S * 3_000 + b" HTTP/1.1\r\n" + KEY + SIZED + BODY,
    "too long a header": HEAD + b"X: " + S * 3_000 + b"\r\n" + SIZED + BODY,
    "too long a name": HEAD + S * 3_000 + b": a\r\n" + SIZED + BODY,
    "too many headers": HEAD + (b"X: " + S + b"\r\n") * 1_000 + SIZED + BODY,
    "an upgrade": HEAD + UPGRADE + SIZED + BODY,
    "an odd expectation": HEAD + b"Expect: " + S + b"\r\n" + SIZED + BODY,
    "no JSON": HEAD + b"Content-Length: %d\r\n\r\n" % (len(S) + 1) + b"{" + S,
    "JSON that is no UTF-8": HEAD + b"Content-Length: %d\r\n\r\n" % (len(S) + 3) + b'"\xff' + S + b'"',
    "a whole request": HEAD + SIZED + BODY,
}
"""Whether a transport takes each or refuses it is not the matter here."""


async def sent(port: int, raw: bytes, ends: bool = False) -> None:
    """These bytes have been read; `ends`: and nothing follows them. Another connection's answers say when."""
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    with suppress(ConnectionError):
        writer.write(raw)
        if ends:
            writer.write_eof()
        for _ in range(3):
            assert await is_alive(port)
    writer.close()


async def is_alive(port: int) -> bool:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    async with asyncio.timeout(DEADLINE_S):
        writer.write(b"GET /nothing HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
        answer = await reader.read()
    writer.close()
    return answer.startswith(b"HTTP/1.1 40")
