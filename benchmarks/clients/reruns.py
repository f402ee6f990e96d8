"""Fleets of agents that are hard to tell apart, on the embedded engine, with and without a session header.

    python -m benchmarks.clients.reruns

*reruns*: the same tasks twice in one gateway, with equal answers and ids of calls that count within a
conversation (`functions.read:0`), as evaluations at temperature 0 have them. *keep 5*: agents that elide all but
their last five observations. Each is played without any header, and with `X-Turngate-Session`, on fresh processes.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from typing import Any

import orjson

from benchmarks.fleet.player import prose
from benchmarks.results import command_parser, write
from gateway.cli.demo_fleet import TIMEOUTS
from gateway.cli.demo_process import command
from gateway.core.transport import Upstream
from gateway.transport.aiohttp_upstream import AiohttpUpstream

NUM_AGENTS, NUM_TURNS = 12, 12
CAPACITY_TOKENS = 24_576
RULES_CHARS, TASK_CHARS, RESULT_CHARS = 6_000, 1_200, 1_000
OUTPUT_CHARS = 200
GAP_S = 0.3, 0.8
KEPT = 5
MOST = 1.02
TOOL = {"type": "function", "function": {"name": "read", "description": "Reads a file.", "parameters": {}}}
ELIDED = "Old environment output: (omitted)"
MAX_BYTES = 1 << 24


@dataclass(frozen=True, slots=True)
class Case:
    num_rounds: int
    elides: bool = False


CASES = {"reruns": Case(2), "keep 5": Case(1, elides=True)}


@dataclass(frozen=True, slots=True)
class RoundFigures:
    """One round of all agents."""

    case: str
    is_named: bool
    seed: int
    number: int
    computed_tokens: int
    mean_s: float
    num_sessions: int
    """That the gateway has counted by its end, of NUM_AGENTS per round."""


async def play(name: str, is_named: bool, seed: int) -> list[RoundFigures]:
    """Play all rounds of a case on a fresh engine and a fresh gateway."""
    case, found = CASES[name], []
    engine_settings = (f"embedded.capacity_tokens={CAPACITY_TOKENS}", "embedded.slots=256")
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(command(["engine", "--port", "0", *_set(engine_settings)]))
        served = ["serve", "--port", "0", "--engine", engine.replace("http", "vllm", 1)]
        base_url = await stack.enter_async_context(command(served))
        upstream = AiohttpUpstream()
        stack.push_async_callback(upstream.close)
        for number in range(case.num_rounds):
            runs = [
                _run(upstream, base_url, case, f"{seed}.{agent}", f"{number}.{agent}" if is_named else "")
                for agent in range(NUM_AGENTS)
            ]
            ended = await asyncio.gather(*runs)
            rows = (await _json(upstream, "GET", f"{base_url}/v1/turngate/sessions"))["sessions"]
            computed_tokens = sum(tokens for _, tokens in ended)
            mean_s = statistics.mean(seconds for seconds, _ in ended)
            num_sessions = sum(row["kind"] != "side" for row in rows)
            found.append(RoundFigures(name, is_named, seed, number, computed_tokens, mean_s, num_sessions))
    return found


def _set(settings: Sequence[str]) -> list[str]:
    return [part for setting in settings for part in ("--set", setting)]


async def _run(upstream: Upstream, base_url: str, case: Case, task: str, session: str) -> tuple[float, int]:
    """Run one agent. Return how long it took, and the prompt tokens that the engine computed for it."""
    noise, began_at, computed_tokens = random.Random(task), time.monotonic(), 0
    history: list[dict[str, Any]] = [{"role": "user", "content": f"Task {task}: {prose(task, TASK_CHARS)}"}]
    for turn in range(NUM_TURNS):
        body = {
            "model": "embedded",
            "messages": [{"role": "system", "content": prose("rules", RULES_CHARS)}, *_shown(history, case)],
            "tools": [TOOL],
            "embedded_script": _answer(task, turn),
        }
        headers = [("x-turngate-session", session)] if session else []
        answer = await _json(upstream, "POST", f"{base_url}/v1/chat/completions", headers, body)
        usage = answer["usage"]
        computed_tokens += usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"]
        said = answer["choices"][0]["message"]
        history.append({key: said[key] for key in ("role", "content", "tool_calls") if said.get(key)})
        for call in said.get("tool_calls") or ():
            text = prose(f"{task} {turn}", RESULT_CHARS)
            history.append({"role": "tool", "tool_call_id": call["id"], "content": text})
        if turn + 1 < NUM_TURNS:
            await asyncio.sleep(noise.uniform(*GAP_S))
    return time.monotonic() - began_at, computed_tokens


def _answer(task: str, turn: int) -> dict[str, Any]:
    if turn == NUM_TURNS - 1:
        return {"content": f"Task {task} is done."}
    arguments = {"path": prose(f"{task} answer {turn}", OUTPUT_CHARS)}
    return {"tool_calls": [{"name": "read", "arguments": arguments, "id": f"functions.read:{turn}"}]}


def _shown(history: Sequence[dict[str, Any]], case: Case) -> list[dict[str, Any]]:
    seen = [at for at, message in enumerate(history) if message["role"] == "tool"]
    old = set(seen[:-KEPT]) if case.elides else set()
    return [message | {"content": ELIDED} if at in old else message for at, message in enumerate(history)]


async def _json(
    upstream: Upstream,
    method: str,
    url: str,
    headers: Sequence[tuple[str, str]] = (),
    body: Mapping[str, Any] | None = None,
) -> Any:
    sent = None if body is None else orjson.dumps(body)
    reply = await upstream.call(method, url, [("content-type", "application/json"), *headers], sent, TIMEOUTS)
    content = await reply.read(MAX_BYTES)
    reply.close(reuse=True)
    if reply.status != 200:
        raise RuntimeError(f"{url} answered {reply.status}: {content[:500].decode(errors='replace')}")
    return orjson.loads(content)


# ---- the table


def table(found: Sequence[RoundFigures]) -> str:
    lines = [
        f"{NUM_AGENTS} agents of {NUM_TURNS} turns, a pool of {CAPACITY_TOKENS:,} tokens. Cases: first lines of",
        "`benchmarks/clients/reruns.py`. *Computed*: prompt tokens that were not cached, mean over the seeds.",
        f"*Named*: the same fleets with `X-Turngate-Session`; a ratio to them of at most {MOST:g} is wanted.",
        "*Sessions*: the most that the gateway has counted by the end of a round, and how many there are.",
        "In brackets the standard error of a ratio, from the spread over the seeds. The Scheduler is told the",
        "same in both arms (`tests/sessions/test_identity_fleets.py`): only times differ.",
        "",
        "| case | round | sessions | computed | named | ratio | mean s | named | ratio |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, case in CASES.items():
        rounds: list[Sequence[int]] = [[number] for number in range(case.num_rounds)]
        for numbers in rounds + [range(case.num_rounds)] * (case.num_rounds > 1):
            chosen = [one for one in found if one.case == name and one.number in numbers]
            if len({one.is_named for one in chosen}) == 2:
                lines.append(_row(name, numbers, chosen))
    return "\n".join(lines)


def _row(name: str, numbers: Sequence[int], chosen: Sequence[RoundFigures]) -> str:
    """Return the figures of some rounds of a case, both arms."""
    named, bare = ([one for one in chosen if one.is_named is is_named] for is_named in (True, False))
    sessions = f"{max(each.num_sessions for each in bare)} of {NUM_AGENTS * (numbers[-1] + 1)}"
    tokens, named_tokens = (_by_seed(each, lambda one: one.computed_tokens) for each in (bare, named))
    seconds, named_s = (_by_seed(each, lambda one: one.mean_s) for each in (bare, named))
    cells = [name, " and ".join(str(number + 1) for number in numbers), sessions]
    cells += [f"{statistics.mean(tokens):,.0f}", f"{statistics.mean(named_tokens):,.0f}"]
    cells += [_ratio(tokens, named_tokens), f"{statistics.mean(seconds):.2f}", f"{statistics.mean(named_s):.2f}"]
    return f"| {' | '.join([*cells, _ratio(seconds, named_s)])} |"


def _by_seed(chosen: Sequence[RoundFigures], figure: Callable[[RoundFigures], float]) -> list[float]:
    """Return the mean over the rounds of each seed."""
    seeds = sorted({one.seed for one in chosen})
    return [statistics.mean(figure(one) for one in chosen if one.seed == seed) for seed in seeds]


def _ratio(values: Sequence[float], others: Sequence[float]) -> str:
    """Return the ratio of two means, with its standard error."""
    squares = [
        statistics.variance(each) / len(each) / statistics.mean(each) ** 2 if len(each) > 1 else 0.0
        for each in (values, others)
    ]
    ratio = statistics.mean(values) / statistics.mean(others)
    return f"{ratio:.3f} ({ratio * sum(squares) ** 0.5:.3f})"


async def measure(names: Sequence[str], seeds: Sequence[int]) -> list[RoundFigures]:
    found = []
    for seed in seeds:
        for name in names:
            for is_named in (False, True):
                found += await play(name, is_named, seed)
    return found


def main() -> None:
    parser = command_parser(__doc__, __file__)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    options = parser.parse_args()
    began_at = time.monotonic()
    found = asyncio.run(measure(options.cases, options.seeds))
    text = table(found)
    print(text)
    write(options.results, "reruns", text, [asdict(one) for one in found], time.monotonic() - began_at)


if __name__ == "__main__":
    main()
