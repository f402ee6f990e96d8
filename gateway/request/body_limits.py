"""How many things one request may hold; how long it may be is checked while it is read."""

from __future__ import annotations

from gateway.config.settings import RequestLimits
from gateway.core.errors import Failure
from gateway.core.fields import Json


def too_many(body: Json, limits: RequestLimits) -> Failure | None:
    """The first list that is too long; None for an ordinary request."""
    for key, most, name in (
        ("messages", limits.messages, "messages"),
        ("input", limits.messages, "messages"),
        ("tools", limits.tools, "tools"),
    ):
        items = body.get(key)
        if isinstance(items, list) and len(items) > most:
            text = f"`{key}` has {len(items)} entries, and {most} are allowed (limits.{name})."
            return Failure(400, "invalid_request_error", text, param=key, code="too_many_items")
    return None
