"""The lines of output and error files, and the tokens that an answer cost."""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import orjson
from prometheus_client import CollectorRegistry, Counter, Gauge

from gateway.batches import lines
from gateway.batches.lines import Endpoint
from gateway.batches.objects import Batch, File, Finished, Line, LineFault, NotAllowed, Spent, Status, new_id
from gateway.batches.store import Store, StoreFailed
from gateway.batches.upload import Blobs, Spool
from gateway.core import fields
from gateway.core.fields import Json
from gateway.request.inprocess import InProcessResponder

EXPIRED = ("batch_expired", "This request could not be executed before the completion window expired.")
CANCELLED = ("batch_cancelled", "The batch was cancelled before this request was executed.")
FAILED = ("gateway_error", "The gateway failed on this request. Its log says why.")


def finished(custom_id: str, reply: InProcessResponder) -> Finished:
    """What a line's last answer is to its batch."""
    body = parsed(reply.body)
    request_id = reply.headers.get("x-request-id", "")
    response = {"status_code": reply.status, "request_id": request_id, "body": body}
    is_ok = reply.status == 200
    return Finished(is_ok, _line(custom_id, response, None), spent(body) if is_ok else Spent())


def unfinished(custom_id: str, code: str, message: str) -> bytes:
    """A line of the error file for a request that was not executed."""
    return _line(custom_id, None, {"code": code, "message": message})


def spent(body: Json) -> Spent:
    """Chat, completions and embeddings say `prompt_tokens`, responses say `input_tokens`."""
    usage = fields.obj(body, "usage")

    def read(name: str, other: str) -> int:
        return fields.integer(usage, name) or fields.integer(usage, other) or 0

    inputs = fields.obj(usage, "prompt_tokens_details") or fields.obj(usage, "input_tokens_details")
    outputs = fields.obj(usage, "completion_tokens_details") or fields.obj(usage, "output_tokens_details")
    return Spent(
        read("prompt_tokens", "input_tokens"),
        fields.integer(inputs, "cached_tokens") or 0,
        read("completion_tokens", "output_tokens"),
        fields.integer(outputs, "reasoning_tokens") or 0,
    )


def parsed(body: bytes) -> Json:
    """An answer that is no JSON object becomes one, so that a line stays one line of JSON."""
    try:
        answer = orjson.loads(body)
    except orjson.JSONDecodeError:
        answer = None
    if isinstance(answer, dict):
        return answer
    text = body[:2_000].decode(errors="replace") or "The answer was cut."
    return {"error": {"message": text, "type": "server_error", "param": None, "code": None}}


def _line(custom_id: str, response: Json | None, error: Json | None) -> bytes:
    line = {"id": new_id("batch_req_"), "custom_id": custom_id, "response": response, "error": error}
    return orjson.dumps(line)


# ---- the end of a batch: its output and error files, and then the move that announces both

PAGE_RESULTS = 256


@dataclass(frozen=True, slots=True)
class Closing:
    """May be ended at any moment and begun again: nothing is announced before everything is written."""

    store: Store
    blobs: Blobs

    async def close(self, batch: Batch, now: int) -> Batch:
        """From `finalizing` to `completed` or `expired`, or from `cancelling` to `cancelled`."""
        is_cancelled = batch.status is Status.CANCELLING
        why = CANCELLED if is_cancelled else EXPIRED
        open_lines = await self._open_lines(batch)
        async with self.blobs.new() as output, self.blobs.new() as errors:
            answered = set()
            async for number, text in self._finished(batch, is_ok=True):
                await output.write(text + b"\n")
                answered.add(number)
            left = deque(line for line in open_lines if line.number not in answered)
            num_left = await self._write_errors(batch, errors, left, why)
            status = Status.CANCELLED if is_cancelled else Status.EXPIRED if num_left else Status.COMPLETED
            output_file = await _kept(batch, output, "output", now)
            error_file = await _kept(batch, errors, "error", now)
            return await self.store.close_batch(batch.id, status, now, output_file, error_file)

    async def _write_errors(self, batch: Batch, errors: Spool, left: deque[Line], why: tuple[str, str]) -> int:
        """Failed lines and, for the reason `why`, those without an answer: how many of these."""
        num_left = 0
        async for number, text in self._finished(batch, is_ok=False):
            num_left += await _write_left(errors, left, number, why)
            if left and left[0].number == number:
                left.popleft()
            await errors.write(text + b"\n")
        return num_left + await _write_left(errors, left, math.inf, why)

    async def _open_lines(self, batch: Batch) -> list[Line]:
        """In input order. Read before those that are finished: a line that is finished meanwhile, by a gateway
        that has lost this batch, is in one file still."""
        found: list[Line] = []
        while page := await self.store.open_lines(batch.id, found[-1] if found else None, PAGE_RESULTS):
            found += page
        return sorted(found, key=lambda line: line.number)

    async def _finished(self, batch: Batch, *, is_ok: bool) -> AsyncIterator[tuple[int, bytes]]:
        """Number and text, in input order."""
        number = -1
        while page := await self.store.finished(batch.id, is_ok, number, PAGE_RESULTS):
            for number, text in page:
                yield number, text


async def _write_left(errors: Spool, left: deque[Line], below: float, why: tuple[str, str]) -> int:
    """Those with numbers below; how many."""
    num_written = 0
    while left and left[0].number < below:
        await errors.write(unfinished(left.popleft().custom_id, *why) + b"\n")
        num_written += 1
    return num_written


async def _kept(batch: Batch, spool: Spool, what: str, now: int) -> File | None:
    """None for an empty one, which the API does not list."""
    if not spool.size_bytes:
        return None
    await spool.keep()
    return File(
        id=spool.file_id,
        tenant=batch.tenant,
        purpose="batch_output",
        filename=f"{batch.id}_{what}.jsonl",
        size_bytes=spool.size_bytes,
        created_at=now,
        expires_at=None if batch.output_expires_s is None else now + batch.output_expires_s,
    )


# ---- metrics of batches, in the gateway's registry


class BatchMetrics:
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

    def finished(self, endpoint: str, is_ok: bool) -> None:
        self._lines.labels(endpoint, "completed" if is_ok else "failed").inc()


# ---- works on live batches

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
            found = lines.Input(faults=[LineFault("file_not_found", "The input file does not exist any more.")])
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
            return Finished(False, unfinished(line.custom_id, *FAILED))

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
