"""Puts the parts of durable batches together, starts them in order and stops them in reverse."""

from __future__ import annotations

import socket
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from prometheus_client import CollectorRegistry

from gateway.access.keys import Keys
from gateway.batches.agent_runs import AgentRuns
from gateway.batches.api import Api
from gateway.batches.concurrency_limiter import Load, Pace, Window
from gateway.batches.endpoints import Endpoints
from gateway.batches.front import ENDPOINTS
from gateway.batches.line_executor import LineExecutor
from gateway.batches.outputs import Outputs
from gateway.batches.ownership import Shift
from gateway.batches.redis import RedisStore
from gateway.batches.runner import BatchMetrics, Closing, Runner
from gateway.batches.sqlite import SqliteStore
from gateway.batches.upload import Blobs
from gateway.config import loading
from gateway.config.settings import Batches
from gateway.core.transport import Handler
from policies.view import FleetView
from tool_runtime.runtime import ToolRuntime

UPLOAD_S = 24 * 3600.0
"""Longer than a file is on its way to a directory that several gateways write to."""


@dataclass(frozen=True, slots=True)
class BatchContext:
    """What batches need of the gateway."""

    path: Handler
    """The gateway's own, with LineKeys."""
    keys: Keys
    view: Callable[[], FleetView]
    wrong_model: Callable[[str], str | None]
    """Says why nothing serves a model; None where something does."""
    runtime: ToolRuntime | None
    """Of the gateway's tools."""
    session_ended: Callable[[str], None]
    registry: CollectorRegistry
    max_line_bytes: Callable[[], int]
    clock: Callable[[], float]
    """Monotonic seconds."""
    now: Callable[[], float] = time.time
    """Unix seconds."""


@asynccontextmanager
async def serving(settings: Batches, around: BatchContext) -> AsyncIterator[Handler]:
    """The API, with live batches at work. `settings` name a directory. Raises OSError, ConfigError."""
    assert settings.directory is not None
    store, blobs = _kept_in(Path(settings.directory), settings.redis)
    window = Window(Pace(settings.in_flight), lambda: Load.of(around.view()), around.clock)
    metrics = BatchMetrics(around.registry, lambda: window.in_flight, lambda: window.size)
    asking = LineExecutor(around.path, window, settings.attempts, metrics.retries.inc)

    outputs = Outputs(around.clock)
    agent_runs = AgentRuns(asking, store, around.runtime, around.session_ended, outputs)
    endpoints = Endpoints(asking, agent_runs, around.runtime, around.wrong_model)
    runner = Runner(
        store,
        blobs,
        Closing(store, blobs),
        endpoints.of,
        endpoints.answer,
        metrics,
        around.now,
        around.max_line_bytes,
        max_open=settings.in_flight,
    )
    async with AsyncExitStack() as running:
        running.push_async_callback(store.close)
        running.push_async_callback(outputs.close)
        await store.start()
        await blobs.start()
        running.push_async_callback(window.stop)
        window.start()
        shift = Shift(store, runner, _own_name()) if isinstance(store, RedisStore) else None
        if shift is not None:
            running.push_async_callback(shift.leave)
        running.push_async_callback(runner.stop)
        await runner.start(begins_all=shift is None)
        if shift is not None:
            running.push_async_callback(shift.stop)
            await shift.start()
        begin = runner.begin if shift is None else shift.offer
        yield Api(around.keys, store, blobs, begin, ENDPOINTS, settings.file_bytes, around.now).handle


def _kept_in(directory: Path, redis: str | None) -> tuple[SqliteStore | RedisStore, Blobs]:
    """Raises ConfigError."""
    contents = directory / "files"
    if redis is None:
        return SqliteStore(directory), Blobs(contents)
    url = loading.secret(redis) if redis.startswith(("env:", "file:")) else redis
    return RedisStore(url), Blobs(contents, UPLOAD_S)


def _own_name() -> str:
    """That no other gateway has."""
    return f"{socket.gethostname()}/{uuid.uuid4().hex}"
