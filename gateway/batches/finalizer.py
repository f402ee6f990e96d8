"""The end of a batch: its output and error files, and then the move that announces both."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass

from gateway.batches import results
from gateway.batches.blobs import Blobs, Spool
from gateway.batches.objects import Batch, File, Line, Status
from gateway.batches.store import Store

PAGE_RESULTS = 256


@dataclass(frozen=True, slots=True)
class Closing:
    """May be ended at any moment and begun again: nothing is announced before everything is written."""

    store: Store
    blobs: Blobs

    async def close(self, batch: Batch, now: int) -> Batch:
        """From `finalizing` to `completed` or `expired`, or from `cancelling` to `cancelled`."""
        is_cancelled = batch.status is Status.CANCELLING
        why = results.CANCELLED if is_cancelled else results.EXPIRED
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
        await errors.write(results.unfinished(left.popleft().custom_id, *why) + b"\n")
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
