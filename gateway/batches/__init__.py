"""Durable batches: files of requests that are answered while the fleet has room.

This module holds what every gateway needs, even one without batches. The rest is loaded on demand.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from enum import Enum, auto
from typing import TypeAlias

from gateway.core.errors import Failure
from gateway.core.transport import Request, Responder
from gateway.dialects import OPENAI

AGENT_RUNS = "/v1/turngate/agent_runs"
ENDPOINTS = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings", AGENT_RUNS)
"""Endpoints that lines may name."""
PURPOSES = ("assistants", "batch", "evals", "fine-tune", "user_data", "vision")
"""Purposes of files."""


class BatchOperation(Enum):
    """The requests for files and batches; the route table gives each its method and path."""

    LIST_FILES = auto()
    UPLOAD_FILE = auto()
    SHOW_FILE = auto()
    DELETE_FILE = auto()
    READ_FILE = auto()
    LIST_BATCHES = auto()
    CREATE_BATCH = auto()
    SHOW_BATCH = auto()
    CANCEL_BATCH = auto()


BatchHandler: TypeAlias = Callable[[BatchOperation, Sequence[str], Request, Responder], Awaitable[None]]
"""Answers one request; the sequence holds the ids in its path."""


async def off(operation: BatchOperation, ids: Sequence[str], request: Request, responder: Responder) -> None:
    """A BatchHandler for a gateway that has no directory for batches."""
    text = "There are no files and batches here: set batches.directory, or start with `--batches DIRECTORY`."
    failure = Failure(404, "not_found_error", text)
    body = OPENAI.error_body(failure)
    await responder.reply(failure.status, [("Content-Type", "application/json")], body)
