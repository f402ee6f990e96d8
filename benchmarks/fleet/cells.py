"""One cell: one arm at one seed, on an engine with an empty cache."""

from __future__ import annotations

import os
from contextlib import AsyncExitStack
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


@dataclass(frozen=True, slots=True)
class Cell:
    arm: str
    seed: int
    load: float
    """Of the machine when it started: the one-minute average."""
    figures: Figures
    sessions: list[tuple[float, float, float, int]]
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
        records = await agents.run(planned, fleet.within_s)
        preemptions = await engine.preemptions()
    found = figures(fleet, planned, records, preemptions, engine.hits_answers)
    failures = sorted({record.failure for record in records if record.failure})
    return Cell(arm_name, seed, load, found, [_life(record) for record in records if not record.failure], failures)


def _nothing() -> None:
    """Progress is printed per cell."""


def _life(record: SessionRecord) -> tuple[float, float, float, int]:
    times = (record.arrived_at, record.turns[0].first_token_at, record.turns[-1].done_at)
    arrived, first, end = (round(time, 3) for time in times)
    return arrived, first, end, len(record.turns)
