"""Files, batches and their lines as values, and the moves that a batch may make. Times are Unix seconds."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any

import orjson

from gateway.core.fields import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """What is known of a file; its content lies in `blobs` under its id."""

    id: str
    tenant: str
    purpose: str
    filename: str
    size_bytes: int
    created_at: int
    expires_at: int | None = None

    def as_json(self) -> Json:
        return {
            "id": self.id,
            "object": "file",
            "bytes": self.size_bytes,
            "created_at": self.created_at,
            "expires_at": self.expires_at,
            "filename": self.filename,
            "purpose": self.purpose,
            "status": "processed",
            "status_details": None,
        }


class Status(StrEnum):
    VALIDATING = "validating"
    FAILED = "failed"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    COMPLETED = "completed"
    EXPIRED = "expired"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"


NEXT: Mapping[Status, frozenset[Status]] = {
    Status.VALIDATING: frozenset((Status.FAILED, Status.IN_PROGRESS, Status.CANCELLING)),
    Status.IN_PROGRESS: frozenset((Status.FINALIZING, Status.CANCELLING)),
    Status.FINALIZING: frozenset((Status.COMPLETED, Status.EXPIRED)),
    Status.CANCELLING: frozenset((Status.CANCELLED,)),
    Status.FAILED: frozenset(),
    Status.COMPLETED: frozenset(),
    Status.EXPIRED: frozenset(),
    Status.CANCELLED: frozenset(),
}
"""Where a batch may go from each status. One whose window ends is finalized first, and expired after that."""

LIVE = frozenset(status for status, following in NEXT.items() if following)
"""Statuses of a batch that is still worked on."""


class NotAllowed(Exception):
    """A batch cannot make this move."""


@dataclass(frozen=True, slots=True)
class LineFault:
    """What is wrong with an input file."""

    code: str
    message: str
    param: str | None = None
    line: int | None = None
    """Counted from 1."""

    def as_json(self) -> Json:
        return {"code": self.code, "message": self.message, "param": self.param, "line": self.line}


@dataclass(frozen=True, slots=True)
class Spent:
    """Tokens of answers."""

    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0

    def __add__(self, other: Spent) -> Spent:
        return Spent(
            self.input_tokens + other.input_tokens,
            self.cached_tokens + other.cached_tokens,
            self.output_tokens + other.output_tokens,
            self.reasoning_tokens + other.reasoning_tokens,
        )

    def as_json(self) -> Json:
        return {
            "input_tokens": self.input_tokens,
            "input_tokens_details": {"cached_tokens": self.cached_tokens},
            "output_tokens": self.output_tokens,
            "output_tokens_details": {"reasoning_tokens": self.reasoning_tokens},
            "total_tokens": self.input_tokens + self.output_tokens,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One batch. Changed by `moved` alone; counts are the store's."""

    id: str
    tenant: str
    endpoint: str
    input_file_id: str
    completion_window: str
    created_at: int
    expires_at: int
    """End of the window: what is not answered by then is not asked any more."""
    status: Status = Status.VALIDATING
    reached_at: Mapping[str, int] = field(default_factory=dict)
    """When each later status was reached."""
    model: str | None = None
    errors: tuple[LineFault, ...] = ()
    output_file_id: str | None = None
    error_file_id: str | None = None
    output_expires_s: int | None = None
    """Lifetime of both output files."""
    key_id: str = ""
    """Reference of the key that made it."""
    allowed_tools: tuple[str, ...] = ()
    """Names and globs of the gateway's tools that this key may use."""
    metadata: Mapping[str, str] | None = None
    total: int = 0
    completed: int = 0
    failed: int = 0
    spent: Spent = Spent()

    def moved(self, status: Status, now: int, **changes: Any) -> Batch:
        """The batch in another status. Raises NotAllowed."""
        if status not in NEXT[self.status]:
            raise NotAllowed(f"a batch cannot go from '{self.status}' to '{status}'")
        return replace(self, status=status, reached_at={**self.reached_at, status.value: now}, **changes)

    def as_json(self) -> Json:
        at = self.reached_at.get
        return {
            "id": self.id,
            "object": "batch",
            "endpoint": self.endpoint,
            "model": self.model,
            "errors": {"object": "list", "data": [e.as_json() for e in self.errors]} if self.errors else None,
            "input_file_id": self.input_file_id,
            "completion_window": self.completion_window,
            "status": self.status.value,
            "output_file_id": self.output_file_id,
            "error_file_id": self.error_file_id,
            "created_at": self.created_at,
            "in_progress_at": at("in_progress"),
            "expires_at": self.expires_at,
            "finalizing_at": at("finalizing"),
            "completed_at": at("completed"),
            "failed_at": at("failed"),
            "expired_at": at("expired"),
            "cancelling_at": at("cancelling"),
            "cancelled_at": at("cancelled"),
            "request_counts": {"total": self.total, "completed": self.completed, "failed": self.failed},
            "usage": self.spent.as_json(),
            "metadata": self.metadata,
        }


@dataclass(frozen=True, slots=True)
class Line:
    """One request of an input file: where it stands there, and beside whom it is asked."""

    number: int
    """Counted from 0."""
    offset: int
    size_bytes: int
    custom_id: str
    group: bytes
    """Lines in the order of (group, number) have their shared prefixes side by side."""


@dataclass(frozen=True, slots=True)
class Finished:
    """What became of a line."""

    is_ok: bool
    text: bytes
    """The line of the output or error file, without its newline."""
    spent: Spent = Spent()


def new_id(kind: str) -> str:
    """`file-...`, `batch_...`, `batch_req_...`; `kind` brings its separator."""
    return kind + uuid.uuid4().hex


# ---- how stores keep batches and files

COUNTS = ("total", "completed", "failed", "input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens")


def about(batch: Batch) -> bytes:
    """All of a batch that is not counted, as JSON."""
    return orjson.dumps(replace(batch, total=0, completed=0, failed=0, spent=Spent()))


def batch_of(about: bytes, counts: Sequence[int]) -> Batch:
    """`counts` in the order of COUNTS."""
    total, completed, failed, *tokens = counts
    told = orjson.loads(about)
    told |= {"status": Status(told["status"]), "errors": tuple(LineFault(**fault) for fault in told["errors"])}
    told["allowed_tools"] = tuple(told["allowed_tools"])
    told |= {"total": total, "completed": completed, "failed": failed, "spent": Spent(*tokens)}
    return Batch(**told)


def counted(finished: Finished) -> dict[str, int]:
    """What a finished line adds to the counts of its batch."""
    return {"completed": int(finished.is_ok), "failed": int(not finished.is_ok)} | asdict(finished.spent)


def file_of(row: bytes) -> File:
    """A file that was kept as JSON."""
    return File(**orjson.loads(row))
