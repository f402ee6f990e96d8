"""The demo's table and picture as result files: `python -m benchmarks.demo`."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from pathlib import Path

from benchmarks.results import write
from gateway.demo.report import table
from gateway.demo.run import draw_png, play


def main() -> None:
    arms = asyncio.run(play())
    write("demo", f"```\n{table(arms)}\n```", [asdict(arm) for arm in arms])
    draw_png(arms[:2], Path("docs/demo.png"))


if __name__ == "__main__":
    main()
