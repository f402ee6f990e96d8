"""Begins the agents of a batch as there is room for them, and gives their results in the order of their ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from itertools import islice
from typing import Protocol

from batch_agent.results import AgentResult
from batch_agent.slots import Slots

Attend = Callable[[], Awaitable[AgentResult]]


class Agents(Protocol):
    """The agents of one batch."""

    @property
    def slots(self) -> Slots:
        """What they share: further agents begin while some are free."""

    async def prepare(self, index: int, prompt: str) -> AgentResult | Attend:
        """A result that is there already, or what gets it. An agent's failure is a result, too."""


async def in_order_of_completion(
    agents: Agents, prompts: Iterable[str], max_begun: int | None = None
) -> AsyncGenerator[AgentResult, None]:
    """Each agent's result once. Closing it cancels what runs and waits until that has ended."""
    run = _Run(agents, prompts, max_begun)
    beginner = asyncio.create_task(run.begin_all())
    try:
        while (result := await run.results.get()) is not None:
            yield result
        await beginner
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None
    finally:
        beginner.cancel()
        await asyncio.wait([beginner])


class _Run:
    def __init__(self, agents: Agents, prompts: Iterable[str], max_begun: int | None) -> None:
        self._agents = agents
        self._prompts = iter(enumerate(prompts))
        self._places = asyncio.Semaphore(max_begun) if max_begun else None
        self.results: asyncio.Queue[AgentResult | None] = asyncio.Queue()
        """None: that was all."""

    async def begin_all(self) -> None:
        """Ends when all agents have. An agent begins only where it can call the model at once, so that a large
        batch is not all in memory, and those that have begun are not slowed down."""
        try:
            async with asyncio.TaskGroup() as group:
                while some := list(islice(self._prompts, await self._agents.slots.room())):
                    for index, prompt in some:
                        await self._begin(group, index, prompt)
                    await asyncio.sleep(0)  # they take their slots
        finally:
            self.results.put_nowait(None)

    async def _begin(self, group: asyncio.TaskGroup, index: int, prompt: str) -> None:
        prepared = await self._agents.prepare(index, prompt)
        if isinstance(prepared, AgentResult):
            self.results.put_nowait(prepared)
            return
        if self._places:
            await self._places.acquire()
        group.create_task(self._attend(prepared))

    async def _attend(self, attend: Attend) -> None:
        try:
            self.results.put_nowait(await attend())
        finally:
            if self._places:
                self._places.release()
