"""A running gateway, as commands ask it for one of its pages."""

from __future__ import annotations

import orjson

from gateway.core import fields
from gateway.core.fields import Json
from gateway.core.transport import Timeouts, Upstream, UpstreamCut, UpstreamRefused

_MAX_PAGE_BYTES = 64 * 2**20


class NotTold(Exception):
    """The gateway did not say; the text says why and what to do."""


def base_of(url: str) -> str:
    """However it was written: without a scheme, or as the base URL that clients are given."""
    return (url if "://" in url else f"http://{url}").rstrip("/").removesuffix("/v1")


async def page(upstream: Upstream, url: str, path: str, key: str, timeout_s: float) -> Json:
    """The object that a page is. `key`: empty: none is sent. Raises NotTold."""
    base = base_of(url)
    headers = [("Authorization", f"Bearer {key}")] if key else []
    times = Timeouts(timeout_s, timeout_s, timeout_s)
    try:
        reply = await upstream.call("GET", base + path, headers, None, times)
        told = orjson.loads(await reply.read(_MAX_PAGE_BYTES))
    except UpstreamRefused:
        raise NotTold(f"nothing answers at {base}: is the gateway running? --gateway URL names another") from None
    except UpstreamCut as error:
        raise NotTold(f"{base} does not answer: {error}") from None
    except orjson.JSONDecodeError:
        told = None
    if reply.status in (401, 403):
        raise NotTold(f"{base} asks for a key: --key env:NAME, or name it in the configuration (--config)")
    if reply.status == 200 and isinstance(told, dict):
        return told
    failure = fields.obj(told, "error") if isinstance(told, dict) else {}
    why = fields.text(failure, "message") or "it is no Turngate, or an old one"
    raise NotTold(f"{base} answered {reply.status}: {why}")
