"""Output and error files: their lines, and the last move of a batch, which announces both files."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass

from gateway.batches.files import Blobs, Spool
from gateway.batches.objects import Batch, File, Finished, Line, Spent, Status, new_id
from gateway.batches.store import Store
from gateway.core import fields
from gateway.core.fields import Json
from gateway.engines.base import token_count, usage_of
from gateway.request.inprocess import InProcessResponder

EXPIRED = ("batch_expired", "This request could not be executed before the completion window expired.")
CANCELLED = ("batch_cancelled", "The batch was cancelled before this request was executed.")
FAILED = ("gateway_error", "The gateway failed on this request. Its log says why.")
PAGE_RESULTS = 256
NAMES = {"session": "x-turngate-session", "receipt": "x-turngate-receipt"}
"""Keys of `response.turngate`, by which a result is found again in the views; each with its header."""


def finished_line(custom_id: str, reply: InProcessResponder) -> Finished:
    """Make the result of a line from its last answer."""
    body = parsed(reply.body)
    request_id = reply.headers.get("x-request-id", "")
    response: Json = {"status_code": reply.status, "request_id": request_id, "body": body}
    if names := {name: reply.headers[header] for name, header in NAMES.items() if header in reply.headers}:
        response["turngate"] = names
    is_ok = reply.status == 200
    return Finished(is_ok, _row(custom_id, response, None), spent(body) if is_ok else Spent())


def unfinished_row(custom_id: str, code: str, message: str) -> bytes:
    """Make a row of the error file for a request that was not executed."""
    return _row(custom_id, None, {"code": code, "message": message})


def spent(body: Json) -> Spent:
    """Read the tokens of an answer."""
    if (usage := usage_of(body)) is None:
        return Spent()
    raw = fields.obj(body, "usage")
    outputs = fields.obj(raw, "completion_tokens_details") or fields.obj(raw, "output_tokens_details")
    reasoning_tokens = token_count(outputs, "reasoning_tokens") or 0
    return Spent(usage.prompt_tokens or 0, usage.cached_tokens or 0, usage.output_tokens or 0, reasoning_tokens)


def parsed(body: bytes) -> Json:
    """Read an answer. One that is no JSON object becomes an error object, so that a row stays one line of JSON."""
    answer, _ = fields.parsed(body)
    if isinstance(answer, dict) and _can_be_written(answer):
        return answer
    text = body[:2_000].decode(errors="replace") or "The answer was cut."
    return {"error": {"message": text, "type": "server_error", "param": None, "code": None}}


def _can_be_written(answer: Json) -> bool:
    """Whether an answer can be written as deep as it lies in a row."""
    try:
        return bool(fields.written({"response": {"body": answer}}))
    except fields.TooDeep:
        return False


def _row(custom_id: str, response: Json | None, error: Json | None) -> bytes:
    row = {"id": new_id("batch_req_"), "custom_id": custom_id, "response": response, "error": error}
    return fields.written(row)


@dataclass(frozen=True, slots=True)
class Finalizer:
    """Writes the files of a batch. It may be cut at any moment and begin again: it announces nothing before both
    files are complete."""

    store: Store
    blobs: Blobs

    async def close(self, batch: Batch, now: int) -> Batch:
        """Move from `finalizing` to `completed` or `expired`, or from `cancelling` to `cancelled`."""
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
        """Write failed lines and, with the reason `why`, unanswered ones. Return the number of the unanswered."""
        num_left = 0
        async for number, text in self._finished(batch, is_ok=False):
            num_left += await _write_left(errors, left, number, why)
            if left and left[0].number == number:
                left.popleft()
            await errors.write(text + b"\n")
        return num_left + await _write_left(errors, left, math.inf, why)

    async def _open_lines(self, batch: Batch) -> list[Line]:
        """Read the open lines, in input order, before the finished ones. A gateway that has lost this batch may
        finish a line meanwhile; that line is still in one file only."""
        found: list[Line] = []
        while page := await self.store.open_lines(batch.id, found[-1] if found else None, PAGE_RESULTS):
            found += page
        return sorted(found, key=lambda line: line.number)

    async def _finished(self, batch: Batch, *, is_ok: bool) -> AsyncIterator[tuple[int, bytes]]:
        """Yield number and text of finished lines, in input order."""
        number = -1
        while page := await self.store.finished(batch.id, is_ok, number, PAGE_RESULTS):
            for number, text in page:
                yield number, text


async def _write_left(errors: Spool, left: deque[Line], below: float, why: tuple[str, str]) -> int:
    """Write the lines with numbers below `below`. Return how many there were."""
    num_written = 0
    while left and left[0].number < below:
        await errors.write(unfinished_row(left.popleft().custom_id, *why) + b"\n")
        num_written += 1
    return num_written


async def _kept(batch: Batch, spool: Spool, what: str, now: int) -> File | None:
    """Keep a file. None: it is empty, and the API does not list it."""
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
