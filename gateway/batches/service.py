"""Assembles durable batches on the gateway's own path, and starts and stops their parts in order."""

from __future__ import annotations

import socket
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from gateway.batches import AGENT_RUNS, BatchHandler, agent_runs
from gateway.batches.agent_runs import AgentRuns, OutputChecker
from gateway.batches.api import Api
from gateway.batches.files import Blobs
from gateway.batches.finalizer import finished_line
from gateway.batches.input_file import Endpoint, LineLimits, script_of
from gateway.batches.line_executor import ConcurrencyLimiter, LineExecutor, LineKeys, Load, Pace
from gateway.batches.objects import Batch, Finished, Line
from gateway.batches.redis import RedisStore
from gateway.batches.runner import BatchMetrics, Ownership, Runner
from gateway.batches.sqlite import SqliteStore
from gateway.config import loading
from gateway.config.live_settings import LiveSettings
from gateway.config.memory import MemoryBounds
from gateway.dialects import BY_PATH
from gateway.request.handler import RequestHandler
from gateway.sessions.identity import Identity, lineage_of
from gateway.tools.toolbox import matches
from policies.types import SessionEnded
from tool_runtime.runtime import ToolRuntime
from tool_runtime.types import Tools

UPLOAD_S = 24 * 3600.0
"""Longer than an upload takes to a directory that several gateways share."""
_ONE_CALL = (("x-turngate-remaining-turns", "0"), ("x-turngate-final", "1"))
"""The session of a single request ends with its answer, so that it keeps no cache."""


@asynccontextmanager
async def batches_on(
    path: RequestHandler, settings: LiveSettings, secret: bytes, runtime: ToolRuntime | None
) -> AsyncIterator[BatchHandler]:
    """Yield the API while live batches are at work. Raises OSError, ConfigError.

    `secret`: of identity; `runtime`: of the gateway's tools. The settings name a directory.
    """
    batches = settings.current.batches
    assert batches.directory is not None
    store, blobs = _kept_in(Path(batches.directory), batches.redis)
    pace, gate = Pace(batches.in_flight), path.turns.gate
    limiter = ConcurrencyLimiter(pace, lambda: Load.of(gate.replica_view()), path.clock)
    metrics = BatchMetrics(path.observer.metrics.registry, lambda: limiter.in_flight, lambda: limiter.size)
    lines = path_of_lines(path, settings, secret).handle
    executor = LineExecutor(lines, limiter, batches.attempts, metrics.retries.inc)
    checker = OutputChecker(path.clock)
    runs = AgentRuns(executor, store, runtime, lambda session_id: gate.tell(SessionEnded(session_id)), checker)
    endpoints = Endpoints(executor, runs, runtime, path.wrong_model)
    runner = Runner(
        store,
        blobs,
        endpoints.of,
        endpoints.answer,
        metrics,
        time.time,
        line_limits=lambda: LineLimits(settings.current.limits.body_bytes, settings.current.limits.values),
        max_open=batches.in_flight,
    )
    async with AsyncExitStack() as running:
        running.push_async_callback(store.close)
        running.push_async_callback(checker.close)
        await store.open()
        await blobs.prepare()
        running.push_async_callback(limiter.stop)
        limiter.start()
        work_on = await _start_working(store, runner, running)
        api = Api(path.keys, store, blobs, work_on, batches.file_bytes, time.time, runner.problems.get)
        yield api.handle


async def _start_working(
    store: SqliteStore | RedisStore, runner: Runner, running: AsyncExitStack
) -> Callable[[Batch], Awaitable[None]]:
    """Start the work on live batches, and return the function that takes a new or cancelled batch."""
    if not isinstance(store, RedisStore):
        running.push_async_callback(runner.stop)
        await runner.start()
        return runner.work_on
    ownership = Ownership(store, runner.work_on, runner.drop, _own_name())
    running.push_async_callback(ownership.leave)
    running.push_async_callback(runner.stop)
    await runner.start(is_alone=False)
    running.push_async_callback(ownership.stop)
    await ownership.start()
    return ownership.offer


def path_of_lines(path: RequestHandler, settings: LiveSettings, secret: bytes) -> RequestHandler:
    """Return the same path without the bounds that protect clients' timers, and with a session table of its own:
    tens of thousands of lines must not evict the sessions of agents."""
    at_start = settings.current
    max_sessions, ttl_s = 4 * at_start.batches.in_flight, at_start.identity.session_ttl_s
    max_bytes = MemoryBounds.of(at_start).batch_lines
    identity = Identity(lineage_of(max_sessions, max_bytes / 2), secret, max_tool_bytes=max_bytes // 4)
    sessions = path.turns.sessions.beside(max_sessions, ttl_s, identity, max_bytes / 4)

    def used_bytes() -> int:
        return identity.num_bytes + identity.num_tool_bytes + sessions.num_bytes

    path.observer.metrics.memory.show_owner("batch_lines", max_bytes, used_bytes)
    identity.tools_first = path.turns.identity.tools_first
    return replace(
        path,
        settings=settings.of_lines,
        keys=LineKeys(path.keys),
        turns=replace(path.turns, identity=identity, sessions=sessions, toolbox=None),
    )


@dataclass(frozen=True, slots=True)
class Endpoints:
    """The endpoints that lines may name: paths of the API, and agent runs."""

    executor: LineExecutor
    agent_runs: AgentRuns
    runtime: ToolRuntime | None
    wrong_model: Callable[[str], str | None]
    """Says why no engine serves a model. None: one does."""

    def of(self, batch: Batch) -> Endpoint:
        """Return the checks for the lines of a batch."""
        url = batch.endpoint
        if url == AGENT_RUNS:
            tools = self._tools(batch)
            return Endpoint(url, lambda body: agent_runs.check(body, tools), agent_runs.script, self.wrong_model)
        dialect = BY_PATH[url]
        return Endpoint(url, dialect.check, partial(script_of, dialect), self.wrong_model)

    async def answer(self, batch: Batch, line: Line, body: bytes) -> Finished:
        """Get the result of a line."""
        if batch.endpoint == AGENT_RUNS:
            return await self.agent_runs.answer(batch, line, body, self._tools(batch))
        reply = await self.executor.answer(batch, line, batch.endpoint, body, _ONE_CALL)
        return finished_line(line.custom_id, reply)

    def _tools(self, batch: Batch) -> Tools:
        """The gateway's tools that the key of the batch may use."""
        tools = self.runtime.tools if self.runtime is not None else {}
        return {name: tool for name, tool in tools.items() if matches(name, batch.allowed_tools)}


def _kept_in(directory: Path, redis: str | None) -> tuple[SqliteStore | RedisStore, Blobs]:
    """Return the store and the contents of files. Raises ConfigError."""
    contents = directory / "files"
    if redis is None:
        return SqliteStore(directory), Blobs(contents)
    url = loading.secret(redis) if redis.startswith(("env:", "file:")) else redis
    return RedisStore(url), Blobs(contents, UPLOAD_S)


def _own_name() -> str:
    """Make a name that no other gateway has."""
    return f"{socket.gethostname()}/{uuid.uuid4().hex}"
