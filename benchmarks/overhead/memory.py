"""What remembering costs: resident memory by sessions.

    python -m benchmarks.overhead.memory [--sessions N]

Each session sends one prompt of 120,000 tokens (480 KB), of which 32 KB are one system text and the rest
is found in no other session.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import aiohttp
import orjson

from benchmarks.overhead.bodies import ID, text
from benchmarks.overhead.cells import LOAD_CORE, PEER_CORE, compiled
from benchmarks.overhead.peers import all_peers, started
from benchmarks.overhead.processes import MeasuredProcess, running
from benchmarks.results import command_parser, write
from tests.real.process import free_port

SYSTEM_BYTES, PROMPT_BYTES, MESSAGES = 32_000, 480_000, 120
AT_ONCE = 8
READINGS = 10


def main() -> None:
    parser = command_parser(__doc__, __file__)
    parser.add_argument("--sessions", type=int, default=10_000)
    options = parser.parse_args()
    peer = next(peer for peer in reversed(all_peers()) if peer.name.startswith("turngate"))
    with tempfile.TemporaryDirectory(prefix="turngate-memory-") as name:
        folder, port = Path(name), free_port()
        upstream, _ = compiled(folder)
        with (
            running([upstream, str(port)], folder / "upstream.log", LOAD_CORE),
            started(peer, port, folder, PEER_CORE, prompt().replace(ID.encode(), b"0" * len(ID))) as gateway,
        ):
            assert gateway.process is not None
            rss_mb = asyncio.run(measured(gateway.port, gateway.process, options.sessions))
    rows = "\n".join(f"| {sessions:,} | {mb:.0f} |" for sessions, mb in rss_mb.items())
    table = f"{peer.name}, prompts of {PROMPT_BYTES:,} bytes\n\n| sessions | RSS MB |\n| --- | --- |\n{rows}"
    print(table)
    write(options.results, "memory", table, {str(sessions): mb for sessions, mb in rss_mb.items()})


async def measured(port: int, gateway: MeasuredProcess, num_sessions: int) -> dict[int, float]:
    """Resident memory after so many sessions."""
    body, url = prompt(), f"http://127.0.0.1:{port}/v1/chat/completions"
    headers = {"Content-Type": "application/json"}
    rss_mb = {1: gateway.rss_mb()}
    numbers = iter(range(1, num_sessions + 1))

    async def client(session: aiohttp.ClientSession) -> None:
        for number in numbers:
            own = body.replace(ID.encode(), b"%016d" % number)
            async with session.post(url, data=own, headers=headers) as answer:
                await answer.read()
                assert answer.status == 200, await answer.text()
            if number % (num_sessions // READINGS) == 0:
                rss_mb[number] = gateway.rss_mb()

    async with aiohttp.ClientSession() as session, asyncio.TaskGroup() as clients:
        for _ in range(AT_ONCE):
            clients.create_task(client(session))
    return rss_mb


def prompt() -> bytes:
    """With the number of the session, still to be put in, in each block."""
    size = (PROMPT_BYTES - SYSTEM_BYTES) // MESSAGES
    messages = [{"role": "system", "content": text(SYSTEM_BYTES, "system")}]
    for number in range(MESSAGES):
        messages.append({"role": ("user", "assistant")[number % 2], "content": text(size, f"{ID} {number}")})
    tool = {"type": "function", "function": {"name": "read_file", "parameters": {"type": "object"}}}
    return orjson.dumps({"model": "fake", "messages": messages, "tools": [tool]})


if __name__ == "__main__":
    main()
