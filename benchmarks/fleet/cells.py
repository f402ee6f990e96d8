"""One cell: one arm at one seed, on an engine with an empty cache, and what it comes to for its clients."""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from hashlib import blake2b

import aiohttp

from benchmarks.fleet.arms import ARMS, ArmContext
from benchmarks.fleet.engines import Fresh
from benchmarks.fleet.fleets import FLEETS, SESSION_CAP, SESSION_CAPS
from benchmarks.fleet.player import Author, Player
from benchmarks.simulation.fleets import AgentFleet
from benchmarks.simulation.workloads import AgentRun, ModelCall, everyone
from gateway.cli.demo_fleet import ModelClient, SessionRecord, quantile
from gateway.engines.pages import samples
from gateway.transport.aiohttp_upstream import AiohttpUpstream

SHORTEST_FIFO_WAIT_S = 1.0
GATE_SECONDS = "turngate_gate_seconds_total"


@dataclass(frozen=True, slots=True)
class FleetFigures:
    """Seconds are the clients' own, waiting before the engine included. Means and quantiles are over the sessions
    that ran to their end; `errors` counts the others."""

    makespan_s: float
    mean_session_s: float
    p50_session_s: float
    p95_session_s: float
    p99_session_s: float
    p99_ttft_first_s: float
    p99_ttft_later_s: float
    uncached_tokens: int
    floor_tokens: int
    """Prompt tokens that had to be computed: each distinct one once, in whole blocks."""
    prompt_tokens: int
    preemptions: int
    errors: int
    longest_first_wait_s: float
    worst_wait_over_fifo: float
    """Longest wait for a first token of a session, as a multiple of the wait that its place in the arrivals
    would have got from the same starts in order of arrival (counted as SHORTEST_FIFO_WAIT_S at least)."""
    waited_s: float = 0.0
    """For first tokens, all turns together."""
    held_s: float = 0.0
    """Part of `waited_s` that the gateway states as its own queue."""
    mean_of_class_s: Mapping[str, float] = field(default_factory=dict)
    """Mean completion by class of sessions."""
    sessions_s: float = 0.0
    """Completions of all sessions together, sub-agents included."""
    gate_held_s: float = 0.0
    """By the ledger of the gateway, as the next."""
    gate_saved_s: float = 0.0


def figures(
    runs: Sequence[AgentRun],
    records: Mapping[str, SessionRecord],
    block_tokens: int,
    preemptions: int,
    hits_answers: bool,
) -> FleetFigures:
    """Of a fleet's sessions. Sub-agents are part of the sessions that wait for them: only their tokens, seconds
    of waiting and errors count."""
    done = [records[run.id] for run in runs if records[run.id].failure is None]
    if not done:
        raise RuntimeError(f"no session ran to its end, one because: {records[runs[0].id].failure}")
    turns = [turn for record in done for turn in record.turns]
    all_turns = [turn for record in records.values() if record.failure is None for turn in record.turns]
    completions_s = [record.completion_s for record in done]
    ttft_s = {first: [t.ttft_s for t in turns if (t.index == 0) is first] or [0.0] for first in (True, False)}
    of_class: dict[str, list[float]] = {}
    for run in runs:
        if records[run.id].failure is None:
            of_class.setdefault(run.label, []).append(records[run.id].completion_s)
    return FleetFigures(
        makespan_s=max(turn.done_at for turn in turns),
        mean_session_s=statistics.mean(completions_s),
        p50_session_s=statistics.median(completions_s),
        p95_session_s=quantile(completions_s, 0.95),
        p99_session_s=quantile(completions_s, 0.99),
        p99_ttft_first_s=quantile(ttft_s[True], 0.99),
        p99_ttft_later_s=quantile(ttft_s[False], 0.99),
        uncached_tokens=sum(turn.prompt_tokens - turn.cached_tokens for turn in all_turns),
        floor_tokens=_floor_tokens(runs, records, block_tokens, hits_answers),
        prompt_tokens=sum(turn.prompt_tokens for turn in all_turns),
        preemptions=preemptions,
        errors=sum(record.failure is not None for record in records.values()),
        longest_first_wait_s=max(ttft_s[True]),
        worst_wait_over_fifo=_worst_wait_over_fifo(done),
        waited_s=sum(turn.ttft_s for turn in all_turns),
        held_s=sum(turn.admitted_at - turn.wanted_at for turn in all_turns),
        mean_of_class_s={label: statistics.mean(values) for label, values in sorted(of_class.items())},
        sessions_s=sum(record.completion_s for record in records.values() if record.failure is None),
    )


def _floor_tokens(
    runs: Sequence[AgentRun], records: Mapping[str, SessionRecord], block_tokens: int, hits_answers: bool
) -> int:
    """By the engine's count of tokens, which adds those of the chat template to those that were drawn."""
    floor, families = 0, set[str]()

    def add(run: AgentRun, parent: ModelCall | None, parent_tokens: int) -> None:
        nonlocal floor
        if records[run.id].failure is not None:
            return
        family = run.calls[0].text.parts[0]
        known_tokens = family[0] if family[1] in families else 0
        families.add(family[1])
        if parent is not None and run.calls[0].text.shared(parent.text) >= parent.prompt_tokens:
            known_tokens = parent_tokens
        for call, seen in zip(run.calls, records[run.id].turns, strict=True):
            floor += seen.prompt_tokens - known_tokens // block_tokens * block_tokens
            known_tokens = seen.prompt_tokens + (call.output_tokens if hits_answers else 0)
            for child in call.children if call is not run.calls[-1] else ():
                add(child, call, seen.prompt_tokens)

    for run in runs:
        add(run, None, 0)
    return floor


def _worst_wait_over_fifo(records: Sequence[SessionRecord]) -> float:
    in_order = sorted(records, key=lambda record: record.arrived_at)
    starts = sorted(record.turns[0].first_token_at for record in records)
    return max(
        (record.turns[0].first_token_at - record.arrived_at) / max(start - record.arrived_at, SHORTEST_FIFO_WAIT_S)
        for record, start in zip(in_order, starts, strict=True)
    )


HISTORY_SESSIONS = 24
HISTORY_SEED = 1_000
NAP_S = 0.05


@dataclass(frozen=True, slots=True)
class Cell:
    arm: str
    seed: int
    load: float
    """Of the machine when it started: the one-minute average."""
    late_share: float
    """How late this process woke up, of the time that it meant to sleep: what the machine took from the run."""
    figures: FleetFigures
    sessions: list[list[float]]
    """Arrival and end of those that ran to their end."""
    failures: list[str]
    workload: str = ""
    """Digest of what was played; empty: not recorded."""


def workload_of(fleet: AgentFleet, seed: int) -> str:
    """Digest of a fleet's sessions and engines at a seed. A cell stands for its fleet while this is the same."""
    spec, digest = fleet.world.spec, blake2b(digest_size=8)
    digest.update(repr((spec.num_blocks, spec.block_tokens, fleet.world.num_replicas)).encode())
    for run in everyone(fleet.draw(seed)):
        sizes = [(call.text.parts, call.prompt_tokens, call.output_tokens, call.gap_s) for call in run.calls]
        digest.update(repr((run.id, run.arrives_at, sizes)).encode())
    return digest.hexdigest()


async def run_cell(fleet_name: str, fresh: Fresh, arm_name: str, seed: int, chars_per_token: float) -> Cell:
    fleet, arm = FLEETS[fleet_name], ARMS[arm_name]
    load = os.getloadavg()[0]
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(fresh(**arm.engine_options))
        base_url = await stack.enter_async_context(arm.front(engine))
        upstream = AiohttpUpstream()
        stack.push_async_callback(upstream.close)
        cap = SESSION_CAPS.get(fleet_name, SESSION_CAP)
        context = ArmContext(fleet.world.declares_turns, cap, upstream, base_url, engine.model)

        async def play(runs: Sequence[AgentRun], edition: str = "") -> dict[str, SessionRecord]:
            model = ModelClient(upstream, base_url, engine.model)
            return await Player(model, Author(chars_per_token, edition), arm.client(context)).play(
                runs, within_s(runs)
            )

        if arm.has_history:
            await play(fleet.draw(HISTORY_SEED + seed)[:HISTORY_SESSIONS], "earlier ")
        runs = fleet.draw(seed)
        earlier_preemptions = await engine.preemptions()
        async with _lateness() as late_share:
            records = await play(runs)
        preemptions = await engine.preemptions() - earlier_preemptions
        gate_s = await _gate_seconds(base_url) if base_url != engine.base_url else {}
    block_tokens = fleet.world.spec.block_tokens
    cell_figures = figures(runs, records, block_tokens, preemptions, engine.hits_answers)
    return Cell(
        arm_name,
        seed,
        load,
        late_share(),
        replace(cell_figures, gate_held_s=gate_s.get("held", 0.0), gate_saved_s=gate_s.get("saved", 0.0)),
        [_life(records[run.id]) for run in runs if records[run.id].failure is None],
        sorted({record.failure for record in records.values() if record.failure}),
        workload_of(fleet, seed),
    )


async def _gate_seconds(base_url: str) -> dict[str, float]:
    """Kind -> seconds of sessions, of all replicas; nothing where another gateway stands."""
    async with aiohttp.ClientSession() as http, http.get(f"{base_url}/metrics") as response:
        page = await response.text() if response.status == 200 else ""
    found: dict[str, float] = {}
    for sample in samples(page, (GATE_SECONDS,)):
        kind = sample.labels["kind"]
        found[kind] = found.get(kind, 0.0) + sample.value
    return found


def within_s(runs: Sequence[AgentRun]) -> float:
    """A run that takes longer has failed."""
    longest_tools_s = max(sum(call.gap_s for call in run.calls) for run in everyone(runs))
    return 240.0 + 6.0 * len(list(everyone(runs))) + 2 * runs[-1].arrives_at + 2 * longest_tools_s


@asynccontextmanager
async def _lateness() -> AsyncIterator[Callable[[], float]]:
    naps = late_s = 0.0

    async def watch() -> None:
        nonlocal naps, late_s
        while True:
            asleep_at = time.monotonic()
            await asyncio.sleep(NAP_S)
            naps += 1
            late_s += time.monotonic() - asleep_at - NAP_S

    watcher = asyncio.create_task(watch())
    try:
        yield lambda: late_s / max(1.0, naps * NAP_S)
    finally:
        watcher.cancel()


def _life(record: SessionRecord) -> list[float]:
    return [round(record.arrived_at, 3), round(record.turns[-1].done_at, 3)]
