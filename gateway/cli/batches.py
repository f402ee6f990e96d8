"""`turngate batches`: the progress of the newest batches of a running gateway."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable

from gateway.cli import process, remote
from gateway.config.settings import Settings
from gateway.core import fields
from gateway.core.fields import Json


def add_flags(parser: argparse.ArgumentParser) -> None:
    remote.add_gateway_flags(parser)


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    return process.run_loop(
        remote.report(
            settings,
            arguments.gateway,
            arguments.key,
            "/v1/batches?limit=20",
            "data",
            lambda rows: as_text(rows, time.time()),
        )
    )


def as_text(rows: Iterable[Json], now: float) -> str:
    """Return one line per batch, newest first."""
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
