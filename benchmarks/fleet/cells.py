"""One cell: one arm at one seed, on an engine with an empty cache."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace

from benchmarks.fleet.arms import ARMS, Setting
from benchmarks.fleet.engines import Fresh
from benchmarks.fleet.figures import Figures, figures
from benchmarks.fleet.fleets import FleetSpec
from gateway.demo.agents import Fleet, SessionRecord
from gateway.demo.workload import draw
from gateway.transports.aiohttp_upstream import AiohttpUpstream

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
    figures: Figures
    sessions: list[list[float]]
    """Arrival, first token of the first turn, end, turns; of those that ran to their end."""
    failures: list[str]


async def run_cell(fleet: FleetSpec, fresh: Fresh, arm_name: str, seed: int, chars_per_token: float) -> Cell:
    arm = ARMS[arm_name]
    load = os.getloadavg()[0]
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(fresh(**arm.engine_options))
        base_url = await stack.enter_async_context(arm.front(engine))
        upstream = AiohttpUpstream()
        stack.push_async_callback(upstream.close)
        client = arm.client(Setting(fleet, upstream, base_url, engine.model))
        agents = Fleet(upstream, base_url, engine.model, _nothing, chars_per_token, client)
        if arm.has_history:
            earlier = draw(replace(fleet.shape, num_sessions=HISTORY_SESSIONS), HISTORY_SEED + seed)
            await agents.run([replace(session, id=f"earlier-{session.id}") for session in earlier], fleet.within_s)
        planned = draw(fleet.shape, seed)
        earlier_preemptions = await engine.preemptions()
        async with _lateness() as late_share:
            records = await agents.run(planned, fleet.within_s)
        preemptions = await engine.preemptions() - earlier_preemptions
    found = figures(fleet, planned, records, preemptions, engine.hits_answers)
    failures = sorted({record.failure for record in records if record.failure})
    return Cell(
        arm_name,
        seed,
        load,
        late_share(),
        found,
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
    times = (record.arrived_at, record.turns[0].first_token_at, record.turns[-1].done_at)
    return [*(round(time, 3) for time in times), len(record.turns)]
