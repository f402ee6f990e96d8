"""Many streaming clients in one loop: what they receive, in which order, and how late."""

from __future__ import annotations

import asyncio
import random
import re
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from typing import cast

import orjson

_SENT_NS = re.compile(rb"T=(\d{19})")
"""The upstream's clock when it sent a chunk; its clients' is the same."""
_DONE = b"data: [DONE]\n\n\r\n0\r\n\r\n"
SETTLE_S = 1.0
"""After the last stream began."""
SLACK_S = 30.0
"""After the last chunk was due, before what is missing counts as an error."""


@dataclass(frozen=True, slots=True)
class Plan:
    """So many streams at once, each with so many chunks."""

    streams: int
    chunks: int
    gap_ms: int
    spread_s: float = 5.0
    """Over which they begin, at random times."""

    @property
    def length_s(self) -> float:
        return self.chunks * self.gap_ms / 1000


@dataclass
class Heard:
    """What all clients of one run received."""

    late_us: array[int] = field(default_factory=lambda: array("I"))
    """Of each chunk that came once all streams had begun, from the upstream's sending to here."""
    first_us: array[int] = field(default_factory=lambda: array("I"))
    """Of each stream, from the request to its first chunk."""
    counts_from_ns: int = 0
    chunks: int = 0
    ended: int = 0
    """Streams with a whole answer."""
    reordered: int = 0
    missing: int = 0
    errors: list[str] = field(default_factory=list)

    def late_ms(self, quantile: float) -> float:
        return _quantile(self.late_us, quantile)

    def first_ms(self, quantile: float) -> float:
        return _quantile(self.first_us, quantile)


class Client(asyncio.Protocol):
    """One request on a connection of its own."""

    def __init__(self, request: bytes, chunks: int, heard: Heard, left: Callable[[], None]) -> None:
        self._request = request
        self._chunks = chunks
        self._heard = heard
        self._left = left
        self._count = 0
        self._latest_ns = 0
        self._rest = b""
        self._is_over = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._asked_ns = time.monotonic_ns()
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        now, heard = time.monotonic_ns(), self._heard
        if self._rest:
            data = self._rest + data
        end = 0
        for found in _SENT_NS.finditer(data):
            sent_ns, end = int(found[1]), found.end()
            heard.chunks += 1
            if now >= heard.counts_from_ns:
                heard.late_us.append((now - sent_ns) // 1000)
            heard.reordered += sent_ns < self._latest_ns
            self._latest_ns = sent_ns
            if not self._count:
                heard.first_us.append((now - self._asked_ns) // 1000)
            self._count += 1
        self._rest = data[max(end, len(data) - len(_DONE) - 22) :]
        if data.endswith(_DONE):
            self._over("")

    def connection_lost(self, error: Exception | None) -> None:
        self._over(str(error or "closed"))

    def _over(self, fault: str) -> None:
        if self._is_over:
            return
        self._is_over = True
        if fault:
            self._heard.errors.append(f"after {self._count} chunks: {fault}; {self._rest[-80:]!r}")
        else:
            self._heard.ended += 1
        self._heard.missing += max(0, self._chunks - self._count)
        self._transport.close()
        self._left()


def run(plan: Plan, port: int, each_s: Callable[[float], None] = lambda elapsed_s: None) -> Heard:
    """All streams of a plan against a port. `each_s` is called once a second with the time since the start."""
    with asyncio.Runner(loop_factory=import_module("uvloop").new_event_loop) as runner:
        return runner.run(_run(plan, port, each_s))


async def _run(plan: Plan, port: int, each_s: Callable[[float], None]) -> Heard:
    loop, heard, rng = asyncio.get_running_loop(), Heard(), random.Random(0)
    over = asyncio.Event()
    num_left = plan.streams

    def left() -> None:
        nonlocal num_left
        num_left -= 1
        if not num_left:
            over.set()

    async def begin(number: int, at_s: float) -> None:
        await asyncio.sleep(at_s)
        request = asking(plan, number)
        await loop.create_connection(lambda: Client(request, plan.chunks, heard, left), "127.0.0.1", port)

    starts = [begin(number, rng.uniform(0, plan.spread_s)) for number in range(plan.streams)]
    started_at = loop.time()
    heard.counts_from_ns = time.monotonic_ns() + int((plan.spread_s + SETTLE_S) * 1e9)
    begun = asyncio.gather(*starts)
    while not over.is_set() and loop.time() - started_at < plan.spread_s + plan.length_s + SLACK_S:
        each_s(loop.time() - started_at)
        await asyncio.wait([asyncio.ensure_future(over.wait())], timeout=1.0)
    await begun
    if num_left:
        heard.errors.append(f"{num_left} streams did not end")
    return heard


def asking(plan: Plan, number: int) -> bytes:
    """A small chat request of its own conversation."""
    messages = [{"role": "user", "content": f"Task {number:06d}: say what this does."}]
    options = {"stream": True, "max_tokens": plan.chunks, "seed": plan.gap_ms}
    body = orjson.dumps({"model": "fake", "messages": messages, **options})
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nContent-Length: {len(body)}\r\n"
    return f"{head}Content-Type: application/json\r\n\r\n".encode() + body


def _quantile(values: array[int], quantile: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * quantile))] / 1000 if values else 0.0
