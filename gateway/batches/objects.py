"""Files, batches and their lines as values, and the moves that a batch may make. Times are Unix seconds."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from gateway.core.fields import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """A file without its content, which `Blobs` keeps under the same id."""

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
"""The statuses that may follow each status. A batch whose window ends is finalized first, then expires."""

LIVE = frozenset(status for status, following in NEXT.items() if following)
"""Statuses of a batch that still needs work."""


FULL_CODE = "insufficient_storage"
"""Code of the fault that the disk has no room."""


class NotAllowed(Exception):
    """A batch cannot make this move."""


@dataclass(frozen=True, slots=True)
class LineFault:
    """One fault of an input file."""

    code: str
    message: str
    param: str | None = None
    line: int | None = None
    """Counted from 1."""

    def as_json(self) -> Json:
        return {"code": self.code, "message": self.message, "param": self.param, "line": self.line}


@dataclass(frozen=True, slots=True)
class Spent:
    """Tokens that answers have cost."""

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
    """One batch. Only `moved` changes it. The store keeps its counts."""

    id: str
    tenant: str
    endpoint: str
    input_file_id: str
    completion_window: str
    created_at: int
    expires_at: int
    """End of the window. A line that is still open then is not sent any more."""
    status: Status = Status.VALIDATING
    reached_at: Mapping[str, int] = field(default_factory=dict)
    """The time at which each later status was reached."""
    model: str | None = None
    errors: tuple[LineFault, ...] = ()
    output_file_id: str | None = None
    error_file_id: str | None = None
    output_expires_s: int | None = None
    """Lifetime of both output files."""
    key_id: str = ""
    """Reference of the API key that created the batch."""
    allowed_tools: tuple[str, ...] = ()
    """Names and globs of the gateway's tools that the key may use."""
    metadata: Mapping[str, str] | None = None
    total: int = 0
    completed: int = 0
    failed: int = 0
    spent: Spent = Spent()

    def moved(self, status: Status, now: int, **changes: Any) -> Batch:
        """Return the batch in another status. Raises NotAllowed."""
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
    """One request of an input file: its place there, and the group of lines with which it shares a prefix."""

    number: int
    """Counted from 0."""
    offset: int
    size_bytes: int
    custom_id: str
    group: bytes
    """In the order of (group, number), lines that share a prefix stand side by side."""


@dataclass(frozen=True, slots=True)
class Finished:
    """The result of a line."""

    is_ok: bool
    text: bytes
    """The line of the output or error file, without its newline."""
    spent: Spent = Spent()


def new_id(kind: str) -> str:
    """Return a new id, such as `file-...` or `batch_...`. `kind` includes the separator."""
    return kind + uuid.uuid4().hex
