"""Durable batches: files of requests that are answered while the fleet has room.

This module holds what every gateway needs, even one without batches. The rest is loaded on demand.
"""

from __future__ import annotations

from gateway.core.errors import Failure
from gateway.core.transport import Request, Responder
from gateway.dialects import OPENAI

FILES, BATCHES = "/v1/files", "/v1/batches"
AGENT_RUNS = "/v1/turngate/agent_runs"
ENDPOINTS = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings", AGENT_RUNS)
"""Endpoints that lines may name."""
PURPOSES = ("assistants", "batch", "evals", "fine-tune", "user_data", "vision")
"""Purposes of files."""


async def off(request: Request, responder: Responder) -> None:
    """A `transport.Handler` for a gateway that has no directory for batches."""
    text = "There are no files and batches here: set batches.directory, or start with `--batches DIRECTORY`."
    failure = Failure(404, "not_found_error", text)
    body = OPENAI.error_body(failure)
    await responder.reply(failure.status, [("Content-Type", "application/json")], body)
