"""Keeps a tenant apart in engines' prefix caches, where its key says so: a salt goes with each request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gateway.core import fields
from gateway.core.errors import Failure, Outcome, Refused
from gateway.engines.base import Outgoing
from gateway.engines.poller import RunningEngine
from gateway.exchange import Exchange

SALT = "cache_salt"
MAX_CLIENT_CHARS = 512
"""Of a client's own salt; engines take 1,024 in all."""


def leaking(exchange: Exchange, engines: Sequence[RunningEngine]) -> list[RunningEngine]:
    """Engines that would answer a request that has a salt from a cache that others share. Raises Refused when all
    would."""
    path = exchange.request.path
    found = [one for one in engines if path not in one.adapter.salt_paths]
    if found and len(found) == len(engines):
        text = f"This key asks for a prefix cache of its own (isolate_cache), which no engine here has on {path}."
        raise Refused(Outcome.FORBIDDEN, Failure(403, "permission_error", text, code="cache_not_isolated"))
    return found


def salted(exchange: Exchange, added: Outgoing) -> Outgoing:
    """With the tenant's salt; within it, a client's own goes on telling its requests apart."""
    if not exchange.caller.cache_salt:
        return added
    own = (fields.text(exchange.payload.body, SALT) or "")[:MAX_CLIENT_CHARS]
    return replace(added, body={**added.body, SALT: exchange.caller.cache_salt + own})
