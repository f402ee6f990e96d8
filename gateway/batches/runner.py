"""Works on live batches, and decides which of several gateways works on which batch."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge

from gateway.batches import input_file
from gateway.batches.files import NO_ROOM, Blobs, is_disk_full
from gateway.batches.finalizer import FAILED, Finalizer, unfinished_row
from gateway.batches.input_file import Endpoint, LineLimits, Rests
from gateway.batches.objects import FULL_CODE, Batch, Finished, Line, LineFault, NotAllowed, Status
from gateway.batches.store import Store, StoreFailed

LOG = logging.getLogger(__name__)

PAGE_LINES = 64
AGAIN_S = 5.0
"""Pause after a failure of the store or the disk."""
SWEEP_S = 600.0
"""Time between two removals of expired files."""

Answer = Callable[[Batch, Line, bytes], Awaitable[Finished]]
"""Gets the result of a line from the body of its request. Ends only with its task. Raises StoreFailed."""


class BatchMetrics:
    """The metrics of batches, in the gateway's registry."""

    def __init__(self, registry: CollectorRegistry, in_flight: Callable[[], int], pace: Callable[[], int]) -> None:
        self._lines = Counter(
            "turngate_batch_lines",
            "Lines of batches that were finished",
            ("endpoint", "result"),
            registry=registry,
        )
        self.retries = Counter(
            "turngate_batch_retries", "Lines of batches that were asked again", registry=registry
        )
        for name, text, read in (
            ("in_flight", "Lines of batches that are being asked", in_flight),
            ("pace", "Lines that may be asked at once, as the fleet is now", pace),
        ):
            Gauge(f"turngate_batch_{name}", text, registry=registry).set_function(read)

    def count_line(self, endpoint: str, is_ok: bool) -> None:
        self._lines.labels(endpoint, "completed" if is_ok else "failed").inc()


@dataclass(frozen=True, slots=True)
class Runner:
    """One task per live batch. Call `start` once, then `stop` once."""

    store: Store
    blobs: Blobs
    endpoint: Callable[[Batch], Endpoint]
    """Returns the checks for the lines of a batch."""
    answer: Answer
    metrics: BatchMetrics
    now: Callable[[], float]
    """Unix seconds."""
    line_limits: Callable[[], LineLimits]
    """The bounds for files that are read from now on."""
    max_open: int
    """Lines of one batch that are held in memory."""
    tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    """By batch id. The task that removes expired files has the id ""."""
    problems: dict[str, LineFault] = field(default_factory=dict)
    """Why the work on a batch waits, by batch id."""
    reading: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while a thread reads an input file: several would take the interpreter's lock from the event loop."""
    again_s: float = AGAIN_S

    async def start(self, is_alone: bool = True) -> None:
        """Start removing expired files. `is_alone`: no other gateway works on these batches; take them all."""
        for batch in await self.store.live_batches() if is_alone else ():
            await self.work_on(batch)
        self.tasks[""] = asyncio.create_task(self._sweep())

    async def stop(self) -> None:
        """Cancel all work. Lines that are in flight are sent again after the next start."""
        tasks = list(self.tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def work_on(self, batch: Batch) -> None:
        """Work on a batch from its status on. Work that is under way on it ends first."""
        earlier = self.tasks.get(batch.id)
        self.tasks[batch.id] = task = asyncio.create_task(self._work(batch, earlier))
        task.add_done_callback(lambda done: self._forget(batch.id, done))

    def drop(self, batch_id: str) -> None:
        """Stop working on a batch."""
        if (task := self.tasks.get(batch_id)) is not None:
            task.cancel()

    def _forget(self, batch_id: str, done: asyncio.Task[None]) -> None:
        if self.tasks.get(batch_id) is done:
            del self.tasks[batch_id]
            self.problems.pop(batch_id, None)

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
                return  # the batch was cancelled meanwhile, and another task has it
            except Exception as error:
                self.problems[batch.id] = self._problem(batch, error)
                await asyncio.sleep(self.again_s)

    def _problem(self, batch: Batch, error: Exception) -> LineFault:
        """Log why the work on a batch failed, and return it as the client sees it."""
        if is_disk_full(error):
            LOG.warning("batch %s waits, and is begun again in %g s: %s", batch.id, self.again_s, NO_ROOM)
            return LineFault(FULL_CODE, f"The batch waits: {NO_ROOM}")
        LOG.error("batch %s: its work failed, and is begun again in %g s", batch.id, self.again_s, exc_info=error)
        return LineFault(FAILED[0], "The gateway failed on this batch, and begins again. Its log says why.")

    async def _advance(self, batch: Batch) -> None:
        if batch.status is Status.VALIDATING:
            batch = await self._validate(batch)
        if batch.status is Status.IN_PROGRESS:
            await self._answer_all(batch)
            batch = await self.store.move(batch.id, Status.FINALIZING, self._now())
        if batch.status in (Status.FINALIZING, Status.CANCELLING):
            batch = await Finalizer(self.store, self.blobs).close(batch, self._now())
        LOG.info(
            "batch %s is %s: %d of %d requests completed", batch.id, batch.status, batch.completed, batch.total
        )

    async def _validate(self, batch: Batch) -> Batch:
        file, endpoint = self.blobs.path(batch.input_file_id), self.endpoint(batch)
        try:
            async with self.reading:
                found = await asyncio.to_thread(input_file.read, file, endpoint, self.line_limits(), Rests())
        except FileNotFoundError:
            fault = LineFault("file_not_found", "The input file does not exist any more.")
            found = input_file.Input(faults=[fault])
        if found.faults:
            return await self.store.move(batch.id, Status.FAILED, self._now(), errors=tuple(found.faults))
        return await self.store.begin_batch(batch.id, found.lines, found.model, self._now())

    async def _answer_all(self, batch: Batch) -> None:
        """Return when every line is finished, or when the window has ended."""
        try:
            async with asyncio.timeout(batch.expires_at - self.now()), asyncio.TaskGroup() as group:
                room = asyncio.Semaphore(self.max_open)
                last: Line | None = None
                while page := await self.store.open_lines(batch.id, last, PAGE_LINES):
                    async with self.reading:
                        bodies = await asyncio.to_thread(_bodies, self.blobs.path(batch.input_file_id), page)
                    for line, body in zip(page, bodies, strict=True):
                        await room.acquire()
                        group.create_task(self._finish(batch, line, body, room))
                    last = page[-1]
        except TimeoutError:
            return

    async def _finish(self, batch: Batch, line: Line, body: bytes, room: asyncio.Semaphore) -> None:
        try:
            finished = await self._result(batch, line, body)
            if await self.store.finish(batch.id, line, finished):
                self.problems.pop(batch.id, None)
                self.metrics.count_line(batch.endpoint, finished.is_ok)
        finally:
            room.release()

    async def _result(self, batch: Batch, line: Line, body: bytes) -> Finished:
        """Law: a failure of one line ends that line only. Raises StoreFailed, since the store fails all lines."""
        try:
            return await self.answer(batch, line, body)
        except StoreFailed:
            raise
        except Exception:
            LOG.exception("batch %s: its line %d failed", batch.id, line.number)
            return Finished(False, unfinished_row(line.custom_id, *FAILED))

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
    """Read the request bodies of lines. Raises OSError."""
    with file.open("rb") as source:
        bodies, rests = [], Rests()
        for line in page:
            source.seek(line.offset)
            bodies.append(input_file.body_of(source.read(line.size_bytes)))
            rests()
        return bodies


# ---- several gateways on one store: each takes free batches, and renews its hold on them

HOLD_S = 6.0
"""Length of a hold. When a gateway dies, its batches rest for at most this long."""
ROUND_S = 2.0


class HoldingStore(Protocol):
    """The part of a shared store that says which gateway works on a batch."""

    async def live_batches(self) -> list[Batch]: ...

    async def hold(self, batch_id: str, owner: str, hold_s: float) -> bool:
        """Take or renew the hold on a batch. False: another gateway holds it."""
        ...

    async def let_go(self, batch_id: str, owner: str) -> None: ...


class Ownership:
    """The batches that this gateway works on. Call `start` once, then `stop` and `leave` once.

    Two gateways may work on one batch for a moment. Its lines are then sent twice, but finished once.
    """

    def __init__(
        self,
        store: HoldingStore,
        work_on: Callable[[Batch], Awaitable[None]],
        drop: Callable[[str], None],
        owner: str,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`work_on` and `drop` are those of a `Runner`. `owner` is a name that no other gateway has."""
        self._store = store
        self._work_on = work_on
        self._drop = drop
        self._owner = owner
        self._sleep = sleep
        self._is_cancelling: dict[str, bool] = {}
        """By id of a held batch: whether this gateway knows that the batch is being cancelled."""
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self.round()
        self._task = asyncio.create_task(self._rounds(), name="batches of this gateway")

    async def stop(self) -> None:
        """Take no further batch."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def leave(self) -> None:
        """Let other gateways take the batches of this one at once."""
        for batch_id in self._is_cancelling:
            await self._store.let_go(batch_id, self._owner)

    async def round(self) -> None:
        """Take free batches, renew the holds, and forget batches that are over."""
        live = await self._store.live_batches()
        for batch in live:
            await self.offer(batch)
        self._forget_all_but([batch.id for batch in live])

    async def offer(self, batch: Batch) -> None:
        """Work on a batch that is new or has moved, unless another gateway holds it."""
        is_cancelling = batch.status is Status.CANCELLING
        if not await self._store.hold(batch.id, self._owner, HOLD_S):
            if self._is_cancelling.pop(batch.id, None) is not None:
                LOG.warning("batch %s has become another gateway's", batch.id)
                self._drop(batch.id)
        elif self._is_cancelling.get(batch.id) is not is_cancelling:  # new here, or cancelled, perhaps elsewhere
            self._is_cancelling[batch.id] = is_cancelling
            await self._work_on(batch)

    def _forget_all_but(self, live: Sequence[str]) -> None:
        for batch_id in self._is_cancelling.keys() - set(live):
            del self._is_cancelling[batch_id]

    async def _rounds(self) -> None:
        while True:
            await self._sleep(ROUND_S)
            try:
                await self.round()
            except Exception:
                LOG.exception("this gateway could not look which batches are its own")
