"""Tools of each kind whose executions end when the test says so."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from tests.tool_runtime.fakes import ANY_OBJECT
from tool_runtime.types import Context, Effect, Json, Limits, Tool

TIMEOUT_S, QUEUE_S, TTL_S = 10.0, 12.0, 5.0


@dataclass(eq=False)
class Started:
    """One start of a tool: what it was told, and how it is to end."""

    number: int
    tool: str
    keys: list[str]
    context: Context
    at: float
    end: asyncio.Future[None]
    is_running: bool = True
    ended_at: float = 0.0


class Stage:
    """What was started, and how it is going."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.started: list[Started] = []

    @property
    def running(self) -> list[Started]:
        return [started for started in self.started if started.is_running]

    def tools(self) -> list[Tool]:
        def one(name: str, effect: Effect, *, concurrency: int | None = None, ttl_s: float = 0.0) -> Tool:
            async def run(arguments: Json, context: Context) -> object:
                return (await self._execute(name, [arguments["key"]], context))[0]

            limits = Limits(timeout_s=TIMEOUT_S, queue_s=QUEUE_S, concurrency=concurrency, ttl_s=ttl_s)
            return Tool(name=name, description="", parameters=ANY_OBJECT, run=run, effect=effect, limits=limits)

        async def many(arguments: list[Json], context: Context) -> list[str]:
            return await self._execute("rows", [one["key"] for one in arguments], context)

        rows = Tool(
            name="rows",
            description="",
            parameters=ANY_OBJECT,
            run_many=many,
            effect=Effect.READ_ONLY,
            batch_window_s=0.5,
            max_batch=3,
            limits=Limits(timeout_s=TIMEOUT_S, queue_s=QUEUE_S, concurrency=2),
        )
        return [
            one("read", Effect.READ_ONLY, ttl_s=TTL_S),
            one("narrow", Effect.READ_ONLY, concurrency=1),
            one("put", Effect.IDEMPOTENT),
            one("write", Effect.DESTRUCTIVE, concurrency=2),
            rows,
        ]

    async def _execute(self, tool: str, keys: list[str], context: Context) -> list[str]:
        started = Started(len(self.started), tool, keys, context, self._loop.time(), self._loop.create_future())
        self.started.append(started)
        try:
            await started.end
            return [f"{started.number}/{key}" for key in keys]
        finally:
            started.is_running = False
            started.ended_at = self._loop.time()
