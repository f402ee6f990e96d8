"""The gateway's ledger of time against what the gate really saved, on a real engine.

python -m benchmarks.fleet --engine dynamo --fleet base n80 --arms straight turns observe --results FOLDER
python -m benchmarks.fleet.ledger FOLDER
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.fleet import report
from benchmarks.fleet.fleets import FLEETS
from benchmarks.results import command_parser, write
from benchmarks.simulation.gate_ledger import CLEAR, LedgerFigures

NOTE = """\
Seconds of all sessions, sub-agents included, without a gateway; the part of them that `turns` really saved, with
the same seeds; the part that its ledger says, saved less held; and the part that the ledger of `observe` says on
the fleet without a gate, as the last session ends. A difference below {clear:.0%} has no sign and no ratio."""


def of_fleet(name: str, cells: report.Cells) -> LedgerFigures:
    """Sum over the seeds that were played with and without the gate."""
    seeds = [seed for arm, seed in cells if arm == "turns" and ("straight", seed) in cells]
    straight = [cells["straight", seed].figures for seed in seeds]
    turns = [cells["turns", seed].figures for seed in seeds]
    observed = [cells["observe", seed].figures for seed in seeds if ("observe", seed) in cells]
    straight_s = sum(one.sessions_s for one in straight)
    return LedgerFigures(
        num_sessions=sum(len(FLEETS[name].draw(seed)) for seed in seeds),
        straight_s=straight_s,
        difference_s=straight_s - sum(one.sessions_s for one in turns),
        held_s=sum(one.gate_held_s for one in turns),
        saved_s=sum(one.gate_saved_s for one in turns),
        foreseen_s=sum(one.gate_saved_s - one.gate_held_s for one in observed) if observed else float("nan"),
    )


def table(found: Sequence[tuple[str, LedgerFigures]]) -> str:
    wrong = [name for name, one in found if not one.has_sign]
    lines = [
        NOTE.format(clear=CLEAR),
        "",
        f"Fleets whose net has the wrong sign: {', '.join(wrong) or 'none'}.",
        "",
    ]
    lines += [
        "| fleet | straight s | saved really | net of the ledger | net / really | held s | saved s | observe |"
    ]
    lines += ["|---" * 8 + "|"]
    for name, one in found:
        is_clear = abs(one.difference_s) > CLEAR * one.straight_s
        ratio = f"{one.net_s / one.difference_s:.2f}" if is_clear else ""
        parts = [one.difference_s / one.straight_s, one.net_s / one.straight_s]
        foreseen = "" if one.foreseen_s != one.foreseen_s else f"{one.foreseen_s / one.straight_s:.3f}"
        cells = [name, f"{one.straight_s:,.0f}", *(f"{part:.3f}" for part in parts), ratio]
        cells += [f"{one.held_s:,.1f}", f"{one.saved_s:,.1f}", foreseen]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = command_parser(__doc__, __file__)
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="with the result files of `benchmarks.fleet`")
    options = parser.parse_args()
    loaded = {
        file.stem.removeprefix("dynamo-"): report.load(file) for file in options.folder.glob("dynamo-*.json")
    }
    found = [(name, of_fleet(name, loaded[name])) for name in FLEETS if name in loaded]
    text = table(found)
    print(text)
    write(options.results, "ledger", text, dict(found))


if __name__ == "__main__":
    main()
