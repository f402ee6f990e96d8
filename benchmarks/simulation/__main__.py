"""Experiments in virtual time; each writes a table with its bars and the data, and on demand a picture.

python -m benchmarks.simulation NAME...|all [--seeds 1 2 3] [--results FOLDER] [--pictures FOLDER]
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.results import command_parser, write
from benchmarks.simulation.ablation import ablation
from benchmarks.simulation.experiments import classes, cliff, overload, robustness, shapes, sharing
from benchmarks.simulation.gate_ledger import ledger
from benchmarks.simulation.no_harm import coding, no_harm
from benchmarks.simulation.report import Outcome, draw, text_of
from benchmarks.simulation.restart import restart

EXPERIMENTS: dict[str, Callable[[Sequence[int]], Outcome]] = {
    "cliff": cliff,
    "sharing": sharing,
    "classes": classes,
    "overload": overload,
    "robustness": robustness,
    "shapes": shapes,
    "no-harm": no_harm,
    "coding": coding,
    "ablation": ablation,
    "ledger": ledger,
    "restart": restart,
}


def main() -> None:
    parser = command_parser(__doc__, __file__)
    parser.add_argument(
        "names", nargs="+", choices=[*EXPERIMENTS, "all"], metavar="NAME", help=", ".join(EXPERIMENTS)
    )
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--pictures", type=Path, metavar="FOLDER", help="draw simulated-NAME.png there")
    options = parser.parse_args()
    for name in EXPERIMENTS if "all" in options.names else options.names:
        began_at = time.monotonic()
        outcome = EXPERIMENTS[name](options.seeds)
        text = text_of(outcome)
        print(f"# {name}\n\n{text}\n", flush=True)
        write(options.results, name, text, outcome.data, time.monotonic() - began_at)
        if options.pictures is not None and outcome.pictures:
            draw(outcome.pictures, options.pictures / f"simulated-{name}.png")


if __name__ == "__main__":
    main()
