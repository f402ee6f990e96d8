"""What workers cost and give: CPU of 1, 2 and 3 of them for the same requests, and of a request that is forwarded.

    python -m benchmarks.overhead.workers [--rounds N]

One family of sessions, streamed answers of 20 chunks. *spread*: sessions are spread over the workers, as is. *one
home*: all sessions name one parent and so live at one worker, as they would if whole families did. `reached`: the
busiest worker's CPU bounds what all can do together, with a core for each: requests per second = 1 / its CPU per
request. Measured from CPU time, since engine and clients share the same cores. `counted`: outcomes that
`/metrics` of one worker has, of the requests that were sent to all.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import statistics
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import aiohttp
from aiohttp import web

from benchmarks.results import command_parser, write
from tests.path.fake_engine import Call, FakeEngine, chunk, finish

NUM_REQUESTS, NUM_CLIENTS, NUM_CHUNKS, NUM_ROUNDS = 1000, 16, 20, 3
TICKS_S = os.sysconf("SC_CLK_TCK")
WARM = 200
EVENTS = [chunk(role="assistant"), *[chunk(content="word ")] * NUM_CHUNKS, finish(), b"data: [DONE]\n\n"]


@dataclass(frozen=True)
class WorkerCosts:
    """One arm of one round."""

    arm: str
    workers: int
    cpu_us: float
    """Of all workers, per request."""
    busiest_us: float
    """Of the busiest worker, per request of all."""
    forwarded: float
    """Share of the requests."""
    per_s: float
    counted: float
    """Share of the requests; 1: each once."""


async def play(call: Call) -> web.StreamResponse:
    for event in EVENTS:
        await call.write(event)
    return await call.end()


@asynccontextmanager
async def gateway(engine: FakeEngine, workers: int) -> AsyncIterator[tuple[str, list[int]]]:
    """Base URL and process ids of the workers."""
    command = [
        *(sys.executable, "-m", "gateway", "serve", "--port", "0", "--workers", str(workers)),
        *("--engine", f"vllm://127.0.0.1:{engine.port}", "--set", "probing.hints=false"),
        *("--set", "logging.level=warning"),
    ]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    while (
        not (address := re.search(rb"http://[^/]+", line := await process.stdout.readline()))
        or b"Ready" not in line
    ):
        pass
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    yield address[0].decode(), [int(pid) for pid in children] if workers > 1 else [process.pid]
    process.send_signal(signal.SIGTERM)
    await process.communicate()


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_S


async def load(url: str, num: int, headers: dict[str, str]) -> None:
    """Each request is a new session of one family."""
    numbers = iter(range(num))
    system = {"role": "system", "content": "You are one of many. " * 100}

    async def client() -> None:
        async with aiohttp.ClientSession() as session:
            for n in numbers:
                user = {"role": "user", "content": f"Task {n} of {id(numbers)}"}
                body = {"model": "m", "stream": True, "messages": [system, user]}
                own = {"X-Turngate-Session": f"{id(numbers)}-{n}"} | headers if headers else {}
                async with session.post(f"{url}/v1/chat/completions", json=body, headers=own) as response:
                    assert response.status == 200
                    assert (await response.read()).endswith(b"[DONE]\n\n")

    await asyncio.gather(*(client() for _ in range(NUM_CLIENTS)))


async def measured(engine: FakeEngine, arm: str, workers: int) -> WorkerCosts:
    headers = {"X-Turngate-Parent": "the-root-of-all"} if arm == "one home" else {}
    async with gateway(engine, workers) as (url, pids):
        await load(url, WARM, headers)
        before = [cpu_s(pid) for pid in pids]
        began_at = asyncio.get_running_loop().time()
        await load(url, NUM_REQUESTS, headers)
        seconds = asyncio.get_running_loop().time() - began_at
        used = [cpu_s(pid) - was for pid, was in zip(pids, before, strict=True)]
        async with aiohttp.ClientSession() as session, session.get(f"{url}/metrics") as page:
            text = await page.text()
    relayed = re.search(r'turngate_forwarded_total\{result="relayed"\} ([\d.]+)', text)
    forwarded = float(relayed[1]) / (NUM_REQUESTS + WARM) if relayed else 0.0
    answered = sum(map(float, re.findall(r'turngate_outcomes_total\{.*outcome="answered".*\} ([\d.]+)', text)))
    counted, per_request = answered / (NUM_REQUESTS + WARM), 1e6 / NUM_REQUESTS
    costs = sum(used) * per_request, max(used) * per_request
    return WorkerCosts(arm, workers, *costs, forwarded, NUM_REQUESTS / seconds, counted)


async def run(num_rounds: int) -> list[WorkerCosts]:
    engine = FakeEngine(plays=[play] * 1_000_000)
    await engine.start()
    arms = [("spread", 1), ("spread", 2), ("spread", 3), ("one home", 2), ("one home", 3)]
    rows = [await measured(engine, *arm) for _ in range(num_rounds) for arm in arms]
    await engine.stop()
    return rows


def median(rows: list[WorkerCosts], arm: str, workers: int) -> WorkerCosts:
    mine = [row for row in rows if (row.arm, row.workers) == (arm, workers)]
    values = [statistics.median(getattr(row, name) for row in mine) for name in list(asdict(mine[0]))[2:]]
    return WorkerCosts(arm, workers, *values)


def table(rows: list[WorkerCosts]) -> str:
    alone = median(rows, "spread", 1)
    lines = [
        "| sessions | workers | forwarded | CPU us per request | busiest | reached, x one worker | per s here |"
        " counted |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for arm, workers in dict.fromkeys((row.arm, row.workers) for row in rows):
        row = median(rows, arm, workers)
        reached = alone.busiest_us / row.busiest_us
        lines.append(
            f"| {arm} | {workers} | {row.forwarded:.2f} | {row.cpu_us:.0f} | {row.busiest_us:.0f} |"
            f" {reached:.2f} | {row.per_s:.0f} | {row.counted:.4f} |"
        )
    two = median(rows, "spread", 2)
    hop_us = (two.cpu_us - alone.cpu_us) / two.forwarded
    return "\n".join([*lines, "", f"A forwarded request with {NUM_CHUNKS} chunks costs {hop_us:.0f} us more CPU."])


def main() -> None:
    parser = command_parser(__doc__, __file__)
    parser.add_argument("--rounds", type=int, default=NUM_ROUNDS, help="%(default)s")
    options = parser.parse_args()
    rows = asyncio.run(run(options.rounds))
    text = table(rows)
    print(text)
    write(options.results, "workers", text, rows)


if __name__ == "__main__":
    main()
