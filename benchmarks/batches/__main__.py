"""Many prompts at once: in one list over two engines, and as a durable batch beside clients that wait.

    python -m benchmarks.batches --prompts 10000

List: one `/v1/completions` through the gateway, against a client that knows both engines, sorts its prompts by
prefix and sends each engine its half as one list. In the last arm one engine is killed in the middle. Batch: the
same prompts as lines of `/v1/batches`, and what single clients see of it, which ask one question after the other.
The engines are models of one (`turngate engine`): read seconds as ratios.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import statistics
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import orjson

from benchmarks.results import command_parser, write
from gateway.cli.demo_fleet import prose
from gateway.cli.demo_process import command
from tests.real.gateway import sample

NUM_GROUPS = 20
PREFIX_CHARS, OWN_CHARS = 2_000, 120
ENGINE = ["engine", "--port", "0", "--set", "embedded.slots=256", "--set", "embedded.capacity_tokens=262144"]
NUM_CLIENTS, PAUSE_S = 4, 0.2
KILL_AFTER = 0.4
"""Of the time that the list takes with both engines."""
PATH = "/v1/completions"
PARAMETERS = {"model": "embedded", "ignore_eos": False, "max_tokens": 128}


@dataclass(frozen=True, slots=True)
class Stack:
    """Two engines and a gateway, each a process."""

    session: aiohttp.ClientSession
    engines: tuple[str, str]
    gateway: str
    killed: asyncio.Event


@asynccontextmanager
async def stack(directory: str) -> AsyncIterator[Stack]:
    timeout = aiohttp.ClientTimeout(total=None)
    async with (
        command(ENGINE) as first,
        command(ENGINE) as second,
        command(
            [
                *("serve", "--port", "0", "--set", "probing.hints=false", "--set", "logging.level=warning"),
                *("--batches", directory),
                *(part for url in (first, second) for part in ("--engine", url.replace("http", "vllm", 1))),
            ]
        ) as gateway,
        aiohttp.ClientSession(timeout=timeout) as session,
    ):
        yield Stack(session, (first, second), gateway, asyncio.Event())


def draw_prompts(num: int, seed: int) -> list[str]:
    """In no order; each begins like one twentieth of the others."""
    heads = [prose(f"{seed}/{group}", PREFIX_CHARS) for group in range(NUM_GROUPS)]
    return [f"{heads[n * 7 % NUM_GROUPS]}\n{n}: {prose(f'{seed}/own/{n}', OWN_CHARS)}" for n in range(num)]


async def ask(session: aiohttp.ClientSession, base_url: str, prompt: Any) -> list[str]:
    """The texts of the answers, in the order of the prompts."""
    async with session.post(base_url + PATH, json=PARAMETERS | {"prompt": prompt}) as response:
        body = orjson.loads(await response.read())
    assert response.status == 200, body
    assert [choice["index"] for choice in body["choices"]] == list(range(len(body["choices"])))
    return [choice["text"] for choice in body["choices"]]


async def hand_sharded(here: Stack, prompts: list[str]) -> list[str]:
    order = sorted(range(len(prompts)), key=lambda n: prompts[n])
    halves = order[: len(order) // 2], order[len(order) // 2 :]
    lists = [[prompts[n] for n in half] for half in halves]
    answers = await asyncio.gather(*map(partial(ask, here.session), here.engines, lists))
    texts = {
        n: text for half, part in zip(halves, answers, strict=True) for n, text in zip(half, part, strict=True)
    }
    return [texts[n] for n in range(len(prompts))]


async def through_gateway(here: Stack, prompts: list[str]) -> list[str]:
    return await ask(here.session, here.gateway, prompts)


ListClient = Callable[[Stack, list[str]], Awaitable[list[str]]]


async def timed(
    arm: ListClient, prompts: list[str], directory: str, kill_after_s: float | None = None
) -> dict[str, Any]:
    async with stack(directory) as here:
        await ask(here.session, here.gateway, "warm")
        began = time.monotonic()
        work = asyncio.ensure_future(arm(here, prompts))
        if kill_after_s is not None:
            await asyncio.sleep(kill_after_s)
            await kill(here.engines[0])
        texts = await work
        wall_s = time.monotonic() - began
        cached = [await sample(f"{url}/metrics", "vllm:prefix_cache_hits_total") for url in here.engines[1:]]
    return {"wall_s": wall_s, "answers": len(texts), "empty": texts.count(""), "texts": texts, "cached": cached}


async def kill(base_url: str) -> None:
    """The process that listens there."""
    port = int(base_url.rpartition(":")[2])
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and _listens(entry, port):
            os.kill(int(entry.name), signal.SIGKILL)
            return
    raise LookupError(f"no process listens on port {port}")


def _listens(process: Path, port: int) -> bool:
    try:
        inodes = {os.readlink(fd) for fd in (process / "fd").iterdir()}
        rows = [line.split() for line in (process / "net/tcp").read_text().splitlines()[1:]]
    except OSError:
        return False
    return any(
        row[1].endswith(f":{port:04X}") and row[3] == "0A" and f"socket:[{row[9]}]" in inodes for row in rows
    )


async def batch(prompts: list[str], directory: str, with_batch: bool) -> dict[str, Any]:
    """The lines of a batch, and the waits of clients beside it."""
    async with stack(directory) as here:
        over = asyncio.Event()
        clients = [asyncio.create_task(client(here, n, over)) for n in range(NUM_CLIENTS)]
        began = time.monotonic()
        counts = await run_batch(here, prompts) if with_batch else await asyncio.sleep(30, {})
        wall_s = time.monotonic() - began
        over.set()
        waits_s = sorted(wait for waits in await asyncio.gather(*clients) for wait in waits)
    p95_s = statistics.quantiles(waits_s, n=20)[-1]
    return {"wall_s": wall_s, "counts": counts, "p50_s": statistics.median(waits_s), "p95_s": p95_s}


async def client(here: Stack, number: int, over: asyncio.Event) -> list[float]:
    """Times to the first byte of a stream, one question after the other, in one growing talk."""
    messages: list[dict[str, str]] = [{"role": "system", "content": prose(f"client {number}", 4_000)}]
    waits_s = []
    while not over.is_set():
        messages.append({"role": "user", "content": prose(f"{number}/{len(messages)}", 200)})
        body = {"model": "embedded", "messages": messages, "stream": True, "max_tokens": 32}
        began = time.monotonic()
        async with here.session.post(here.gateway + "/v1/chat/completions", json=body) as response:
            first = await response.content.readany()
            waits_s.append(time.monotonic() - began)
            assert response.status == 200, first
            await response.read()
        messages.append({"role": "assistant", "content": f"answer {len(messages)}"})
        if len(messages) > 40:
            del messages[1:]
        await asyncio.sleep(PAUSE_S)
    return waits_s


async def run_batch(here: Stack, prompts: list[str]) -> dict[str, int]:
    rows = (
        {"custom_id": str(n), "method": "POST", "url": PATH, "body": PARAMETERS | {"prompt": text}}
        for n, text in enumerate(prompts)
    )
    form = aiohttp.FormData({"purpose": "batch"})
    form.add_field("file", b"\n".join(map(orjson.dumps, rows)), filename="in.jsonl")
    async with here.session.post(here.gateway + "/v1/files", data=form) as response:
        file = await response.json()
    body = {"input_file_id": file["id"], "endpoint": PATH, "completion_window": "24h"}
    async with here.session.post(here.gateway + "/v1/batches", json=body) as response:
        made = await response.json()
    while made["status"] not in ("completed", "failed", "expired"):
        await asyncio.sleep(0.2)
        async with here.session.get(f"{here.gateway}/v1/batches/{made['id']}") as response:
            made = await response.json()
    counts: dict[str, int] = made["request_counts"]
    return counts


async def main(arguments: argparse.Namespace) -> None:
    prompts, runs = draw_prompts(arguments.prompts, arguments.seed), {}
    arms: dict[str, ListClient] = {"by hand": hand_sharded, "gateway": through_gateway}
    for name, arm in arms.items():
        runs[name] = await timed(arm, prompts, arguments.directory)
        print(name, round(runs[name]["wall_s"], 2), file=sys.stderr, flush=True)
    name = "gateway, one engine killed"
    runs[name] = await timed(through_gateway, prompts, arguments.directory, KILL_AFTER * runs["gateway"]["wall_s"])
    right = runs["by hand"]["texts"]
    for run in runs.values():
        run["wrong"] = sum(a != b for a, b in zip(run.pop("texts"), right, strict=True))
    alone = await batch(prompts, arguments.directory, with_batch=False)
    beside = await batch(prompts, arguments.directory, with_batch=True)
    text = table(runs, alone, beside)
    print(text)
    write(arguments.results, "batches", text, {"list": runs, "alone": alone, "beside": beside})


def table(runs: dict[str, dict[str, Any]], alone: dict[str, Any], beside: dict[str, Any]) -> str:
    best_s = runs["by hand"]["wall_s"]
    lines = ["| list | seconds | of by hand | answers | wrong |", "|---" * 5 + "|"]
    for name, run in runs.items():
        ratio = run["wall_s"] / best_s
        lines.append(f"| {name} | {run['wall_s']:.1f} | {ratio:.2f} | {run['answers']:,} | {run['wrong']} |")
    lines += ["", "| clients' first byte | p50 s | p95 s | lines | batch s |", "|---" * 5 + "|"]
    for name, run in {"alone": alone, "beside a batch": beside}.items():
        done = f"{run['counts']['completed']:,} | {run['wall_s']:.1f}" if run["counts"] else "|"
        lines.append(f"| {name} | {run['p50_s']:.3f} | {run['p95_s']:.3f} | {done} |")
    return "\n".join(lines)


def parse() -> argparse.Namespace:
    parser = command_parser(__doc__, __file__)
    parser.add_argument("--prompts", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--directory", default="/tmp/turngate-benchmark", help="for the batch")
    return parser.parse_args()


if __name__ == "__main__":
    asyncio.run(main(parse()))
