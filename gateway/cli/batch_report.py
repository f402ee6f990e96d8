"""How the batches of a running gateway go, for people."""

from __future__ import annotations

from collections.abc import Iterable

from gateway.cli.remote import page
from gateway.core import fields
from gateway.core.fields import Json
from gateway.core.transport import Upstream


async def batches(upstream: Upstream, url: str, key: str, timeout_s: float) -> list[Json]:
    """The newest batches of the tenant of `key` (empty: none is sent). Raises NotTold."""
    return fields.items(await page(upstream, url, "/v1/batches?limit=20", key, timeout_s), "data")


def as_text(rows: Iterable[Json], now: float) -> str:
    """One line per batch, newest first."""
    return "\n".join(_line(row, now) for row in rows) or "There are no batches."


def _line(row: Json, now: float) -> str:
    counts = fields.obj(row, "request_counts")
    total, completed, failed = (fields.integer(counts, key) or 0 for key in ("total", "completed", "failed"))
    done = completed + failed
    line = f"{row.get('id')}  {row.get('status'):<11}  {completed:,} of {total:,} completed"
    if failed:
        line += f", {failed:,} failed"
    began = fields.integer(row, "in_progress_at")
    if row.get("status") == "in_progress" and began is not None and 0 < done < total:
        line += f", about {max(1, round((now - began) * (total - done) / done)):,} s to go"
    if errors := fields.items(fields.obj(row, "errors"), "data"):
        line += f": {errors[0].get('message')}"
    return line
