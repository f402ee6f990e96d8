"""Sends requests for files and batches where they belong, also in a gateway that has no place for them.

All that most gateways load of batches.
"""

from __future__ import annotations

from gateway.core.errors import Failure
from gateway.core.transport import Request, Responder
from gateway.dialects import BY_PATH

FILES, BATCHES = "/v1/files", "/v1/batches"
AGENT_RUNS = "/v1/turngate/agent_runs"
ENDPOINTS = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings", AGENT_RUNS)
"""What lines may ask for."""
PURPOSES = ("assistants", "batch", "evals", "fine-tune", "user_data", "vision")
"""Of files."""


async def off(request: Request, responder: Responder) -> None:
    """A `transport.Handler` for a gateway that has no place for batches."""
    text = "There are no files and batches here: set batches.directory, or start with `--batches DIRECTORY`."
    failure = Failure(404, "not_found_error", text)
    body = BY_PATH["/v1/chat/completions"].error_body(failure)
    await responder.reply(failure.status, [("Content-Type", "application/json")], body)
