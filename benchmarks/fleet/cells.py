"""One cell: one arm at one seed, on an engine with an empty cache, and what it comes to for its clients."""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace

from benchmarks.fleet.arms import ARMS, ArmContext
from benchmarks.fleet.engines import Fresh
from benchmarks.fleet.fleets import FleetSpec
from gateway.cli.demo_fleet import Fleet, PlannedSession, SessionRecord, draw, quantile
from gateway.transport.aiohttp_upstream import AiohttpUpstream

SHORTEST_FIFO_WAIT_S = 1.0


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


def figures(
    fleet: FleetSpec,
    planned: Sequence[PlannedSession],
    records: Sequence[SessionRecord],
    preemptions: int,
    hits_answers: bool,
) -> FleetFigures:
    done = [record for record in records if record.failure is None]
    if not done:
        raise RuntimeError(f"no session ran to its end, one because: {records[0].failure}")
    turns = [turn for record in done for turn in record.turns]
    completions_s = [record.completion_s for record in done]
    ttft_s = {
        first: [t.first_token_at - t.wanted_at for t in turns if (t.index == 0) is first] or [0.0]
        for first in (True, False)
    }
    return FleetFigures(
        makespan_s=max(turn.done_at for turn in turns),
        mean_session_s=statistics.mean(completions_s),
        p50_session_s=statistics.median(completions_s),
        p95_session_s=quantile(completions_s, 0.95),
        p99_session_s=quantile(completions_s, 0.99),
        p99_ttft_first_s=quantile(ttft_s[True], 0.99),
        p99_ttft_later_s=quantile(ttft_s[False], 0.99),
        uncached_tokens=sum(turn.prompt_tokens - turn.cached_tokens for turn in turns),
        floor_tokens=_floor_tokens(fleet, planned, records, hits_answers),
        prompt_tokens=sum(turn.prompt_tokens for turn in turns),
        preemptions=preemptions,
        errors=len(records) - len(done),
        longest_first_wait_s=max(ttft_s[True]),
        worst_wait_over_fifo=_worst_wait_over_fifo(done),
    )


def _floor_tokens(
    fleet: FleetSpec, planned: Sequence[PlannedSession], records: Sequence[SessionRecord], hits_answers: bool
) -> int:
    floor, is_first = 0, True
    for session, record in zip(planned, records, strict=True):
        if record.failure is not None:
            continue
        known_tokens = 0 if is_first else session.shared_tokens
        is_first = False
        for turn, seen in zip(session.turns, record.turns, strict=True):
            floor += seen.prompt_tokens - known_tokens // fleet.block_tokens * fleet.block_tokens
            known_tokens = seen.prompt_tokens + (turn.output_tokens if hits_answers else 0)
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


async def run_cell(fleet: FleetSpec, fresh: Fresh, arm_name: str, seed: int, chars_per_token: float) -> Cell:
    arm = ARMS[arm_name]
    load = os.getloadavg()[0]
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(fresh(**arm.engine_options))
        base_url = await stack.enter_async_context(arm.front(engine))
        upstream = AiohttpUpstream()
        stack.push_async_callback(upstream.close)
        client = arm.client(ArmContext(fleet, upstream, base_url, engine.model))
        agents = Fleet(upstream, base_url, engine.model, _nothing, chars_per_token, client)
        if arm.has_history:
            earlier = draw(replace(fleet.shape, num_sessions=HISTORY_SESSIONS), HISTORY_SEED + seed)
            await agents.run([replace(session, id=f"earlier-{session.id}") for session in earlier], fleet.within_s)
        planned = draw(fleet.shape, seed)
        earlier_preemptions = await engine.preemptions()
        async with _lateness() as late_share:
            records = await agents.run(planned, fleet.within_s)
        preemptions = await engine.preemptions() - earlier_preemptions
    cell_figures = figures(fleet, planned, records, preemptions, engine.hits_answers)
    failures = sorted({record.failure for record in records if record.failure})
    return Cell(
        arm_name,
        seed,
        load,
        late_share(),
        cell_figures,
        [_life(record) for record in records if not record.failure],
        failures,
    )


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


def _nothing() -> None:
    """Progress is printed per cell."""


def _life(record: SessionRecord) -> list[float]:
    return [round(record.arrived_at, 3), round(record.turns[-1].done_at, 3)]
