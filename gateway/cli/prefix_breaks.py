"""Which prompts break their siblings' prefix at a running gateway, for people."""

from __future__ import annotations

from collections.abc import Iterable

from gateway.cli.remote import page
from gateway.core import fields
from gateway.core.fields import Json
from gateway.core.transport import Upstream


async def families(upstream: Upstream, url: str, key: str, timeout_s: float) -> list[Json]:
    """Families of the tenant of `key` (empty: none is sent). Raises NotTold."""
    return fields.items(await page(upstream, url, "/v1/turngate/families", key, timeout_s), "families")


def as_text(families: Iterable[Json]) -> str:
    """Two lines for each family that breaks, the most expensive first; for people."""
    broken = [row for row in families if row.get("prefix_breaks")]
    broken.sort(key=lambda row: -row["prefix_breaks"]["wasted_tokens"])
    return "\n".join(map(_lines, broken)) or "No prefix breaks: siblings share what they can."


def _lines(row: Json) -> str:
    told = row["prefix_breaks"]
    last = told["last"]
    return (
        f"family {row['family']}: {told['breaks']} of {told['sessions']} sessions break their siblings' prefix,"
        f" {told['wasted_tokens']:,} tokens wasted ({told['wasted_tokens_per_break']:,} each)\n"
        f"  last: {last['span_chars']} characters in the {last['part']}, {last['at_chars']:,} from the start"
        f" ({last['at_share']:.0%}), like a {last['kind']}; {last['shared_chars']:,} equal characters behind it"
    )
