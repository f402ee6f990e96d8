"""An engine that answers each call with one shape of `tests/fuzz/shapes.py`.

    python -m benchmarks.overhead.hostile_engine

It serves the model `m`, and prints its port. `POST /shape` says what all later calls are answered with.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from typing import cast

import orjson

from tests.fuzz.shapes import ANSWERS, CHAT, ERRORS, SPOKEN, STREAMS

MODELS = b'{"object":"list","data":[{"id":"m","object":"model","max_model_len":100000000}]}'
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
JSON_TYPE, STREAM_TYPE = "application/json", "text/event-stream"


def whole(status: int, body: bytes, kind: str = JSON_TYPE) -> bytes:
    head = f"HTTP/1.1 {status} x\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def streamed(chunks: list[bytes]) -> bytes:
    """An answer whose chunks stay apart."""
    head = f"HTTP/1.1 200 OK\r\nContent-Type: {STREAM_TYPE}\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    return head + b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"


def repeats(size_of: Callable[[int], int], most_bytes: int) -> int:
    """How many repeats make about `most_bytes`, and no more; at least one."""
    num = 64
    while num > 1:
        size = size_of(num)
        if 0.9 * most_bytes <= size <= most_bytes:
            break
        larger = max(1, int(num * min(64.0, 0.97 * most_bytes / max(1, size))))
        if larger == num:
            break
        num = larger
    return num


def wire_of(kind: str, name: str, most_bytes: int) -> bytes | None:
    """What calls are answered with; None: a short stream in the format of each call."""
    if kind == "stream":
        chunks = STREAMS[name][2]
        return streamed(chunks(repeats(lambda num: sum(map(len, chunks(num))), most_bytes)))
    if kind == "answer":
        answer = ANSWERS[name][2]
        return whole(200, orjson.dumps(answer(repeats(lambda num: len(orjson.dumps(answer(num))), most_bytes))))
    if kind == "error":
        error = ERRORS[name][1]
        return whole(400, error(repeats(lambda num: len(error(num)), most_bytes)))
    return None


class Connection(asyncio.Protocol):
    answers: Mapping[str, bytes] = {path: streamed(spoken(["hi"])) for path, spoken in SPOKEN.items()}
    wire: bytes | None = None
    """Of the current shape; common to all connections."""

    def __init__(self) -> None:
        self._held = bytearray()
        self._left = 0
        """Bytes of a body that are still to come."""
        self._path = self._method = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._held += data
        if not self._left:
            end = self._held.find(b"\r\n\r\n")
            if end < 0:
                return
            head = bytes(self._held[: end + 2])
            self._method, self._path = head.split(b" ", 2)[0].decode(), head.split(b" ", 2)[1].decode()
            found = _LENGTH.search(head)
            self._left = end + 4 + (int(found[1]) if found else 0)
            self._body_at = end + 4
        if len(self._held) >= self._left:
            body = bytes(self._held[self._body_at : self._left]) if self._path == "/shape" else b""
            self._held, self._left = bytearray(), 0
            self._transport.write(self._answer(body))
            if self._path == "/shape":
                self._transport.close()

    def _answer(self, body: bytes) -> bytes:
        if self._path == "/shape":
            Connection.wire = wire_of(*orjson.loads(body))
            return whole(200, b"{}")
        if self._method == "GET":
            pages = {"/v1/models": MODELS, "/version": b'{"version":"0.32.0"}', "/health": b"{}"}
            return whole(200, pages[self._path]) if self._path in pages else whole(404, b"{}")
        return Connection.wire or self.answers.get(self._path, self.answers[CHAT])


async def main() -> None:
    server = await asyncio.get_running_loop().create_server(Connection, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
