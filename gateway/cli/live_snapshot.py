"""Asks a running gateway for its live snapshot."""

from __future__ import annotations

from gateway.api.live import PATH
from gateway.cli.remote import NotTold, base_of, page
from gateway.core.fields import Json
from gateway.core.transport import Upstream

_KEYS = frozenset(("sessions", "replicas", "turns"))


async def ask(upstream: Upstream, url: str, key: str, timeout_s: float, limit: int) -> Json:
    """The snapshot, with at most `limit` sessions. `key`: empty: none is sent. Raises NotTold."""
    told = await page(upstream, url, f"{PATH}?limit={limit}", key, timeout_s)
    if not told.keys() >= _KEYS:
        raise NotTold(f"{base_of(url)} is no Turngate, or an old one")
    return told
