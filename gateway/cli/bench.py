"""`turngate bench`: what the gate gains on an engine of the user's. The same fleet is played straight, through a
gateway that only observes, and through one with its gate, in turn and several times."""

from __future__ import annotations

import argparse
import asyncio
import math
import secrets
import signal
import statistics
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gateway.cli import process, remote
from gateway.cli.bench_fleet import BenchFleet, EngineSpeed, fleet_of_facts, fleet_of_pool
from gateway.cli.bench_report import (
    ARMS,
    FORMS,
    OBSERVE,
    STRAIGHT,
    BenchReport,
    BenchRun,
    GateLedger,
    run_of,
)
from gateway.cli.demo_fleet import (
    CALL_FAILURES,
    Fleet,
    ModelClient,
    PlannedSession,
    SessionRecord,
    TurnRecord,
    prose,
)
from gateway.cli.demo_process import Progress, command
from gateway.cli.demo_workloads import served_models
from gateway.cli.remote import NoPage
from gateway.config import loading
from gateway.config.settings import Settings
from gateway.core.errors import ConfigError
from gateway.core.fields import Json, integer
from gateway.core.transport import Upstream
from gateway.engines.base import EngineAddress
from gateway.engines.kinds import EMBEDDED, adapter_of
from gateway.telemetry import factlog
from gateway.transport.aiohttp_upstream import AiohttpUpstream

EXAMPLES = """\
examples:
  turngate bench --engine vllm://gpu1:8000
  turngate bench --engine dynamo://front:8000 --agents 60 --report bench.md
  turngate bench --engine sglang://gpu1:30000 --facts facts.jsonl
"""
MINUTES = 15.0
MOST_REPEATS, SOUGHT_REPEATS = 5, 3
SETTLE_S = 10.0
"""For the pool to be stated by all its engines."""
RESERVE_S = 15.0
"""Of the time: for the last page."""
PROBE_TOKENS, PROBE_OUTPUT = 2_000, 32
FACTS_STRETCH = 1.5
"""How much longer than its window a fleet of a log may run."""
_ALONE = {
    "listen.host": "127.0.0.1",
    "keys": "[]",
    "admin.port": "null",
    "cluster.workers": "1",
    "cluster.redis": "null",
    "batches.directory": "null",
    "batches.redis": "null",
    "tracing.endpoint": "null",
    "logging.facts": "null",
    "logging.level": "warning",
    "tools.use": "[]",
    "tools.mcp": "[]",
    "policy.max_wait_s": "3600",
}
"""What a gateway of the bench does otherwise than the user's: it serves the bench alone, for a while."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    parser.add_argument(
        "--agents",
        type=_count,
        metavar="NUMBER",
        help="play this many agents (default: as many as fill the engine's KV pool twice)",
    )
    parser.add_argument(
        "--facts",
        type=Path,
        metavar="FILE",
        help="play the busiest minute of this log of facts (logging.facts) instead: its sizes, times and answers",
    )
    parser.add_argument(
        "--minutes", type=float, default=MINUTES, help="take at most this long (default: %(default)g)"
    )
    parser.add_argument(
        "--repeats",
        type=_count,
        default=MOST_REPEATS,
        metavar="NUMBER",
        help="play each arm at most so often, as far as the time allows (default: %(default)s)",
    )
    parser.add_argument("--report", type=Path, metavar="FILE", help="write the result to FILE.md or FILE.json too")


def _count(text: str) -> int:
    if not text.isdigit() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 on")
    return int(text)


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    report: Path | None = arguments.report
    if report is not None and report.suffix.lower() not in FORMS:
        raise ConfigError(f"--report {report}: name a file that ends in .md or .json")
    if report is not None and not report.absolute().parent.is_dir():
        raise ConfigError(f"--report {report}: there is no such folder")
    failures: list[BaseException] = []
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a script ignores it
    try:
        return process.run_loop(_until_sigterm(bench(arguments, settings)))
    except* (*CALL_FAILURES, NoPage, TimeoutError, OSError) as group:
        failures.extend(_leaves(group))
    for failure in failures[:1]:
        print(f"turngate bench: {failure or type(failure).__name__}", file=sys.stderr)
    return 1


def _leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    found: list[BaseException] = []
    for one in group.exceptions:
        found += _leaves(one) if isinstance(one, BaseExceptionGroup) else [one]
    return found


async def _until_sigterm(main: Coroutine[Any, Any, int]) -> int:
    """Take SIGTERM as SIGINT, which ends the processes of a bench with it."""
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, signal.raise_signal, signal.SIGINT)
    return await main


async def bench(arguments: argparse.Namespace, settings: Settings) -> int:
    """Play the runs and print the page. Raises ConfigError, RuntimeError."""
    began_at = time.monotonic()
    deadline = began_at + 60 * arguments.minutes - RESERVE_S
    async with AsyncExitStack() as stack:
        ground = await stack.enter_async_context(_ground(arguments, settings))
        print(f"engine: {ground.title}", flush=True)
        fleet = _fleet(arguments, ground, deadline - time.monotonic())
        times = f", {fleet.peak_tokens / ground.pool_tokens:.1f} times the pool" if ground.pool_tokens else ""
        print(f"fleet: {fleet}{times}\n", flush=True)
        runs, notes = await _runs(ground, fleet, deadline, arguments.repeats)
    report = BenchReport(
        engine=ground.title,
        fleet=f"{fleet}{times}",
        pool_tokens=ground.pool_tokens,
        peak_tokens=fleet.peak_tokens,
        runs=runs,
        took_s=time.monotonic() - began_at,
        notes=notes,
    )
    print("\n" + report.as_text())
    if arguments.report is not None:
        report.write(arguments.report)
        print(f"\nReport: {arguments.report}")
    return 0


def _fleet(arguments: argparse.Namespace, ground: _Ground, left_s: float) -> BenchFleet:
    most_run_s = left_s / len(ARMS)
    sought_run_s = most_run_s / SOUGHT_REPEATS
    if arguments.facts is not None:
        try:
            return fleet_of_facts(factlog.lines(arguments.facts), sought_run_s / FACTS_STRETCH)
        except (OSError, ValueError) as error:
            raise ConfigError(f"--facts {arguments.facts}: {getattr(error, 'strerror', None) or error}") from None
    if ground.pool_tokens is None:
        raise ConfigError(
            "the engine does not state the size of its KV pool: give it as --set policy.capacity_tokens=NUMBER"
        )
    terms = ground.pool_tokens, ground.context_tokens, ground.speed, arguments.agents
    return fleet_of_pool(*terms, sought_run_s, most_run_s)


async def _runs(
    ground: _Ground, fleet: BenchFleet, deadline: float, most_repeats: int
) -> tuple[list[BenchRun], list[str]]:
    """Play whole repeats until there are enough, or the time is over. Each begins with another arm."""
    runs: list[BenchRun] = []
    longest_s = 0.0
    for repeat in range(most_repeats):
        began_at = time.monotonic()
        if repeat and began_at + longest_s > deadline:
            break
        own = []
        for place in range(len(ARMS)):
            arm = ARMS[(repeat + place) % len(ARMS)]
            left_s = deadline - time.monotonic()
            try:
                own.append(await ground.play(arm, repeat, fleet, left_s))
            except TimeoutError:
                if not runs:
                    raise RuntimeError(
                        "the time was over before each arm had run: give it more --minutes"
                    ) from None
                return runs, [f"The time was over in repeat {repeat + 1}, which is left out."]
        runs += own
        longest_s = max(longest_s, time.monotonic() - began_at)
    return runs, []


# ---- the engine, and what is in front of it


@dataclass(frozen=True, slots=True)
class _Ground:
    """Where the arms are played."""

    addresses: Sequence[EngineAddress]
    serve: Sequence[str]
    """Arguments of a gateway in front of them."""
    upstream: Upstream
    model: str
    context_tokens: int | None
    pool_tokens: int | None
    speed: EngineSpeed
    name: str
    """Of this bench, in its texts: another one before may have left its own in the cache."""

    @property
    def title(self) -> str:
        pool = f"a KV pool of {self.pool_tokens:,} tokens" if self.pool_tokens else "a KV pool of unknown size"
        engines = ", ".join(f"{one.kind} {one.name}" for one in self.addresses)
        speed = f"{1 / self.speed.prefill_token_s:,.0f} tokens of prompts per second"
        return (
            f"{engines}, model {self.model}, {pool}, {speed}, {1 / self.speed.decode_token_s:,.0f} of one answer"
        )

    async def play(self, arm: str, repeat: int, fleet: BenchFleet, left_s: float) -> BenchRun:
        """Raises TimeoutError where it takes longer than it may, RuntimeError where sessions fail."""
        sessions = fleet.of(repeat, f"{self.name} {repeat} {arm}")
        async with AsyncExitStack() as stack:
            bases = [(one.base_url, _key_header(one)) for one in self.addresses]
            if arm != STRAIGHT:
                bases = [(await stack.enter_async_context(command([*self.serve, *_set("policy.name", arm)])), [])]
            progress = Progress(f"repeat {repeat + 1}, {arm:<8}", sum(len(one.turns) for one in sessions))
            progress.begin()
            async with asyncio.timeout(max(0.0, left_s)):
                records = await self._played(sessions, bases, progress.step)
            progress.end()
            ledger = await self._ledger(bases[0][0]) if arm != STRAIGHT else GateLedger()
        return run_of(arm, repeat, records, ledger)

    async def _played(
        self,
        sessions: Sequence[PlannedSession],
        bases: Sequence[tuple[str, list[tuple[str, str]]]],
        on_turn: Callable[[], None],
    ) -> list[SessionRecord]:
        """Play the sessions, spread evenly over the addresses."""
        chars = self.speed.chars_per_token
        fleets = [
            Fleet(ModelClient(self.upstream, base_url, self.model), on_turn, headers, chars)
            for base_url, headers in bases
        ]
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(one.run(sessions[number :: len(fleets)])) for number, one in enumerate(fleets)
            ]
        return [record for task in tasks for record in task.result()]

    async def _ledger(self, gateway: str) -> GateLedger:
        replicas = (await _page(self.upstream, gateway, "/v1/turngate/why"))["replicas"]
        return GateLedger(*(sum(one[f"gate_{what}_s"] for one in replicas) for what in ("held", "saved")))


def bench_client() -> AiohttpUpstream:
    """Return a client that asks again when a connection that was used before breaks without a byte, however late
    (RFC 9112, 9.3.1). An engine on a busy machine may close an idle one seconds after the call was sent, and its
    calls may be made twice."""
    return AiohttpUpstream(stale_within_s=math.inf)


@asynccontextmanager
async def _ground(arguments: argparse.Namespace, settings: Settings) -> AsyncIterator[_Ground]:
    """Look at the engines; embedded ones are started."""
    print("turngate bench: looking at the engine ...", flush=True)
    async with AsyncExitStack() as stack:
        upstream = bench_client()
        stack.push_async_callback(upstream.close)
        addresses, serve = await _engines(arguments, settings, stack)
        first = addresses[0]
        models = await served_models(upstream, first.base_url, _key_header(first))
        model, name = models[0], secrets.token_hex(4)
        client = ModelClient(upstream, first.base_url, str(model["id"]))
        async with command([*serve, *_set("policy.name", OBSERVE)]) as gateway:
            pool_tokens = await _pool_tokens(upstream, gateway)
        context_tokens = integer(model, "max_model_len")
        yield _Ground(
            addresses=addresses,
            serve=serve,
            upstream=upstream,
            model=str(model["id"]),
            context_tokens=context_tokens,
            pool_tokens=pool_tokens,
            speed=await _speed(client, _key_header(first), name, context_tokens),
            name=name,
        )


async def _engines(
    arguments: argparse.Namespace, settings: Settings, stack: AsyncExitStack
) -> tuple[list[EngineAddress], list[str]]:
    """Return the engines, and the arguments of a gateway in front of them. Raises ConfigError."""
    found = loading.addresses(settings)
    if rented := [one.name for one in found if adapter_of(one.kind).throttles]:
        raise ConfigError(f"{rented[0]} is a rented model, whose cache no gate can keep: name an engine of yours")
    own = _configured(arguments)
    serve = ["serve", "--port", "0", *own]
    for key, value in _ALONE.items():
        serve += _set(key, value)
    if not any(one.kind == EMBEDDED for one in found):
        serve += ["--hosts", arguments.hosts] if arguments.hosts else []
        return found, [*serve, *(part for url in arguments.engine or () for part in ("--engine", url))]
    if len(found) > 1:
        raise ConfigError("a bench takes one embedded engine, and no other beside it")
    base_url = await stack.enter_async_context(command(["engine", "--port", "0", *own]))
    address = replace(found[0], base_url=base_url)
    return [address], [*serve, "--engine", base_url.replace("http", "vllm", 1)]


def _configured(arguments: argparse.Namespace) -> list[str]:
    """Return the flags of the configuration as they were given."""
    given = ["--config", str(arguments.config)] if arguments.config is not None else []
    for key, value in arguments.set or ():
        given += _set(key, value)
    return given


def _set(key: str, value: str) -> list[str]:
    return ["--set", f"{key}={value}"]


def _key_header(address: EngineAddress) -> list[tuple[str, str]]:
    return [("authorization", f"Bearer {address.api_key}")] if address.api_key else []


async def _page(upstream: Upstream, gateway: str, path: str) -> Json:
    return await remote.page(upstream, gateway, path, "", SETTLE_S)


async def _pool_tokens(upstream: Upstream, gateway: str) -> int | None:
    """Return the size of all KV pools, by what their engines state. None: one does not within SETTLE_S.

    Raises RuntimeError where no engine is up."""
    until = time.monotonic() + SETTLE_S
    while True:
        replicas = (await _page(upstream, gateway, "/v1/turngate/why"))["replicas"]
        sizes: list[float | None] = [one["capacity_tokens"] for one in replicas if one["is_up"]]
        if sizes and all(sizes):
            return round(sum(size or 0.0 for size in sizes))
        if time.monotonic() > until:
            if not sizes:
                raise RuntimeError("no engine answers the polls of the gateway: turngate doctor says more")
            return None
        await asyncio.sleep(0.2)


async def _speed(
    client: ModelClient, headers: list[tuple[str, str]], name: str, context_tokens: int | None
) -> EngineSpeed:
    """Ask one call at a time: a cold one, which is not measured, and two prompts of unlike lengths."""
    most_tokens = PROBE_TOKENS if context_tokens is None else min(PROBE_TOKENS, context_tokens // 4)

    async def ask(number: int, num_chars: int) -> TurnRecord:
        record = TurnRecord(number, client.now())
        text = prose(f"{name} {number}", num_chars)
        await client.call([{"role": "user", "content": text}], PROBE_OUTPUT, record, headers)
        return record

    await ask(0, most_tokens)
    short, long = await ask(1, most_tokens // 4), await ask(2, 2 * most_tokens)
    num_chars, num_tokens = 2 * most_tokens - most_tokens // 4, long.prompt_tokens - short.prompt_tokens
    if num_tokens <= 0:
        raise RuntimeError("the engine does not count the tokens of prompts in its answers (usage.prompt_tokens)")
    decode_s = statistics.mean(one.done_at - one.first_token_at for one in (short, long))
    return EngineSpeed(
        chars_per_token=num_chars / num_tokens,
        prefill_token_s=max(1e-6, long.ttft_s - short.ttft_s) / num_tokens,
        decode_token_s=max(1e-6, decode_s) / (PROBE_OUTPUT - 1),
    )
