"""The end of a batch: its output and error files, and then the move that announces both."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.batches import results
from gateway.batches.blobs import Blobs, Spool
from gateway.batches.objects import Batch, File, Line, Status
from gateway.batches.store import Store

PAGE_LINES = 256


@dataclass(frozen=True, slots=True)
class Closing:
    """May be ended at any moment and begun again: nothing is announced before everything is written."""

    store: Store
    blobs: Blobs

    async def close(self, batch: Batch, now: int) -> Batch:
        """From `finalizing` to `completed` or `expired`, or from `cancelling` to `cancelled`."""
        is_cancelled = batch.status is Status.CANCELLING
        async with self.blobs.new() as output, self.blobs.new() as errors:
            await self._copy(batch, output, is_ok=True)
            await self._copy(batch, errors, is_ok=False)
            why = results.CANCELLED if is_cancelled else results.EXPIRED
            is_complete = not await self._write_open(batch, errors, *why)
            status = Status.CANCELLED if is_cancelled else Status.COMPLETED if is_complete else Status.EXPIRED
            output_file = await _kept(batch, output, "output", now)
            error_file = await _kept(batch, errors, "error", now)
            return await self.store.close_batch(batch.id, status, now, output_file, error_file)

    async def _copy(self, batch: Batch, spool: Spool, *, is_ok: bool) -> None:
        number = -1
        while page := await self.store.finished(batch.id, is_ok, number, PAGE_LINES):
            for _, text in page:
                await spool.write(text + b"\n")
            number = page[-1][0]

    async def _write_open(self, batch: Batch, spool: Spool, code: str, message: str) -> bool:
        """Whether there is a line that was not answered."""
        last: Line | None = None
        while page := await self.store.open_lines(batch.id, last, PAGE_LINES):
            for line in page:
                await spool.write(results.unfinished(line.custom_id, code, message) + b"\n")
            last = page[-1]
        return last is not None


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
