"""The named workloads of `turngate demo`: those of the systems that published figures, with these figures.

Agents run their tools themselves, so that any engine can be used: no model has to choose a call. The lengths of
answers were not published. The gain depends on them: the longer they are, the less of the time is a tool's.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import orjson

from gateway.cli.demo_fleet import TIMEOUTS, ModelClient, TurnRecord, prose, quantile
from gateway.cli.demo_process import Progress, command
from gateway.core.transport import Upstream, UpstreamRefused
from gateway.engines.kinds import parse_address
from gateway.transport.aiohttp_upstream import AiohttpUpstream
from tool_runtime.runtime import ToolRuntime
from tool_runtime.types import Call, Context, Effect, Json, Limits, Tool

_MOST_ANSWER_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class DemoWay:
    """One arm of a workload."""

    name: str
    is_gated: bool
    """Whether it goes through a gateway."""
    holds_slot: bool = False
    """Whether an agent keeps its place among `in_flight` while its tool runs."""
    shares_tools: bool = False
    """Whether equal calls of several agents run once."""
    shares_prefix: bool = True
    is_list: bool = False
    """Whether all prompts are one request."""
    is_bounded: bool = True
    """Whether the gateway has at most `in_flight` model calls at once, as the other arm has."""


LOOP = DemoWay("client loop", False, holds_slot=True)
GATEWAY = DemoWay("gateway", True, shares_tools=True)
DEFAULTS = DemoWay("gateway, its defaults", True, shares_tools=True, is_bounded=False)


@dataclass(frozen=True, slots=True)
class DemoWorkload:
    summary: str
    ways: tuple[DemoWay, ...]
    num_agents: int
    published: Sequence[str]
    """What others measured with it."""
    num_turns: int = 2
    num_topics: int = 1
    """Different calls of the tool."""
    tool_s: float = 0.0
    in_flight: int | None = None
    """Model calls at once, in each arm that is bounded. None: no bound."""
    shared_tokens: int = 2_048
    private_tokens: int = 40
    output_tokens: int = 24
    speed: float = 1.0
    """Of the embedded engine."""
    is_of_prompts: bool = False
    """Whether its calls are plain completions and no turns of agents."""


WORKLOADS = {
    "tools": DemoWorkload(
        "100 agents with a slow tool",
        (LOOP, GATEWAY, DEFAULTS),
        100,
        (
            "batch-agent 0.2.0, Dynamo on H100: 10.50 -> 5.91 s (1.78x), TTFT p95 1.55 -> 0.59 s, runs 100 -> 10",
            "batch-agent 0.2.0, A10G: vLLM 13.07 -> 9.65 s (1.35x), SGLang 11.21 -> 7.65 s (1.47x)",
        ),
        num_topics=10,
        tool_s=0.8,
        in_flight=32,
        output_tokens=64,
    ),
    "research": DemoWorkload(
        "20 agents that search",
        (LOOP, GATEWAY, DEFAULTS),
        20,
        (
            "batch-agent 0.2.0, Dynamo on H100: 5.11 -> 3.24 s (1.57x), TTFT p95 1.38 -> 0.24 s, hit 94 -> 99 %",
            "batch-agent 0.2.0, SGLang on H100: 6.36 -> 3.16 s (2.01x), TTFT p95 2.59 -> 0.22 s, hit 0 -> 98.6 %",
            "batch-agent 0.2.0, vLLM on H100: 4.77 -> 2.77 s (1.72x), TTFT p95 1.18 -> 0.31 s, hit 96.2 -> 97.5 %",
            "each: searches 20 -> 9",
        ),
        num_topics=9,
        tool_s=0.4,
        in_flight=8,
        output_tokens=40,
    ),
    "prefix": DemoWorkload(
        "100 agents with and without a shared prefix",
        (DemoWay("nothing shared", False, shares_prefix=False), DemoWay("gateway, shared prefix", True)),
        100,
        ("batch-agent 0.2.0, 7B on A10G: 63.75 -> 6.55 s (9.7x), TTFT p50 28.7 -> 0.45 s (63.6x)",),
        num_turns=1,
        private_tokens=500,
        output_tokens=16,
    ),
    "fair": DemoWorkload(
        "200 agents against a plain gather of calls",
        (DemoWay("naive gather", False), GATEWAY),
        200,
        ("batch-agent 0.2.0, a mock of 60 ms: 0.66 -> 3.48 s (0.19x), tool runs 200 -> 4",),
        num_topics=4,
        tool_s=0.2,
        shared_tokens=1_700,
        output_tokens=4,
        speed=4.0,
    ),
    "batch": DemoWorkload(
        "400 prompts as one request",
        (DemoWay("one request each", False), DemoWay("gateway, one list", True, is_list=True)),
        400,
        ("Aurora-Swarm, 20 prompts on 4 endpoints: 12 % less time, 80 % fewer requests",),
        num_turns=1,
        in_flight=64,
        shared_tokens=512,
        private_tokens=60,
        is_of_prompts=True,
    ),
}


@dataclass(slots=True)
class DemoFigures:
    """What one arm measured."""

    way: DemoWay
    wall_s: float = 0.0
    turns: list[TurnRecord] = field(default_factory=list)
    num_tool_runs: int = 0
    num_requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0


async def play_workload(name: str, url: str | None) -> None:
    """Run the arms of a workload, and print what they measured. Raises RuntimeError where a call failed."""
    workload = WORKLOADS[name]
    print(f"{workload.summary[0].upper()}{workload.summary[1:]}: {_shape(workload)}.\n", flush=True)
    arms = []
    for way in workload.ways:
        in_flight = workload.in_flight if way.is_bounded else None
        async with engine_at(url, way.is_gated, workload.speed, in_flight) as base_url:
            arms.append(await play_arm(workload, way, base_url))
    print("\n" + figures_table(arms))
    print("\nPublished for this workload:")
    print("\n".join(f"  {line}" for line in workload.published))


def _shape(workload: DemoWorkload) -> str:
    parts = [
        f"{workload.num_turns} turn{'s' * (workload.num_turns > 1)} each",
        f"{workload.shared_tokens:,} tokens shared and {workload.private_tokens:,} of its own",
        f"answers of {workload.output_tokens} tokens",
    ]
    if workload.tool_s:
        parts.append(f"a tool of {workload.tool_s:g} s with {workload.num_topics} different calls")
    if workload.in_flight is not None:
        parts.append(f"{workload.in_flight} model calls in flight")
    return ", ".join(parts)


@asynccontextmanager
async def engine_at(
    url: str | None, is_gated: bool, speed: float = 1.0, in_flight: int | None = None
) -> AsyncIterator[str]:
    """The base URL of an engine, or of a gateway in front of it. Without `url` it is an embedded one, started for
    this."""
    async with AsyncExitStack() as stack:
        if url is None:
            embedded = ["engine", "--port", "0", "--set", f"embedded.speed={speed:g}"]
            base_url = await stack.enter_async_context(command(embedded))
            url = base_url.replace("http://", "vllm://")
        else:
            base_url = parse_address(url).base_url
        if is_gated:
            serve = ["serve", "--port", "0", "--engine", url]
            if in_flight is not None:
                serve += ["--set", f"policy.slots_per_replica={in_flight}"]
            base_url = await stack.enter_async_context(command(serve))
        yield base_url


async def served_model(upstream: Upstream, base_url: str) -> str:
    """Return the first model that an engine serves. Raises RuntimeError."""
    return str((await served_models(upstream, base_url))[0]["id"])


async def served_models(upstream: Upstream, base_url: str, headers: Sequence[tuple[str, str]] = ()) -> list[Json]:
    """Return the models that an engine serves, at least one. Raises RuntimeError."""
    try:
        reply = await upstream.call("GET", f"{base_url}/v1/models", headers, None, TIMEOUTS)
    except UpstreamRefused:
        raise RuntimeError(f"{base_url} does not accept connections: is the engine running?") from None
    raw = await reply.read(_MOST_ANSWER_BYTES)
    models: list[Json] = orjson.loads(raw).get("data") if reply.status == 200 else []
    if not models:
        raise RuntimeError(f"{base_url}/v1/models answered {reply.status} and names no model: is it an engine?")
    return models


async def play_arm(workload: DemoWorkload, way: DemoWay, base_url: str) -> DemoFigures:
    """One run. Texts differ from those of the other arm, which may be in the engine's cache."""
    upstream = AiohttpUpstream()
    try:
        model = await served_model(upstream, base_url)
        client = ModelClient(upstream, base_url, model)
        await client.warm_up()
        arm = DemoFigures(way)
        progress = Progress(way.name, workload.num_agents * workload.num_turns)
        started_at = time.monotonic()
        if workload.is_of_prompts:
            completions = _Completions(upstream, base_url, model, client.chars_per_token)
            await _prompts(workload, arm, completions, progress)
        else:
            await _agents(workload, arm, client, progress)
        arm.wall_s = time.monotonic() - started_at
        progress.end()
        return arm
    finally:
        await upstream.close()


async def _agents(workload: DemoWorkload, arm: DemoFigures, client: ModelClient, progress: Progress) -> None:
    way = arm.way
    slots = asyncio.Semaphore(workload.in_flight or workload.num_agents)
    search = _Search(workload, arm)

    async def attend(number: int) -> None:
        messages = messages_of(workload, way, number, client.chars_per_token)
        async with slots if way.holds_slot else nullcontext():
            for turn in range(workload.num_turns):
                record = TurnRecord(turn, client.now())
                answer = await client.call(messages, workload.output_tokens, record)
                arm.turns.append(record)
                arm.num_requests += 1
                progress.step()
                messages.append({"role": "assistant", "content": answer})
                if turn + 1 < workload.num_turns:
                    found = await search(f"topic-{number % workload.num_topics}")
                    messages.append({"role": "user", "content": found})

    try:
        async with asyncio.TaskGroup() as group:
            for number in range(workload.num_agents):
                group.create_task(attend(number))
    finally:
        await search.close()
    arm.prompt_tokens = sum(turn.prompt_tokens for turn in arm.turns)
    arm.cached_tokens = sum(turn.cached_tokens for turn in arm.turns)


def messages_of(workload: DemoWorkload, way: DemoWay, number: int, chars_per_token: float) -> list[dict[str, str]]:
    """Return the first prompt of an agent. Without a shared prefix it begins with the agent's number."""
    shared = prose(f"{workload.summary} {way.name}", round(chars_per_token * workload.shared_tokens))
    private = prose(f"{way.name} {number}", round(chars_per_token * workload.private_tokens))
    system = shared if way.shares_prefix else f"{number:06} {shared}"
    task = f"{private} Summarise the state of topic-{number % workload.num_topics}."
    return [{"role": "system", "content": system}, {"role": "user", "content": task}]


class _Search:
    """The tool of the agents: it takes its time, and says the same for the same topic."""

    def __init__(self, workload: DemoWorkload, arm: DemoFigures) -> None:
        self._tool_s = workload.tool_s
        self._arm = arm
        effect, ttl_s = (Effect.READ_ONLY, 60.0) if arm.way.shares_tools else (Effect.DESTRUCTIVE, 0.0)
        schema: Json = {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]}
        limits = Limits(ttl_s=ttl_s)
        tool = Tool(
            name="search", description="Searches.", parameters=schema, run=self._run, effect=effect, limits=limits
        )
        self._runtime = ToolRuntime([tool], clock=time.monotonic)

    async def __call__(self, topic: str) -> str:
        call = Call(id="call", name="search", arguments=orjson.dumps({"q": topic}).decode())
        return (await self._runtime.run(call, Context(tenant="demo"))).text

    async def _run(self, arguments: Json, context: Context) -> str:
        self._arm.num_tool_runs += 1
        await asyncio.sleep(self._tool_s)
        return f"Three sources on {arguments['q']}: they agree on the main points, and differ on when they apply."

    async def close(self) -> None:
        await self._runtime.close()


# ---- lists of prompts


@dataclass(frozen=True, slots=True)
class _Completions:
    """Calls of `/v1/completions`."""

    upstream: Upstream
    base_url: str
    model: str
    chars_per_token: float

    async def call(self, prompt: Any, max_tokens: int) -> Json:
        """Return the answer. Raises RuntimeError where it is none."""
        body = {"model": self.model, "prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True}
        headers = [("content-type", "application/json")]
        url = f"{self.base_url}/v1/completions"
        reply = await self.upstream.call("POST", url, headers, orjson.dumps(body), TIMEOUTS)
        raw = await reply.read(_MOST_ANSWER_BYTES)
        if reply.status != 200:
            raise RuntimeError(f"{url} answered {reply.status}: {raw[:500].decode(errors='replace')}")
        answer: Json = orjson.loads(raw)
        return answer


async def _prompts(workload: DemoWorkload, arm: DemoFigures, client: _Completions, progress: Progress) -> None:
    prompts = [
        "\n".join(m["content"] for m in messages_of(workload, arm.way, n, client.chars_per_token))
        for n in range(workload.num_agents)
    ]
    slots = asyncio.Semaphore(workload.in_flight or workload.num_agents)

    async def ask(prompt: str | list[str], num_prompts: int) -> None:
        async with slots:
            answer = await client.call(prompt, workload.output_tokens)
        if len(answer["choices"]) != num_prompts:
            raise RuntimeError(f"{len(answer['choices'])} answers to {num_prompts} prompts")
        arm.num_requests += 1
        usage = answer.get("usage") or {}
        arm.prompt_tokens += usage.get("prompt_tokens") or 0
        arm.cached_tokens += (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        for _ in range(num_prompts):
            progress.step()

    async with asyncio.TaskGroup() as group:
        if arm.way.is_list:
            group.create_task(ask(prompts, len(prompts)))
        else:
            for prompt in prompts:
                group.create_task(ask(prompt, 1))


# ---- the figures

_COLUMNS: Sequence[tuple[str, Callable[[DemoFigures], str]]] = (
    ("arm", lambda arm: arm.way.name),
    ("wall s", lambda arm: f"{arm.wall_s:.2f}"),
    ("TTFT p50 s", lambda arm: _ttft(arm, 0.5)),
    ("TTFT p95 s", lambda arm: _ttft(arm, 0.95)),
    ("p95 behind the gate", lambda arm: _ttft(arm, 0.95, without_gate=True)),
    ("prefix hit", lambda arm: f"{arm.cached_tokens / arm.prompt_tokens:.1%}" if arm.prompt_tokens else "-"),
    ("tool runs", lambda arm: str(arm.num_tool_runs)),
    ("requests", lambda arm: str(arm.num_requests)),
)


def _ttft(arm: DemoFigures, share: float, without_gate: bool = False) -> str:
    """Return a quantile of the time from sending a request to its first token."""
    values = [turn.ttft_s - (turn.gate_s if without_gate else 0.0) for turn in arm.turns]
    return f"{max(0.0, quantile(values, share)):.2f}" if values else "-"


def figures_table(arms: Sequence[DemoFigures]) -> str:
    """Return one row per arm, and the gain of each over the first."""
    rows = [[name for name, _ in _COLUMNS], *([cell(arm) for _, cell in _COLUMNS] for arm in arms)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_COLUMNS))]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    first = arms[0]
    gains = [
        f"{first.way.name} / {arm.way.name}: {first.wall_s / arm.wall_s:.2f}x of the time" for arm in arms[1:]
    ]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:], "", *gains])
