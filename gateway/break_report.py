"""Which prompts break their siblings' prefix at a running gateway, for people."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import orjson

from gateway.transport import Timeouts, Upstream, UpstreamCut, UpstreamRefused

_FAMILIES = "/v1/turngate/families"
_MAX_PAGE_BYTES = 64 * 2**20


class NotTold(Exception):
    """The gateway did not say; the text says why."""


async def families(upstream: Upstream, url: str, key: str, timeout_s: float) -> list[dict[str, Any]]:
    """Families of the tenant of `key` (empty: none is sent). Raises NotTold."""
    headers = [("Authorization", f"Bearer {key}")] if key else []
    times = Timeouts(timeout_s, timeout_s, timeout_s)
    try:
        reply = await upstream.call("GET", url.rstrip("/").removesuffix("/v1") + _FAMILIES, headers, None, times)
        body = await reply.read(_MAX_PAGE_BYTES)
    except (UpstreamRefused, UpstreamCut) as error:
        raise NotTold(f"{url} does not answer: {error}") from None
    if reply.status == 401:
        raise NotTold(f"{url} asks for a key: name it in `keys` of the configuration (--config)")
    try:
        found: list[dict[str, Any]] = orjson.loads(body)["families"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        raise NotTold(f"{url} is no Turngate: it answered {reply.status}") from None
    return found


def as_text(families: Iterable[dict[str, Any]]) -> str:
    """Two lines for each family that breaks, the most expensive first; for people."""
    broken = [row for row in families if row.get("prefix_breaks")]
    broken.sort(key=lambda row: -row["prefix_breaks"]["wasted_tokens"])
    return "\n".join(map(_lines, broken)) or "No prefix breaks: siblings share what they can."


def _lines(row: dict[str, Any]) -> str:
    told = row["prefix_breaks"]
    last = told["last"]
    return (
        f"family {row['family']}: {told['breaks']} of {told['sessions']} sessions break their siblings' prefix,"
        f" {told['wasted_tokens']:,} tokens wasted ({told['wasted_tokens_per_break']:,} each)\n"
        f"  last: {last['span_chars']} characters in the {last['part']}, {last['at_chars']:,} from the start"
        f" ({last['at_share']:.0%}), like a {last['kind']}; {last['shared_chars']:,} equal characters behind it"
    )
