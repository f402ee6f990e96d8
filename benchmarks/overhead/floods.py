"""What memory a gateway with a small `limits.memory_bytes` takes while clients fill all that it keeps.

    python -m benchmarks.overhead.floods [--quick] [--memory-mib N]

Each flood meets a gateway of its own: sessions of 9,999 tiny messages; sessions under system texts of 200 KB,
each with one of its own; sessions of long messages; tool lists of 10 MB; receipts whose texts are as long as they
may be; bodies that are sent by half and stay so, large ones and some just below the size that needs room.
"""

from __future__ import annotations

import asyncio
import os
import resource
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import orjson

from benchmarks.overhead.bodies import conversation
from benchmarks.overhead.cells import LOAD_CORE, PEER_CORE, SIZES, compiled
from benchmarks.overhead.peers import Peer, PeerAddress, RunningPeer, started
from benchmarks.overhead.processes import running
from benchmarks.results import command_parser, write
from tests.real.process import free_port

MEMORY_MIB = 64
MOST_OVER_IDLE_MB = 164.0
"""With 64 MiB: those, and 100 MB for what runs, for the allocator and for one large body that is read alone."""
AT_ONCE = 4
SAMPLE_S = 0.1
MESSAGES, SYSTEM_BYTES, TOOL_BYTES = 9_999, 200_000, 10 * 2**20
HALF_BYTES, SMALL_BYTES = 31 * 2**20, 250 * 1024


@dataclass(frozen=True, slots=True)
class Flood:
    """Requests of one kind, or connections that stay half sent."""

    name: str
    count: int
    send: Callable[[int, Flood], Awaitable[None]]
    """Takes the port of the gateway."""
    body: Callable[[int], bytes] = lambda number: b""
    headers: Callable[[int], dict[str, str]] = lambda number: {}


@dataclass(frozen=True, slots=True)
class FloodResult:
    flood: str
    count: int
    idle_mb: float
    most_mb: float
    end_mb: float
    stated_mb: float
    """Sum of `turngate_memory_bytes` at the end."""

    @property
    def over_idle_mb(self) -> float:
        return self.most_mb - self.idle_mb


def floods(is_quick: bool) -> Iterator[Flood]:
    share = 10 if is_quick else 1
    yield Flood("sessions of 9,999 tiny messages", 1_000 // share, answered, tiny_messages)
    yield Flood("sessions, each with a system text of 200 KB", 2_000 // share, answered, own_system)
    yield Flood("sessions of messages of 20 KB, 1 MB in all", 500 // share, answered, long_messages)
    yield Flood("sessions of one short message", 20_000 // share, answered, one_message)
    yield Flood("tool lists of 10 MB", 256 // share, answered, tool_list)
    yield Flood("receipts of long texts", 20_000 // share, answered, long_names, long_headers)
    yield Flood("bodies of 31 MB, sent by half", 40, half_sent, lambda number: bytes(HALF_BYTES))
    yield Flood("bodies of 250 KB, sent by half", 1_000, half_sent, lambda number: bytes(SMALL_BYTES))


def tiny_messages(number: int) -> bytes:
    messages = [{"role": ("user", "assistant")[at % 2], "content": f"{number} {at}"} for at in range(MESSAGES)]
    return orjson.dumps({"model": "fake", "messages": messages})


def own_system(number: int) -> bytes:
    messages = [
        {"role": "system", "content": f"{number:09} " * (SYSTEM_BYTES // 10)},
        {"role": "user", "content": "Go"},
    ]
    return orjson.dumps({"model": "fake", "messages": messages})


def long_messages(number: int) -> bytes:
    messages = [{"role": "user", "content": f"{number:05} {at:03} " * 2_000} for at in range(50)]
    return orjson.dumps({"model": "fake", "messages": messages})


def one_message(number: int) -> bytes:
    return orjson.dumps(
        {"model": "fake", "messages": [{"role": "user", "content": f"Task {number}, of its own."}]}
    )


def tool_list(number: int) -> bytes:
    about = f"{number:09} " * (TOOL_BYTES // 10)
    tool = {"type": "function", "function": {"name": "read", "description": about, "parameters": {}}}
    messages = [{"role": "user", "content": f"Task {number}."}]
    return orjson.dumps({"model": "fake", "messages": messages, "tools": [tool]})


def long_names(number: int) -> bytes:
    messages = [{"role": "user", "content": f"Task {number % 50}."}]
    return orjson.dumps({"model": f"{number:09}" + "m" * 2_000, "messages": messages})


def long_headers(number: int) -> dict[str, str]:
    own = {"X-Turngate-Session": f"{number % 50}-" + "s" * 240, "X-Request-Id": f"{number}-" + "r" * 4_000}
    return own | {"User-Agent": "a" * 4_000}


async def answered(port: int, flood: Flood) -> None:
    """Send all requests of a flood, some at once. Raises AssertionError when one fails."""
    url, numbers = f"http://127.0.0.1:{port}/v1/chat/completions", iter(range(flood.count))

    async def client(session: aiohttp.ClientSession) -> None:
        for number in numbers:
            headers = {"Content-Type": "application/json"} | flood.headers(number)
            async with session.post(url, data=flood.body(number), headers=headers) as answer:
                text = await answer.read()
                assert answer.status == 200, text

    async with aiohttp.ClientSession() as session, asyncio.TaskGroup() as clients:
        for _ in range(AT_ONCE):
            clients.create_task(client(session))


async def half_sent(port: int, flood: Flood) -> None:
    """Send all but the last byte of each body, as far as the gateway takes it, and a request that must be
    answered beside them."""
    body, writers = flood.body(0), []
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n"
    try:
        for _ in range(flood.count):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writers.append(writer)
            writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode())
            writer.write(body[:-1])
        await asyncio.sleep(10.0)
        await answered(port, Flood("beside", 20, answered, one_message))
    finally:
        for writer in writers:
            writer.transport.abort()


def ours(memory_bytes: int) -> Peer:
    chosen = {"logging.level": "warning", "limits.memory_bytes": str(memory_bytes)}
    settings = [part for key, value in chosen.items() for part in ("--set", f"{key}={value}")]

    def command(at: PeerAddress) -> tuple[str, ...]:
        engine = at.url.replace("http", "vllm")
        return sys.executable, "-m", "gateway", "serve", "--engine", engine, "--port", str(at.port), *settings

    return Peer("turngate", command)


async def sampled(flood: Flood, gateway: RunningPeer) -> FloodResult:
    """Run a flood and read the gateway's memory meanwhile."""
    process = gateway.process
    assert process is not None
    most_mb = idle_mb = process.rss_mb()
    under_way = asyncio.ensure_future(flood.send(gateway.port, flood))
    while not under_way.done():
        await asyncio.wait([under_way], timeout=SAMPLE_S)
        most_mb = max(most_mb, process.rss_mb())
    under_way.result()
    stated = await stated_mb(gateway.port)
    return FloodResult(flood.name, flood.count, idle_mb, most_mb, process.rss_mb(), stated)


async def stated_mb(port: int) -> float:
    """What the gateway says that it keeps."""
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}/metrics") as answer:
        lines = (await answer.text()).splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("turngate_memory_bytes{")) / 1e6


def main() -> int:
    parser = command_parser(__doc__, __file__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the requests, print only")
    parser.add_argument("--memory-mib", type=int, default=MEMORY_MIB)
    parser.add_argument("--only", default="", help="floods whose name holds this, print only")
    options = parser.parse_args()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 16_384)), hard))
    results = []
    for flood in floods(options.quick):
        if options.only in flood.name:
            results.append(measured(flood, options.memory_mib * 2**20))
            print(row(results[-1]), file=sys.stderr, flush=True)
    text = table(options.memory_mib, results)
    print(text)
    write(None if options.quick or options.only else options.results, "floods", text, {"floods": results})
    return int(any(result.over_idle_mb > MOST_OVER_IDLE_MB for result in results))


def measured(flood: Flood, memory_bytes: int) -> FloodResult:
    with tempfile.TemporaryDirectory(prefix="turngate-floods-") as name, ExitStack() as stack:
        folder, port = Path(name), free_port()
        upstream, _ = compiled(folder)
        stack.enter_context(running([upstream, str(port)], folder / "upstream.log", LOAD_CORE))
        body = conversation(SIZES["s"])[0]
        gateway = stack.enter_context(started(ours(memory_bytes), port, folder, PEER_CORE, body))
        stack.callback(os.sched_setaffinity, 0, os.sched_getaffinity(0))
        os.sched_setaffinity(0, {LOAD_CORE})
        return asyncio.run(sampled(flood, gateway))


def table(memory_mib: int, results: list[FloodResult]) -> str:
    return "\n".join(
        [
            f"`limits.memory_bytes`: {memory_mib} MiB. Memory is resident memory of the whole process in MB.",
            "Stated: the sum of `turngate_memory_bytes` at the end.",
            "",
            "| flood | count | idle | most | most over idle | at the end | stated |",
            "|---|---|---|---|---|---|---|",
            *map(row, results),
            "",
            f"Bound: {MOST_OVER_IDLE_MB:.0f} MB over idle.",
        ]
    )


def row(result: FloodResult) -> str:
    cells = [result.flood, f"{result.count:,}"]
    cells += [f"{mb:.0f}" for mb in (result.idle_mb, result.most_mb, result.over_idle_mb, result.end_mb)]
    return f"| {' | '.join([*cells, f'{result.stated_mb:.0f}'])} |"


if __name__ == "__main__":
    sys.exit(main())
