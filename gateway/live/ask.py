"""Asks a running gateway for its live snapshot."""

from __future__ import annotations

import orjson

from gateway.exchange import Json
from gateway.live.live import PATH
from gateway.transport import Timeouts, Upstream, UpstreamCut, UpstreamRefused

MAX_ANSWER_BYTES = 8 * 2**20


class NotTold(Exception):
    """The gateway did not say; the text says why and what to do."""


async def ask(upstream: Upstream, url: str, key: str, timeout_s: float, limit: int) -> Json:
    """The snapshot, with at most `limit` sessions. `key`: empty: none is sent. Raises NotTold."""
    base = url.rstrip("/").removesuffix("/v1")
    headers = [("Authorization", f"Bearer {key}")] if key else []
    times = Timeouts(timeout_s, timeout_s, timeout_s)
    try:
        reply = await upstream.call("GET", f"{base}{PATH}?limit={limit}", headers, None, times)
        body = await reply.read(MAX_ANSWER_BYTES)
    except UpstreamRefused:
        raise NotTold(f"nothing answers at {base}: is the gateway running? --gateway URL names another") from None
    except UpstreamCut as error:
        raise NotTold(f"{base} does not answer: {error}") from None
    if reply.status in (401, 403):
        raise NotTold(f"{base} asks for a key: --key env:NAME, or name it in the configuration (--config)")
    try:
        told = orjson.loads(body)
        told["sessions"], told["replicas"], told["turns"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        raise NotTold(f"{base} is no Turngate, or an old one: it answered {reply.status}") from None
    live: Json = told
    return live
