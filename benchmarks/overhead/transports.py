"""What each transport costs with nothing on it but a relay.

    python -m benchmarks.overhead.transports [--rounds N]

The floor under `benchmarks.overhead`. Clients and upstream run on one core, the relay on another; rounds are
interleaved. `relay NAME PORT URL` runs one relay.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Literal, cast

from benchmarks.overhead.bodies import conversation
from benchmarks.overhead.cells import LOAD_CORE, PEER_CORE, SIZES, LoadCell, Reading, cells, compiled, reading
from benchmarks.overhead.peers import Peer, PeerAddress, RunningPeer, started
from benchmarks.overhead.processes import running
from benchmarks.results import command_parser, write
from gateway.core.transport import Direct, Pushing, Request, Responder, Timeouts, Upstream, UpstreamReply
from gateway.transport import transport_of
from tests.real.process import free_port

NAMES = ("aiohttp", "fast")
CELLS = ("s1", "s32", "b32", "st50", "st500")
MAX_BYTES = 2**25


def main() -> int:
    parser = command_parser(__doc__, __file__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cells", default=",".join(CELLS))
    parser.add_argument("relay", nargs="*", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.relay:
        _, name, port, url = options.relay
        return run_relay(name, int(port), url)
    with tempfile.TemporaryDirectory(prefix="turngate-transports-") as folder:
        figures = measured(options.rounds, options.cells.split(","), Path(folder))
    print(table(figures))
    write(options.results, "transports", table(figures), figures)
    return 0


Readings = dict[str, dict[str, list[Reading]]]


def measured(rounds: int, names: list[str], folder: Path) -> Readings:
    upstream, load = compiled(folder)
    some = [cell for cell in cells(folder, is_quick=False) if cell.name in names]
    figures: Readings = {cell.name: {name: [] for name in NAMES} for cell in some}
    with ExitStack() as stack:
        port = free_port()
        stack.enter_context(running([upstream, str(port)], folder / "upstream.log", LOAD_CORE))
        body = conversation(SIZES["s"])[0]
        asking = [stack.enter_context(started(peer(name), port, folder, PEER_CORE, body)) for name in NAMES]
        for _ in range(rounds):
            for cell in some:
                for one in asking:
                    figures[cell.name][one.peer.name].append(take_reading(load, cell, one))
    return figures


def take_reading(load: Path, cell: LoadCell, one: RunningPeer) -> Reading:
    taken = reading(load, cell, one)
    print(f"{cell.name:6} {one.peer.name:8} {taken.cpu_us or 0:8.1f} us {taken.errors} errors", file=sys.stderr)
    return taken


def peer(name: str) -> Peer:
    def command(at: PeerAddress) -> tuple[str, ...]:
        return (sys.executable, "-m", "benchmarks.overhead.transports", "relay", name, str(at.port), at.url)

    return Peer(name, command)


def table(figures: Readings) -> str:
    lines = [
        "CPU microseconds per request, or per chunk of a stream: median (range). p50: of the answer, or a chunk.",
        "",
        "| cell | aiohttp | fast | ratio, same round | p50 aiohttp ms | p50 fast ms | errors |",
        "|---|---|---|---|---|---|---|",
    ]
    for cell, of in figures.items():
        slow, fast = ([reading.cpu_us or 0.0 for reading in of[name]] for name in NAMES)
        ratios = [b / a for a, b in zip(slow, fast, strict=True)]
        p50s = [f"{median(reading.p50_ms for reading in of[name]):.3f}" for name in NAMES]
        errors = sum(reading.errors for rows in of.values() for reading in rows)
        lines.append(
            f"| {cell} | {_range(slow)} | {_range(fast)} | {_range(ratios, 2)} | {' | '.join(p50s)} | {errors} |"
        )
    return "\n".join(lines)


def _range(values: list[float], digits: int = 0) -> str:
    return f"{median(values):.{digits}f} ({min(values):.{digits}f}-{max(values):.{digits}f})"


def run_relay(name: str, port: int, url: str) -> int:
    with asyncio.Runner(loop_factory=import_module("uvloop").new_event_loop) as runner:
        runner.run(relay(cast(Literal["aiohttp", "fast"], name), port, url))
    return 0


async def relay(name: Literal["aiohttp", "fast"], port: int, url: str) -> None:
    transport = transport_of(name)
    upstream = transport.upstream()
    server = transport.server(lambda request, responder: answer(upstream, url, request, responder))
    await server.start("127.0.0.1", port)
    await asyncio.Event().wait()


async def answer(upstream: Upstream, url: str, request: Request, responder: Responder) -> None:
    body = await request.read(MAX_BYTES)
    headers = [("Content-Type", "application/json")]
    reply = await upstream.call(request.method, url + request.path, headers, body or None, Timeouts())
    headers_out = [("Content-Type", reply.headers.get("content-type", ""))]
    if not headers_out[0][1].startswith("text/event-stream"):
        await responder.reply(reply.status, headers_out, await reply.read(MAX_BYTES))
    else:
        await responder.open_stream(reply.status, headers_out)
        await stream(reply, responder)
        await responder.end()
    reply.close(reuse=True)


async def stream(reply: UpstreamReply, responder: Responder) -> None:
    """As `gateway.request.upstream_response` does."""
    chunks, direct = reply.chunks(), responder if isinstance(responder, Direct) else None

    def sink(chunks: list[bytes]) -> int:
        if direct is None or not direct.is_ready:
            return 0
        direct.write_now(b"".join(chunks))
        return len(chunks)

    while True:
        if isinstance(reply, Pushing):
            reply.push(sink)
        chunk = await anext(chunks, None)
        if chunk is None:
            return
        await responder.write(chunk)


if __name__ == "__main__":
    sys.exit(main())
