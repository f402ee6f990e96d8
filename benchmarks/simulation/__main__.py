"""Experiments in virtual time; each writes a table with its bars, the data, and a picture.

python -m benchmarks.experiments NAME|all [--seeds 1 2 3] [--results DIRECTORY]
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.simulation.experiments import classes, cliff, overload, robustness, shapes, sharing, warm_up
from benchmarks.simulation.report import Outcome, publish

EXPERIMENTS: dict[str, Callable[[Sequence[int]], Outcome]] = {
    "cliff": cliff,
    "sharing": sharing,
    "classes": classes,
    "overload": overload,
    "robustness": robustness,
    "shapes": shapes,
    "warm-up": warm_up,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("name", choices=[*EXPERIMENTS, "all"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results"))
    arguments = parser.parse_args()
    for name in EXPERIMENTS if arguments.name == "all" else [arguments.name]:
        began_at = time.monotonic()
        outcome = EXPERIMENTS[name](arguments.seeds)
        publish(f"simulated-{name}", outcome, arguments.results)
        print((arguments.results / f"simulated-{name}.md").read_text())
        print(f"{name}: {time.monotonic() - began_at:.0f} s", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
