"""The contract of a store of durable batches, and the JSON in which stores keep batches and files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

import orjson

from gateway.batches.objects import Batch, File, Finished, Line, LineFault, Spent, Status


@dataclass(frozen=True, slots=True)
class ListPage:
    """A page of a list."""

    limit: int
    after: str | None = None
    """Id of the object before the page. None: the page is the first."""
    is_ascending: bool = False
    """Oldest first."""


class StoreFailed(Exception):
    """The store failed during the work on a line. The line itself is not at fault."""


class Store(Protocol):
    """The files and batches of all tenants, and the lines that are still open.

    Every call is one transaction: it happens whole, or not at all.
    Law: a line is open until it is finished, and is finished once. The counts follow from that.
    """

    async def open(self) -> None:
        """Connect. Comes before every other call. Raises OSError."""
        ...

    async def close(self) -> None: ...

    # ---- files

    async def add_file(self, file: File) -> None: ...

    async def file(self, tenant: str, file_id: str) -> File | None: ...

    async def files(self, tenant: str, purpose: str | None, page: ListPage) -> list[File]:
        """Return a page of files, and one file more if there are more."""
        ...

    async def remove_file(self, tenant: str, file_id: str) -> bool:
        """Remove a file. False: there was none."""
        ...

    async def remove_expired_files(self, now: int) -> None: ...

    async def content_in_use(self) -> set[str]:
        """Return the ids whose content is needed: of files, and of the inputs of live batches, deleted or not."""
        ...

    # ---- batches

    async def add_batch(self, batch: Batch) -> None: ...

    async def batch(self, tenant: str, batch_id: str) -> Batch | None: ...

    async def batches(self, tenant: str, page: ListPage) -> list[Batch]:
        """Return a page of batches, newest first, and one batch more if there are more."""
        ...

    async def live_batches(self) -> list[Batch]:
        """Return the live batches of all tenants, oldest first."""
        ...

    async def move(self, batch_id: str, status: Status, now: int, **changes: Any) -> Batch:
        """Move a batch to another status. Raises NotAllowed, and then has changed nothing."""
        ...

    async def close_batch(
        self, batch_id: str, status: Status, now: int, output: File | None, errors: File | None
    ) -> Batch:
        """Make the last move of a batch: announce both files and forget the lines. Raises NotAllowed."""
        ...

    # ---- lines

    async def begin_batch(self, batch_id: str, lines: Sequence[Line], model: str | None, now: int) -> Batch:
        """Move a validated batch to `in_progress` with these lines. Raises NotAllowed."""
        ...

    async def open_lines(self, batch_id: str, after: Line | None, limit: int) -> list[Line]:
        """Return lines without an answer, in the order of (group, number)."""
        ...

    async def finish(self, batch_id: str, line: Line, finished: Finished) -> bool:
        """Record the result of a line, and forget its transcript. False: the line was finished before, or its
        batch is over, and nothing has changed."""
        ...

    async def finished(self, batch_id: str, is_ok: bool, after: int, limit: int) -> list[tuple[int, bytes]]:
        """Return number and text of finished lines behind number `after`, in the order of their numbers."""
        ...

    # ---- agent runs

    async def append(self, batch_id: str, line: Line, position: int, message: bytes) -> None:
        """Keep one message of a line's transcript. A message that is at this position stays as it is."""
        ...

    async def transcript(self, batch_id: str, line: Line) -> list[tuple[int, bytes]]:
        """Return the messages of a line by position."""
        ...


# ---- the form in which stores keep batches and files

COUNTS = ("total", "completed", "failed", "input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens")


def about(batch: Batch) -> bytes:
    """Return a batch without its counts, as JSON."""
    return orjson.dumps(replace(batch, total=0, completed=0, failed=0, spent=Spent()))


def batch_of(about: bytes, counts: Sequence[int]) -> Batch:
    """Read a batch. `counts` are in the order of COUNTS."""
    total, completed, failed, *tokens = counts
    values = orjson.loads(about)
    values |= {
        "status": Status(values["status"]),
        "errors": tuple(LineFault(**fault) for fault in values["errors"]),
        "allowed_tools": tuple(values["allowed_tools"]),
    }
    return Batch(**values | {"total": total, "completed": completed, "failed": failed, "spent": Spent(*tokens)})


def counted(finished: Finished) -> dict[str, int]:
    """Return what a finished line adds to the counts of its batch."""
    return {"completed": int(finished.is_ok), "failed": int(not finished.is_ok)} | asdict(finished.spent)


def file_of(row: bytes) -> File:
    """Read a file that was kept as JSON."""
    return File(**orjson.loads(row))
