"""What durable batches need of a store. Every call is one transaction: it happened whole, or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from gateway.batches.objects import Batch, File, Finished, Line, Status


@dataclass(frozen=True, slots=True)
class ListPage:
    """Which part of a list is asked for."""

    limit: int
    after: str | None = None
    """Id of the object before the first one."""
    is_ascending: bool = False
    """Oldest first."""


class StoreFailed(Exception):
    """It, or the way to it, failed in the middle of a line's work, with which nothing is wrong."""


class Store(Protocol):
    """Files and batches of all tenants, and what is still to be done.

    Law: a line is open until it is finished, and is finished once. Counts follow from that.
    """

    # ---- files

    async def add_file(self, file: File) -> None: ...

    async def file(self, tenant: str, file_id: str) -> File | None: ...

    async def files(self, tenant: str, purpose: str | None, page: ListPage) -> list[File]:
        """One more than the limit, if there are more."""
        ...

    async def remove_file(self, tenant: str, file_id: str) -> bool:
        """Whether it was there."""
        ...

    async def remove_expired_files(self, now: int) -> None: ...

    async def content_in_use(self) -> set[str]:
        """Ids whose content is still needed: of files, and of the inputs of live batches, deleted or not."""
        ...

    # ---- batches

    async def add_batch(self, batch: Batch) -> None: ...

    async def batch(self, tenant: str, batch_id: str) -> Batch | None: ...

    async def batches(self, tenant: str, page: ListPage) -> list[Batch]:
        """Newest first; one more than the limit, if there are more."""
        ...

    async def live_batches(self) -> list[Batch]:
        """Of all tenants, oldest first."""
        ...

    async def move(self, batch_id: str, status: Status, now: int, **changes: Any) -> Batch:
        """The batch in another status. Raises NotAllowed, in which case nothing changed."""
        ...

    async def close_batch(
        self, batch_id: str, status: Status, now: int, output: File | None, errors: File | None
    ) -> Batch:
        """The last move: both files are there from now on, its lines are gone. Raises NotAllowed."""
        ...

    # ---- lines

    async def begin(self, batch_id: str, lines: Sequence[Line], model: str | None, now: int) -> Batch:
        """Move a validated batch to `in_progress` with these lines. Raises NotAllowed."""
        ...

    async def open_lines(self, batch_id: str, after: Line | None, limit: int) -> list[Line]:
        """Lines without an answer, in the order of (group, number)."""
        ...

    async def finish(self, batch_id: str, line: Line, finished: Finished) -> bool:
        """Record what became of a line, and forget its transcript. False: it was finished before, or its batch
        is over, and nothing changed."""
        ...

    async def finished(self, batch_id: str, is_ok: bool, after: int, limit: int) -> list[tuple[int, bytes]]:
        """Number and text of finished lines, in the order of their numbers, behind number `after`."""
        ...

    # ---- agent runs

    async def append(self, batch_id: str, line: Line, position: int, message: bytes) -> None:
        """Keep one message of a line's transcript; one that stands at this position stays as it is."""
        ...

    async def transcript(self, batch_id: str, line: Line) -> list[tuple[int, bytes]]:
        """Its messages by position."""
        ...

    async def start(self) -> None:
        """Before anything else. Raises OSError."""
        ...

    async def close(self) -> None: ...
