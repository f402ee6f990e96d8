"""How many streams one worker holds.

    python -m benchmarks.overhead.streams [--quick] [--transport NAME]

500 streams of 20 chunks a second for a minute; then faster until chunks come more than 20 ms late; then 2,000
streams that are open and nearly silent. Clients and upstream run on one core, the gateway on another.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import resource
import sys
import tempfile
import time
from array import array
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from statistics import mean
from typing import cast

import orjson

from benchmarks.overhead.bodies import conversation
from benchmarks.overhead.cells import LOAD_CORE, PEER_CORE, SIZES, compiled
from benchmarks.overhead.peers import Peer, PeerAddress, RunningPeer, started
from benchmarks.overhead.processes import running
from benchmarks.results import command_parser, write
from tests.real.process import free_port

_SENT_NS = re.compile(rb"T=(\d{19})")
"""The upstream's clock when it sent a chunk; its clients' is the same."""
_DONE = b"data: [DONE]\n\n\r\n0\r\n\r\n"
SETTLE_S = 1.0
"""After the last stream began."""
SLACK_S = 30.0
"""After the last chunk was due, before what is missing counts as an error."""


@dataclass(frozen=True, slots=True)
class StreamPlan:
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
class ReceivedChunks:
    """What all clients of one play received."""

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


class StreamClient(asyncio.Protocol):
    """One request on a connection of its own."""

    def __init__(self, request: bytes, chunks: int, received: ReceivedChunks, left: Callable[[], None]) -> None:
        self._request = request
        self._chunks = chunks
        self._received = received
        self._left = left
        self._count = 0
        self._latest_ns = 0
        self._rest = b""
        self._is_over = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._sent_ns = time.monotonic_ns()
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        now, received = time.monotonic_ns(), self._received
        if self._rest:
            data = self._rest + data
        end = 0
        for match in _SENT_NS.finditer(data):
            sent_ns, end = int(match[1]), match.end()
            received.chunks += 1
            if now >= received.counts_from_ns:
                received.late_us.append((now - sent_ns) // 1000)
            received.reordered += sent_ns < self._latest_ns
            self._latest_ns = sent_ns
            if not self._count:
                received.first_us.append((now - self._sent_ns) // 1000)
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
            self._received.errors.append(f"after {self._count} chunks: {fault}; {self._rest[-80:]!r}")
        else:
            self._received.ended += 1
        self._received.missing += max(0, self._chunks - self._count)
        self._transport.close()
        self._left()


def play(plan: StreamPlan, port: int, each_s: Callable[[float], None] = lambda elapsed_s: None) -> ReceivedChunks:
    """All streams of a plan against a port. `each_s` is called once a second with the time since the start."""
    with asyncio.Runner(loop_factory=import_module("uvloop").new_event_loop) as runner:
        return runner.run(_play(plan, port, each_s))


async def _play(plan: StreamPlan, port: int, each_s: Callable[[float], None]) -> ReceivedChunks:
    loop, received, rng = asyncio.get_running_loop(), ReceivedChunks(), random.Random(0)
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
        await loop.create_connection(lambda: StreamClient(request, plan.chunks, received, left), "127.0.0.1", port)

    starts = [begin(number, rng.uniform(0, plan.spread_s)) for number in range(plan.streams)]
    started_at = loop.time()
    received.counts_from_ns = time.monotonic_ns() + int((plan.spread_s + SETTLE_S) * 1e9)
    begun = asyncio.gather(*starts)
    while not over.is_set() and loop.time() - started_at < plan.spread_s + plan.length_s + SLACK_S:
        each_s(loop.time() - started_at)
        await asyncio.wait([asyncio.ensure_future(over.wait())], timeout=1.0)
    await begun
    if num_left:
        received.errors.append(f"{num_left} streams did not end")
    return received


def asking(plan: StreamPlan, number: int) -> bytes:
    """A small chat request of its own conversation."""
    messages = [{"role": "user", "content": f"Task {number:06d}: say what this does."}]
    options = {"stream": True, "max_tokens": plan.chunks, "seed": plan.gap_ms}
    body = orjson.dumps({"model": "fake", "messages": messages, **options})
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nContent-Length: {len(body)}\r\n"
    return f"{head}Content-Type: application/json\r\n\r\n".encode() + body


def _quantile(values: array[int], quantile: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * quantile))] / 1000 if values else 0.0


STREAMS, GAP_MS, MINUTE_S = 500, 50, 60.0
IDLE_STREAMS, IDLE_GAP_MS = 2000, 5000
SEARCH_S = 15.0
SEARCH_GAPS_MS = (40, 32, 25, 20, 16, 13, 10, 8)
MOST_ADDED_MS = 20.0
SETTLED_S = 10.0
"""Connections, pools and caches are made; from here on memory is to stay."""


@dataclass(frozen=True, slots=True)
class StreamFigures:
    """One run through the gateway, beside the same run straight to the upstream."""

    streams: int
    rate: float
    """Chunks a second, over all streams."""
    seconds: float
    errors: int
    reordered: int
    missing: int
    added_p50_ms: float
    added_p99_ms: float
    direct_p99_ms: float
    first_p99_ms: float
    cpu_us: float
    """Of the gateway, per chunk."""
    busy: float
    """Share of the gateway's core."""
    rss_settled_mb: float
    rss_end_mb: float

    @property
    def holds(self) -> bool:
        return not (self.errors or self.reordered or self.missing) and self.added_p99_ms <= MOST_ADDED_MS


def main() -> int:
    parser = command_parser(__doc__, __file__)
    parser.add_argument("--quick", action="store_true", help="under two minutes, print only")
    parser.add_argument("--transport", choices=("aiohttp", "fast"), default="fast")
    parser.add_argument("--realtime", action="store_true", help="before all other programs; needs root")
    options = parser.parse_args()
    if options.realtime:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))  # what is started here inherits it
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 16_384)), hard))
    with tempfile.TemporaryDirectory(prefix="turngate-streams-") as folder:
        minute, searched, idle = measured(options.transport, options.quick, Path(folder))
    text = table(options.transport, minute, searched, idle)
    print(text)
    data = {"transport": options.transport, "minute": minute, "search": searched, "idle": idle}
    write(None if options.quick else options.results, "streams", text, data)
    return 0 if minute.holds and not (idle.errors or idle.missing) else 1


def measured(
    transport: str, is_quick: bool, folder: Path
) -> tuple[StreamFigures, list[StreamFigures], StreamFigures]:
    upstream, _ = compiled(folder)
    with ExitStack() as stack:
        port = free_port()
        stack.enter_context(running([upstream, str(port)], folder / "upstream.log", LOAD_CORE))
        body = conversation(SIZES["s"])[0]
        gateway = stack.enter_context(started(ours(transport), port, folder, PEER_CORE, body))
        stack.callback(os.sched_setaffinity, 0, os.sched_getaffinity(0))
        os.sched_setaffinity(0, {LOAD_CORE})
        minute = figure(plan(10.0 if is_quick else MINUTE_S, GAP_MS), port, gateway)
        searched = []
        for gap_ms in SEARCH_GAPS_MS[2:3] if is_quick else SEARCH_GAPS_MS:
            searched.append(figure(plan(SEARCH_S, gap_ms), port, gateway))
            if len(searched) > 1 and not (searched[-1].holds or searched[-2].holds):
                break  # twice in a row: once may be another program's fault
        idle = figure(StreamPlan(IDLE_STREAMS, 3 if is_quick else 8, IDLE_GAP_MS), port, gateway)
    return minute, searched, idle


def plan(seconds: float, gap_ms: int) -> StreamPlan:
    return StreamPlan(STREAMS, int(seconds * 1000 / gap_ms), gap_ms)


def ours(transport: str) -> Peer:
    chosen = {
        "transport": transport,
        "logging.level": "warning",
        "policy.slots_per_replica": str(2 * IDLE_STREAMS),
    }
    settings = [part for key, value in chosen.items() for part in ("--set", f"{key}={value}")]

    def command(at: PeerAddress) -> tuple[str, ...]:
        engine = at.url.replace("http", "vllm")
        return sys.executable, "-m", "gateway", "serve", "--engine", engine, "--port", str(at.port), *settings

    return Peer(f"turngate-{transport}", command)


def figure(what: StreamPlan, upstream_port: int, gateway: RunningPeer) -> StreamFigures:
    straight = play(StreamPlan(what.streams, min(what.chunks, 10_000 // what.gap_ms), what.gap_ms), upstream_port)
    process = gateway.process
    assert process is not None
    rss: list[tuple[float, float]] = []
    cpu_s = -process.cpu_s()
    received = play(what, gateway.port, lambda elapsed_s: rss.append((elapsed_s, process.rss_mb())))
    cpu_s += process.cpu_s()
    settled = [mb for at_s, mb in rss if at_s >= min(SETTLED_S, rss[-1][0] / 2)]
    third = max(1, len(settled) // 3)
    seconds = rss[-1][0]
    figures = StreamFigures(
        streams=what.streams,
        rate=what.streams * 1000 / what.gap_ms,
        seconds=seconds,
        errors=len(received.errors),
        reordered=received.reordered,
        missing=received.missing,
        added_p50_ms=received.late_ms(0.5) - straight.late_ms(0.5),
        added_p99_ms=received.late_ms(0.99) - straight.late_ms(0.99),
        direct_p99_ms=straight.late_ms(0.99),
        first_p99_ms=received.first_ms(0.99),
        cpu_us=cpu_s * 1e6 / max(1, received.chunks),
        busy=cpu_s / seconds,
        rss_settled_mb=mean(settled[:third]),
        rss_end_mb=mean(settled[-third:]),
    )
    _say(figures, received)
    return figures


def _say(figures: StreamFigures, received: ReceivedChunks) -> None:
    print(_row("", figures), *received.errors[:3], sep="\n", file=sys.stderr, flush=True)


def table(transport: str, minute: StreamFigures, searched: list[StreamFigures], idle: StreamFigures) -> str:
    held = [one for one in searched if one.holds]
    most = f"{held[-1].rate:,.0f} chunks/s" if held else "none of these"
    return "\n".join(
        [
            f"One worker, transport `{transport}`. Late: from the upstream's sending of a chunk to its client,",
            "less the same without a gateway, once all streams have begun, which takes 5 s. Lost: answers",
            "that broke off, chunks out of order, chunks missing.",
            "",
            "| what | streams | chunks/s | s | lost | late p50 ms | late p99 ms | p99 without |"
            " first chunk p99 ms | CPU us/chunk | core busy | RSS MB settled, end |",
            "|---|---|---|---|---|---|---|---|---|---|---|---|",
            _row("a minute", minute),
            *(_row("search", one) for one in searched),
            _row("idle", idle),
            "",
            f"Highest rate with nothing lost and at most {MOST_ADDED_MS:.0f} ms added at p99: {most}.",
        ]
    )


def _row(name: str, one: StreamFigures) -> str:
    cells = [
        name,
        f"{one.streams:,}",
        f"{one.rate:,.0f}",
        f"{one.seconds:.0f}",
        f"{one.errors}, {one.reordered}, {one.missing}",
        f"{one.added_p50_ms:.2f}",
        f"{one.added_p99_ms:.2f}",
        f"{one.direct_p99_ms:.2f}",
        f"{one.first_p99_ms:.1f}",
        f"{one.cpu_us:.1f}",
        f"{one.busy:.0%}",
        f"{one.rss_settled_mb:.0f}, {one.rss_end_mb:.0f}",
    ]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(main())
