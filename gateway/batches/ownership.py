"""Which of several gateways works on a batch: each takes what nobody works on, and keeps it by saying so."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from gateway.batches.objects import Batch, Status

LOG = logging.getLogger(__name__)

HOLD_S = 6.0
"""How long a batch is a gateway's after its last word: for so long it rests when that gateway has died."""
ROUND_S = 2.0


class Holding(Protocol):
    """Of a store."""

    async def live_batches(self) -> list[Batch]: ...

    async def hold(self, batch_id: str, owner: str, hold_s: float) -> bool: ...

    async def let_go(self, batch_id: str, owner: str) -> None: ...


class Work(Protocol):
    """A `runner.Runner`."""

    async def begin(self, batch: Batch) -> None: ...

    def drop(self, batch_id: str) -> None:
        """Work on it no longer."""
        ...


class Shift:
    """`start` once, then `stop` and `leave` once. What two gateways work on for a moment is asked twice, but
    finished once."""

    def __init__(
        self,
        store: Holding,
        work: Work,
        owner: str,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`owner`: a name that no other gateway has."""
        self._store = store
        self._work = work
        self._owner = owner
        self._sleep = sleep
        self._mine: dict[str, bool] = {}
        """Batches that this gateway works on, and whether it knows that they are being cancelled."""
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self.round()
        self._task = asyncio.create_task(self._rounds(), name="batches of this gateway")

    async def stop(self) -> None:
        """Nothing more is taken."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def leave(self) -> None:
        """Others may take what this gateway worked on, at once."""
        for batch_id in self._mine:
            await self._store.let_go(batch_id, self._owner)

    async def round(self) -> None:
        """Take what is free, say what is kept, and leave what is over or has become another's."""
        live = await self._store.live_batches()
        for batch in live:
            await self.offer(batch)
        self._leave([batch.id for batch in live])

    async def offer(self, batch: Batch) -> None:
        """Work on a batch that is new or has moved, unless it is another's."""
        is_cancelling = batch.status is Status.CANCELLING
        if not await self._store.hold(batch.id, self._owner, HOLD_S):
            if self._mine.pop(batch.id, None) is not None:
                LOG.warning("batch %s has become another gateway's", batch.id)
                self._work.drop(batch.id)
        elif self._mine.get(batch.id) is not is_cancelling:  # new here, or cancelled, perhaps elsewhere
            self._mine[batch.id] = is_cancelling
            await self._work.begin(batch)

    def _leave(self, live: Sequence[str]) -> None:
        for batch_id in self._mine.keys() - set(live):
            del self._mine[batch_id]

    async def _rounds(self) -> None:
        while True:
            await self._sleep(ROUND_S)
            try:
                await self.round()
            except Exception:
                LOG.exception("the batches of this gateway could not be told from others'")
