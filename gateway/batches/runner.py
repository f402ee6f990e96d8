"""Works on live batches: validates, asks, closes; goes on after a restart where the store says that it stopped."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from gateway.batches import lines, results
from gateway.batches.blobs import Blobs
from gateway.batches.finalizer import Closing
from gateway.batches.lines import Endpoint
from gateway.batches.metrics import BatchMetrics
from gateway.batches.objects import Batch, Fault, Finished, Line, NotAllowed, Status
from gateway.batches.store import Store, StoreFailed

LOG = logging.getLogger(__name__)

PAGE_LINES = 64
AGAIN_S = 5.0
"""After a failure of the store or the disk."""
SWEEP_S = 600.0
"""Time between two looks for files that have expired."""

Answer = Callable[[Batch, Line, bytes], Awaitable[Finished]]
"""What becomes of a line, given the body of its request. Ends with its task only. Raises StoreFailed."""


@dataclass(frozen=True, slots=True)
class Runner:
    """One task per live batch. `start` once, then `stop` once."""

    store: Store
    blobs: Blobs
    closing: Closing
    endpoint: Callable[[Batch], Endpoint]
    """What the lines of a batch are checked against."""
    answer: Answer
    metrics: BatchMetrics
    now: Callable[[], float]
    """Unix seconds."""
    max_line_bytes: Callable[[], int]
    """Of a file that is read from now on."""
    max_open: int
    """Lines of one batch that are held in memory."""
    tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    """By batch, and the sweeper's."""

    async def start(self, begins_all: bool = True) -> None:
        """`begins_all`: work on all live batches, since nobody else does."""
        for batch in await self.store.live_batches() if begins_all else ():
            await self.begin(batch)
        self.tasks[""] = asyncio.create_task(self._sweep())

    async def stop(self) -> None:
        """What is in flight is asked again after the next start."""
        tasks = list(self.tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def begin(self, batch: Batch) -> None:
        """Work on a batch from its status on; what works on it now ends first."""
        earlier = self.tasks.get(batch.id)
        self.tasks[batch.id] = task = asyncio.create_task(self._work(batch, earlier))
        task.add_done_callback(lambda done: self._forget(batch.id, done))

    def drop(self, batch_id: str) -> None:
        """Work on a batch no longer."""
        if (task := self.tasks.get(batch_id)) is not None:
            task.cancel()

    def _forget(self, batch_id: str, done: asyncio.Task[None]) -> None:
        if self.tasks.get(batch_id) is done:
            del self.tasks[batch_id]

    async def _work(self, batch: Batch, earlier: asyncio.Task[None] | None) -> None:
        if earlier is not None:
            earlier.cancel()
            await asyncio.wait((earlier,))
        while True:
            try:
                if (found := await self.store.batch(batch.tenant, batch.id)) is not None:
                    await self._advance(found)
                return
            except NotAllowed:
                return  # it was cancelled meanwhile: another task has it
            except Exception:
                LOG.exception("batch %s: its work failed, and is begun again in %g s", batch.id, AGAIN_S)
                await asyncio.sleep(AGAIN_S)

    async def _advance(self, batch: Batch) -> None:
        if batch.status is Status.VALIDATING:
            batch = await self._validate(batch)
        if batch.status is Status.IN_PROGRESS:
            await self._ask_all(batch)
            batch = await self.store.move(batch.id, Status.FINALIZING, self._now())
        if batch.status in (Status.FINALIZING, Status.CANCELLING):
            batch = await self.closing.close(batch, self._now())
        LOG.info(
            "batch %s is %s: %d of %d requests completed", batch.id, batch.status, batch.completed, batch.total
        )

    async def _validate(self, batch: Batch) -> Batch:
        file, endpoint = self.blobs.path(batch.input_file_id), self.endpoint(batch)
        try:
            found = await asyncio.to_thread(lines.read, file, endpoint, self.max_line_bytes())
        except FileNotFoundError:
            found = lines.Input(faults=[Fault("file_not_found", "The input file does not exist any more.")])
        if found.faults:
            return await self.store.move(batch.id, Status.FAILED, self._now(), errors=tuple(found.faults))
        return await self.store.begin(batch.id, found.lines, found.model, self._now())

    async def _ask_all(self, batch: Batch) -> None:
        """Returns when every line is finished, or the window has ended."""
        try:
            async with asyncio.timeout(batch.expires_at - self.now()), asyncio.TaskGroup() as group:
                room = asyncio.Semaphore(self.max_open)
                last: Line | None = None
                while page := await self.store.open_lines(batch.id, last, PAGE_LINES):
                    bodies = await asyncio.to_thread(_bodies, self.blobs.path(batch.input_file_id), page)
                    for line, body in zip(page, bodies, strict=True):
                        await room.acquire()
                        group.create_task(self._finish(batch, line, body, room))
                    last = page[-1]
        except TimeoutError:
            return

    async def _finish(self, batch: Batch, line: Line, body: bytes, room: asyncio.Semaphore) -> None:
        try:
            finished = await self._finished(batch, line, body)
            if await self.store.finish(batch.id, line, finished):
                self.metrics.finished(batch.endpoint, finished.is_ok)
        finally:
            room.release()

    async def _finished(self, batch: Batch, line: Line, body: bytes) -> Finished:
        """Law: what fails on one line is the end of that line only. Raises StoreFailed, as the store fails all."""
        try:
            return await self.answer(batch, line, body)
        except StoreFailed:
            raise
        except Exception:
            LOG.exception("batch %s: its line %d failed", batch.id, line.number)
            return Finished(False, results.unfinished(line.custom_id, *results.FAILED))

    async def _sweep(self) -> None:
        while True:
            try:
                await self.store.remove_expired_files(self._now())
                await self.blobs.keep_only(self.store.content_in_use)
            except Exception:
                LOG.exception("expired files could not be removed")
            await asyncio.sleep(SWEEP_S)

    def _now(self) -> int:
        return int(self.now())


def _bodies(file: Path, page: list[Line]) -> list[bytes]:
    """What each line asks with. Raises OSError."""
    with file.open("rb") as source:
        bodies = []
        for line in page:
            source.seek(line.offset)
            bodies.append(lines.body_of(source.read(line.size_bytes)))
        return bodies
