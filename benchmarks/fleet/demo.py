"""The demo's table and picture as result files.

python -m benchmarks.fleet.demo
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from benchmarks.results import command_parser, write
from gateway.cli.demo import draw_png, play
from gateway.cli.demo_fleet import Arm, quantile, table


def figures(arm: Arm) -> dict[str, Any]:
    """What the table shows of an arm; seconds and tokens."""
    return {
        "name": arm.name,
        "pool_tokens": arm.pool_tokens,
        "floor_tokens": arm.floor_tokens,
        "prompt_tokens": arm.prompt_tokens,
        "cached_tokens": arm.cached_tokens,
        "recomputed_tokens": arm.recomputed_tokens,
        "mean_session_s": arm.mean_s,
        "p99_session_s": quantile(arm.completions_s, 0.99),
        "p99_ttft_first_s": arm.ttft_p99_s(True),
        "p99_ttft_later_s": arm.ttft_p99_s(False),
        "makespan_s": arm.makespan_s,
    }


def main() -> None:
    parser = command_parser(__doc__, __file__)
    parser.add_argument("--picture", type=Path, default=Path("docs/demo.png"), metavar="FILE")
    options = parser.parse_args()
    arms = asyncio.run(play())
    write(options.results, "demo", f"```\n{table(arms)}\n```", [figures(arm) for arm in arms])
    draw_png(arms[:2], options.picture)


if __name__ == "__main__":
    main()
