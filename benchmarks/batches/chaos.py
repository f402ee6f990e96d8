"""200 durable agents while gateway and client are killed: is anything lost, doubled, or done again?

    python -m benchmarks.batches.chaos [--agents 200] [--kills 20]

Two ways to run them: `batch-agent run --checkpoint-dir`, whose process and whose gateway are each killed (SIGKILL)
so many times; and lines of `/v1/batches` that are agent runs, whose gateway is killed. What was killed is started
again at once. Points are spread at random over the model calls that the agents need. Each agent calls a tool that
must not run twice, in every turn but the last. The engine, a model of one, counts its calls.
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
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp

from benchmarks.batches.chaos_tool import RUNS
from benchmarks.batches.recorded_engine import RecordedEngine, recorded_engine
from benchmarks.results import command_parser, write
from tests.real.process import free_port


@dataclass
class ChaosResult:
    """What came of one run. The laws are that `lost`, `doubled`, `wrong`, `backward` and `run_twice` are 0."""

    way: str
    agents: int
    tool_calls: int
    gateway_kills: int = 0
    client_kills: int = 0
    results: int = 0
    lost: int = 0
    doubled: int = 0
    wrong: int = 0
    """Results with another output than their agent's, or tokens that are not those of its turns."""
    calls: int = 0
    repeated: int = 0
    """Calls that were asked before."""
    backward: int = 0
    """Calls for a turn before one that the agent had reached."""
    in_flight: int = 0
    """Calls that the engine was working on when something was killed, over all kills."""
    tokens: int = 0
    """Of every turn once."""
    tokens_repeated: int = 0
    """At most: of calls that were cut, as much as if they had been answered."""
    tokens_from_start: int = 0
    """What would have been repeated, had each kill thrown away what was finished."""
    run_twice: int = 0
    """Calls of the tool that ran more than once."""
    unknown: int = 0
    """Calls of the tool that were not run, since they may have been on their way."""
    problems: list[str] = field(default_factory=list)


def checked(
    result: ChaosResult, engine: RecordedEngine, results: Sequence[tuple[int, Any, int]], runs: Path
) -> ChaosResult:
    """With what results and engine say. `results`: agent, output and tokens of each; `runs`: a line for each time
    that the tool ran."""
    times = Counter(agent for agent, _, _ in results)
    tokens_of: Counter[int] = Counter()
    for key, tokens in engine.tokens.items():
        tokens_of[key.agent] += tokens
    result.results = len(results)
    result.lost = sum(not times[agent] for agent in range(result.agents))
    result.doubled = sum(count - 1 for count in times.values())
    result.wrong = sum((output, tokens) != ({"agent": a}, tokens_of[a]) for a, output, tokens in results)
    result.calls = len(engine.num_calls)
    result.repeated = engine.num_calls.total() - result.calls
    result.backward = engine.num_backward
    result.tokens = sum(engine.tokens.values())
    result.tokens_repeated = sum((count - 1) * engine.tokens[key] for key, count in engine.num_calls.items())
    ran = Counter(runs.read_text().split())
    result.run_twice = sum(count > 1 for count in ran.values())
    result.unknown = result.tool_calls - len(ran)
    return result


def table(results: Sequence[ChaosResult]) -> str:
    rows: dict[str, Callable[[ChaosResult], object]] = {
        "agents": lambda f: f.agents,
        "gateway killed": lambda f: f.gateway_kills,
        "client killed": lambda f: f.client_kills,
        "results": lambda f: f.results,
        "results lost, double, wrong": lambda f: f"{f.lost}, {f.doubled}, {f.wrong}",
        "model calls needed": lambda f: f.calls,
        "calls at the engine when something was killed (more were on their way)": lambda f: f.in_flight,
        "calls repeated": lambda f: f.repeated,
        "calls for a turn that was finished": lambda f: f.backward,
        "tokens needed": lambda f: f"{f.tokens:,}",
        "tokens repeated, at most": partial(_repeated, lambda f: f.tokens_repeated),
        "tokens repeated if each kill threw away all turns": partial(_repeated, lambda f: f.tokens_from_start),
        "tool calls that ran twice": lambda f: f.run_twice,
        "tool calls reported as of unknown outcome": lambda f: f.unknown,
    }
    lines = ["| | " + " | ".join(f.way for f in results) + " |", "|---" * (1 + len(results)) + "|"]
    lines += [f"| {name} | " + " | ".join(str(cell(f)) for f in results) + " |" for name, cell in rows.items()]
    return "\n".join(lines)


def _repeated(tokens_of: Callable[[ChaosResult], int], result: ChaosResult) -> str:
    return f"{tokens_of(result):,} ({tokens_of(result) / result.tokens:.0%})"


NUM_TURNS = 4
OUTPUT_TOKENS = range(20, 120)
JITTER_S = 0.3
"""After the call that sets a kill off, so that it hits more than the moment of an answer."""
LAST_POINT = 0.97
"""Of all calls: behind it there may be no process left to kill."""
POLL_S, LONGEST_S = 0.2, 900.0
TOOL = "benchmarks.batches.chaos_tool:post"
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

    def empty_result(self, way: str) -> ChaosResult:
        """Nothing yet."""
        return ChaosResult(way, self.num_agents, self.num_agents * (NUM_TURNS - 1))


@dataclass
class KilledProcess:
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


async def with_client(size: Size, place: Path) -> ChaosResult:
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
        gateway = KilledProcess(gateway_of(engine, port), place / "runs")
        client = KilledProcess(
            ["batch_agent.cli", "run", "--spec", str(place / "spec.json"), *kept], place / "runs"
        )
        for one in (gateway, client):
            await one.start()
            stack.push_async_callback(one.kill)
        result = size.empty_result("batch-agent with a checkpoint")
        await kill_at_random(size, engine, [gateway, client], rng, result)
        await client.ended()
        result.gateway_kills, result.client_kills = gateway.num_kills, client.num_kills
        rows = [json.loads(line) for line in output.read_text().splitlines()]
        results = [
            (row["index"], row["output"], row["usage"]["prompt_tokens"] + row["usage"]["completion_tokens"])
            for row in rows
        ]
        return checked(result, engine, results, place / "runs")


async def with_batches(size: Size, place: Path) -> ChaosResult:
    """Lines of `/v1/batches`, in the gateway's store."""
    rng = random.Random(size.seed)
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(recorded_engine())
        port = free_port()
        tools = ["--set", f'tools.use=[{{"use": "{TOOL}"}}]']
        gateway = KilledProcess(
            gateway_of(engine, port, "--batches", str(place / "store"), *tools), place / "runs"
        )
        await gateway.start()
        stack.push_async_callback(gateway.kill)
        session = await stack.enter_async_context(aiohttp.ClientSession(f"http://127.0.0.1:{port}"))
        body = {"tools": ["post"], "schema": SCHEMA, "max_turns": NUM_TURNS, "model": "embedded"}
        lines = [
            {"custom_id": str(n), "method": "POST", "url": RUN_URL, "body": body | {"task": task(n, rng)}}
            for n in range(size.num_agents)
        ]
        batch = await created(session, "\n".join(map(json.dumps, lines)))
        result = size.empty_result("/v1/batches with agent runs")
        await kill_at_random(size, engine, [gateway], rng, result)
        result.gateway_kills = gateway.num_kills
        while (state := await answer_of(session, "GET", f"/v1/batches/{batch}"))["status"] != "completed":
            await asyncio.sleep(POLL_S)
        results = []
        for row in await rows_of(session, state["output_file_id"]):
            run = row["response"]["body"]
            results.append((int(row["custom_id"]), run["output"], run["usage"]["total_tokens"]))
        if state["error_file_id"]:
            result.problems += [json.dumps(row) for row in await rows_of(session, state["error_file_id"])]
        return checked(result, engine, results, place / "runs")


async def kill_at_random(
    size: Size, engine: RecordedEngine, processes: Sequence[KilledProcess], rng: random.Random, result: ChaosResult
) -> None:
    """Each as often as `size` says, in random order, whenever so many calls have been answered."""
    victims = [process for process in processes for _ in range(size.num_kills)]
    rng.shuffle(victims)
    points = sorted(rng.sample(range(1, int(LAST_POINT * size.num_calls)), len(victims)))
    for point, victim in zip(points, victims, strict=True):
        await engine.until_answered(point)
        await asyncio.sleep(rng.uniform(0, JITTER_S))
        result.in_flight += len(engine.in_flight)
        result.tokens_from_start += sum(engine.tokens.values())
        await victim.kill()
        await victim.start()


async def created(session: aiohttp.ClientSession, lines: str) -> str:
    """A batch of these lines; its id. Waits for the gateway."""
    form = aiohttp.FormData({"purpose": "batch"})
    form.add_field("file", lines, filename="lines.jsonl")
    await answer_of(session, "GET", "/health")
    file = await answer_of(session, "POST", "/v1/files", data=form)
    request = {"input_file_id": file["id"], "endpoint": RUN_URL, "completion_window": "24h"}
    return str((await answer_of(session, "POST", "/v1/batches", json=request))["id"])


async def rows_of(session: aiohttp.ClientSession, file_id: str) -> list[Any]:
    async with session.get(f"/v1/files/{file_id}/content") as response:
        return [json.loads(line) for line in (await response.text()).splitlines()]


async def answer_of(session: aiohttp.ClientSession, method: str, path: str, **keywords: Any) -> Any:
    """As soon as a gateway answers."""
    while True:
        try:
            async with session.request(method, path, **keywords) as response:
                answer = await response.json()
                assert response.status == 200, answer
                return answer
        except aiohttp.ClientConnectionError:
            await asyncio.sleep(POLL_S)


WAYS: dict[str, Callable[[Size, Path], Awaitable[ChaosResult]]] = {"client": with_client, "batches": with_batches}


async def play(way: str, size: Size) -> ChaosResult:
    with tempfile.TemporaryDirectory(prefix="turngate-chaos-") as place:
        async with asyncio.timeout(LONGEST_S):
            return await WAYS[way](size, Path(place))


async def main(arguments: argparse.Namespace) -> None:
    size = Size(arguments.agents, arguments.kills, arguments.seed)
    results = [await play(way, size) for way in arguments.ways]
    text = table(results)
    print(text)
    write(arguments.results, "chaos", text, results)


def parse() -> argparse.Namespace:
    parser = command_parser(__doc__, __file__)
    parser.add_argument("--agents", type=int, default=200)
    parser.add_argument("--kills", type=int, default=20, help="of each process")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS))
    return parser.parse_args()


if __name__ == "__main__":
    asyncio.run(main(parse()))
