"""The tool of `benchmarks.batches.chaos`: it must never run twice for one call, and writes down that it ran."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from tool_runtime.types import Context, Json, Tool

RUNS = "CHAOS_RUNS"
"""Environment variable: the file that gets a line per run."""
RUN_S = 0.05


async def _post(arguments: Json, context: Context) -> str:
    with Path(os.environ[RUNS]).open(
        "a"
    ) as runs:  # one short write, at the end of the file, so that several processes may write
        runs.write(f"{arguments['agent']}/{arguments['turn']}\n")
    await asyncio.sleep(RUN_S)
    return "posted"


_NUMBERS = {name: {"type": "integer"} for name in ("agent", "turn")}
post = Tool(
    name="post",
    description="Post a message.",
    parameters={"type": "object", "properties": _NUMBERS, "required": list(_NUMBERS)},
    run=_post,
)
