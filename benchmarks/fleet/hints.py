"""Two gateways before one Dynamo frontend whose router queues: do near-done turns get their first token sooner?

    python -m benchmarks.fleet.hints --seeds 1 2 3

Each gateway sees half of the requests and nothing of the other's, so only the engine's own queue can order them
all, by the hints that both send. Every second request declares that no turn follows it. `straight`: the same
requests without a gateway; nothing reads what they declare. Seconds are those of a simulated engine: read them as
ratios.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass

import orjson

from benchmarks.results import command_parser, write
from gateway.cli.demo_fleet import TIMEOUTS, prose
from gateway.core.transport import Upstream, UpstreamReply
from gateway.transport.aiohttp_upstream import AiohttpUpstream
from tests.real.dynamo import DynamoOptions, dynamo_stack
from tests.real.gateway import Gateway, engine_url, gateway, sample

NUM_REQUESTS = 60
PROMPT_CHARS = 3_600
"""About 1500 tokens."""
OPTIONS = DynamoOptions(num_blocks=8192, max_batched_tokens=4096, router_queue_threshold=0.5)
"""The router queues, and the cache holds all requests, so the gateways let every one of them go at once."""
TOOL = {"type": "function", "function": {"name": "bash", "parameters": {"type": "object", "properties": {}}}}
ARMS = {"straight": 0, "two gateways": 2}


@dataclass(frozen=True, slots=True)
class HintFigures:
    """One arm at one seed."""

    near_done_ttft_s: float
    """Mean, of the requests that declare no turn to follow."""
    rest_ttft_s: float
    ratio: float
    num_queued: int
    """Most requests seen in the router's queue."""
    num_failed: int
    """Answers other than 200."""
    num_refused_hints: int


async def run_arm(num_gateways: int, seed: int) -> HintFigures:
    """All requests at once, in turn over the gateways; straight at the frontend when there are none."""
    async with AsyncExitStack() as stack:
        dynamo = await stack.enter_async_context(dynamo_stack(OPTIONS))
        front = [
            await stack.enter_async_context(gateway(engine_url("dynamo", dynamo.base_url)))
            for _ in range(num_gateways)
        ]
        upstream = AiohttpUpstream()
        stack.push_async_callback(upstream.close)
        base_urls = [one.base_url for one in front] or [dynamo.base_url]
        requests = asyncio.gather(
            *(
                ttft_s(upstream, base_urls[n // 2 % len(base_urls)], dynamo.model, f"{seed}-{n}", n % 2 == 0)
                for n in range(NUM_REQUESTS)
            )
        )
        num_queued = 0.0
        while not requests.done():
            queued = await sample(dynamo.metrics_url, "dynamo_frontend_router_queue_pending_requests")
            num_queued = max(num_queued, queued)
            await asyncio.sleep(0.1)
        answers = await requests
        return figures(answers, int(num_queued), sum([await refused_hints(one) for one in front]))


def figures(answers: list[float | None], num_queued: int, num_refused_hints: int) -> HintFigures:
    near_s, rest_s = (
        statistics.mean([answer for answer in answers[start::2] if answer is not None]) for start in (0, 1)
    )
    num_failed = answers.count(None)
    return HintFigures(near_s, rest_s, near_s / rest_s, num_queued, num_failed, num_refused_hints)


async def refused_hints(front: Gateway) -> int:
    return int(await front.metric("turngate_hints_total", result="refused"))


async def ttft_s(upstream: Upstream, base_url: str, model: str, name: str, is_near_done: bool) -> float | None:
    """From the request to its first token; None when it was not answered."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": prose(name, PROMPT_CHARS)}],
        "tools": [TOOL],
        "stream": True,
        "max_tokens": 16,
        "ignore_eos": True,
    }
    headers = [("content-type", "application/json"), ("X-Turngate-Session", name)]
    if is_near_done:
        headers.append(("X-Turngate-Remaining-Turns", "0"))
    started = time.monotonic()
    url = f"{base_url}/v1/chat/completions"
    reply: UpstreamReply = await upstream.call("POST", url, headers, orjson.dumps(body), TIMEOUTS)
    first_s = None
    async for chunk in reply.chunks():
        if first_s is None and b'"content":' in chunk:
            first_s = time.monotonic() - started
    return first_s if reply.status == 200 else None


def table(results: dict[str, list[HintFigures]]) -> str:
    """One row per arm: means over the seeds, the range of the ratio, and what went wrong in all of them."""
    lines = [
        "| arm | near-done TTFT s | rest TTFT s | ratio | in the router's queue | failed | hints refused |",
        "|---" * 7 + "|",
    ]
    for arm, runs in results.items():
        near_s = statistics.mean(run.near_done_ttft_s for run in runs)
        rest_s = statistics.mean(run.rest_ttft_s for run in runs)
        ratios = sorted(run.ratio for run in runs)
        ratio = f"{statistics.median(ratios):.2f} [{ratios[0]:.2f}-{ratios[-1]:.2f}]"
        num_queued = max(run.num_queued for run in runs)
        num_failed, num_refused = sum(run.num_failed for run in runs), sum(run.num_refused_hints for run in runs)
        lines.append(
            f"| {arm} | {near_s:.2f} | {rest_s:.2f} | {ratio} | {num_queued} | {num_failed} | {num_refused} |"
        )
    return "\n".join(lines)


async def main(arguments: argparse.Namespace) -> None:
    results: dict[str, list[HintFigures]] = {arm: [] for arm in ARMS}
    for seed in arguments.seeds:
        for arm, num_gateways in ARMS.items():
            seed_figures = await run_arm(num_gateways, seed)
            results[arm].append(seed_figures)
            print(f"seed {seed} {arm}: {seed_figures}", file=sys.stderr, flush=True)
    text = table(results)
    print(text)
    write(arguments.results, "hints-dynamo", text, results)


def parse() -> argparse.Namespace:
    parser = command_parser(__doc__, __file__)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    return parser.parse_args()


if __name__ == "__main__":
    asyncio.run(main(parse()))
