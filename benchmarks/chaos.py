"""200 durable agents while gateway and client are killed: is anything lost, doubled, or done again?

    python -m benchmarks.chaos [--agents 200] [--kills 20]

Two ways to run them: `batch-agent run --checkpoint-dir`, whose process and whose gateway are each killed (SIGKILL)
so many times; and lines of `/v1/batches` that are agent runs, whose gateway is killed. What was killed is started
again at once. Points are spread at random over the model calls that the agents need. Each agent calls a tool that
must not run twice, in every turn but the last. The engine, a model of one, counts what it is asked.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import sys
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import aiohttp

from benchmarks.chaos_engine import RecordedEngine, recorded_engine
from benchmarks.chaos_found import Found, checked, table
from benchmarks.chaos_tool import RUNS
from benchmarks.results import write
from tests.real.process import free_port

NUM_TURNS = 4
OUTPUT_TOKENS = range(20, 120)
JITTER_S = 0.3
"""After the call that sets a kill off, so that it hits more than the moment of an answer."""
LAST_POINT = 0.97
"""Of all calls: behind it there may be nobody left to kill."""
POLL_S, LONGEST_S = 0.2, 900.0
TOOL = "benchmarks.chaos_tool:post"
RUN_URL = "/v1/turngate/agent_runs"
SCHEMA = {"type": "object", "properties": {"agent": {"type": "integer"}}, "required": ["agent"]}


@dataclass(frozen=True)
class Size:
    num_agents: int = 200
    num_kills: int = 20
    """Of each process."""
    seed: int = 1

    @property
    def num_calls(self) -> int:
        return self.num_agents * NUM_TURNS

    def found(self, way: str) -> Found:
        """Nothing yet."""
        return Found(way, self.num_agents, self.num_agents * (NUM_TURNS - 1))


@dataclass
class Killed:
    """A process that is killed, and started again with the same command."""

    command: Sequence[str]
    runs: Path
    num_kills: int = 0

    async def start(self) -> None:
        env = os.environ | {RUNS: str(self.runs), "PYTHONPATH": os.getcwd()}
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", *self.command, env=env, stdout=asyncio.subprocess.DEVNULL
        )

    async def kill(self) -> None:
        with suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGKILL)
        self.num_kills += await self._process.wait() == -signal.SIGKILL

    async def ended(self) -> None:
        """By itself. Raises RuntimeError if it failed."""
        if (status := await self._process.wait()) != 0:
            raise RuntimeError(f"{self.command[0]} ended with exit status {status}")


def task(agent: int, rng: random.Random) -> str:
    calls = [
        {
            "output_tokens": rng.choice(OUTPUT_TOKENS),
            "tool_calls": [{"name": "post", "arguments": {"agent": agent, "turn": turn}}],
        }
        for turn in range(NUM_TURNS - 1)
    ]
    last = {"content": json.dumps({"agent": agent})}
    return f"Work of agent {agent}. embedded_script: {json.dumps([*calls, last])}"


def gateway_of(engine: RecordedEngine, port: int, *more: str) -> list[str]:
    flags = ["--port", str(port), "--engine", f"vllm://127.0.0.1:{engine.port}"]
    quiet = ["--set", "probing.hints=false", "--set", "logging.level=error"]
    return ["gateway", "serve", *flags, *quiet, *more]


async def with_client(size: Size, place: Path) -> Found:
    """`batch-agent run`, which goes on where its checkpoint ends."""
    rng = random.Random(size.seed)
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(recorded_engine())
        port = free_port()
        spec = {
            "task": "{task}",
            "inputs": [{"task": task(agent, rng)} for agent in range(size.num_agents)],
            "tools": [TOOL],
            "output_schema": SCHEMA,
            "model": "embedded",
            "gateway": f"http://127.0.0.1:{port}",
            "max_turns": NUM_TURNS,
            "max_inflight": 64,
        }
        (place / "spec.json").write_text(json.dumps(spec))
        output = place / "results.jsonl"
        kept = ["--checkpoint-dir", str(place / "kept"), "--output", str(output), "--quiet"]
        gateway = Killed(gateway_of(engine, port), place / "runs")
        client = Killed(["batch_agent.cli", "run", "--spec", str(place / "spec.json"), *kept], place / "runs")
        for one in (gateway, client):
            await one.start()
            stack.push_async_callback(one.kill)
        found = size.found("batch-agent with a checkpoint")
        await kill_at_random(size, engine, [gateway, client], rng, found)
        await client.ended()
        found.gateway_kills, found.client_kills = gateway.num_kills, client.num_kills
        rows = [json.loads(line) for line in output.read_text().splitlines()]
        told = [
            (row["index"], row["output"], row["usage"]["prompt_tokens"] + row["usage"]["completion_tokens"])
            for row in rows
        ]
        return checked(found, engine, told, place / "runs")


async def with_batches(size: Size, place: Path) -> Found:
    """Lines of `/v1/batches`, in the gateway's store."""
    rng = random.Random(size.seed)
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(recorded_engine())
        port = free_port()
        tools = ["--set", f'tools.use=[{{"use": "{TOOL}"}}]']
        gateway = Killed(gateway_of(engine, port, "--batches", str(place / "store"), *tools), place / "runs")
        await gateway.start()
        stack.push_async_callback(gateway.kill)
        session = await stack.enter_async_context(aiohttp.ClientSession(f"http://127.0.0.1:{port}"))
        body = {"tools": ["post"], "schema": SCHEMA, "max_turns": NUM_TURNS, "model": "embedded"}
        lines = [
            {"custom_id": str(n), "method": "POST", "url": RUN_URL, "body": body | {"task": task(n, rng)}}
            for n in range(size.num_agents)
        ]
        batch = await created(session, "\n".join(map(json.dumps, lines)))
        found = size.found("/v1/batches with agent runs")
        await kill_at_random(size, engine, [gateway], rng, found)
        found.gateway_kills = gateway.num_kills
        while (state := await answer_of(session, "GET", f"/v1/batches/{batch}"))["status"] != "completed":
            await asyncio.sleep(POLL_S)
        told = []
        for row in await rows_of(session, state["output_file_id"]):
            run = row["response"]["body"]
            told.append((int(row["custom_id"]), run["output"], run["usage"]["total_tokens"]))
        if state["error_file_id"]:
            found.problems += [json.dumps(row) for row in await rows_of(session, state["error_file_id"])]
        return checked(found, engine, told, place / "runs")


async def kill_at_random(
    size: Size, engine: RecordedEngine, processes: Sequence[Killed], rng: random.Random, found: Found
) -> None:
    """Each as often as `size` says, in random order, whenever so many calls have been answered."""
    victims = [process for process in processes for _ in range(size.num_kills)]
    rng.shuffle(victims)
    points = sorted(rng.sample(range(1, int(LAST_POINT * size.num_calls)), len(victims)))
    for point, victim in zip(points, victims, strict=True):
        await engine.until_answered(point)
        await asyncio.sleep(rng.uniform(0, JITTER_S))
        found.in_flight += len(engine.in_flight)
        found.tokens_anew += sum(engine.tokens.values())
        await victim.kill()
        await victim.start()


async def created(session: aiohttp.ClientSession, lines: str) -> str:
    """A batch of these lines; its id. Waits for the gateway."""
    form = aiohttp.FormData({"purpose": "batch"})
    form.add_field("file", lines, filename="lines.jsonl")
    await answer_of(session, "GET", "/health")
    file = await answer_of(session, "POST", "/v1/files", data=form)
    asked = {"input_file_id": file["id"], "endpoint": RUN_URL, "completion_window": "24h"}
    return str((await answer_of(session, "POST", "/v1/batches", json=asked))["id"])


async def rows_of(session: aiohttp.ClientSession, file_id: str) -> list[Any]:
    async with session.get(f"/v1/files/{file_id}/content") as response:
        return [json.loads(line) for line in (await response.text()).splitlines()]


async def answer_of(session: aiohttp.ClientSession, method: str, path: str, **keywords: Any) -> Any:
    """As soon as there is somebody to answer."""
    while True:
        try:
            async with session.request(method, path, **keywords) as response:
                answer = await response.json()
                assert response.status == 200, answer
                return answer
        except aiohttp.ClientConnectionError:
            await asyncio.sleep(POLL_S)


WAYS: dict[str, Callable[[Size, Path], Awaitable[Found]]] = {"client": with_client, "batches": with_batches}


async def play(way: str, size: Size) -> Found:
    with tempfile.TemporaryDirectory(prefix="turngate-chaos-") as place:
        async with asyncio.timeout(LONGEST_S):
            return await WAYS[way](size, Path(place))


async def main(arguments: argparse.Namespace) -> None:
    size = Size(arguments.agents, arguments.kills, arguments.seed)
    found = [await play(way, size) for way in arguments.ways]
    text = table(found)
    print(text)
    write("chaos", text, [asdict(one) for one in found], Path(arguments.results))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--agents", type=int, default=200)
    parser.add_argument("--kills", type=int, default=20, help="of each process")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS))
    parser.add_argument("--results", default="benchmarks/results", help="folder for the table and its data")
    return parser.parse_args()


if __name__ == "__main__":
    asyncio.run(main(parse()))
