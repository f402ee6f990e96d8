"""Pictures of the fleet benchmark, drawn from its result files.

    python -m benchmarks.fleet.plots dynamo-base --pictures docs

Per fleet: ratios to `straight` with a dot per seed, how many sessions are done by when, and, for a fleet that
arrives over time, how long a session takes by its arrival.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl

from benchmarks.fleet import report
from benchmarks.fleet.cells import FleetFigures

mpl.use("Agg")

from matplotlib import pyplot

STRAIGHT_COLOUR = "#8a8d93"
OURS_COLOURS = ("#d1495b", "#e08a5b", "#b3446c", "#7d2e46")
OTHER_COLOURS = ("#2e86ab", "#3a9d7c", "#9a7fd1", "#c2a83e", "#5b8fd1", "#4c6a57", "#7a6652", "#1f4e5f")
RATIOS: Sequence[tuple[str, Callable[[FleetFigures], float]]] = (
    ("makespan", lambda f: f.makespan_s),
    ("mean session", lambda f: f.mean_session_s),
    ("p99 TTFT, later turns", lambda f: f.p99_ttft_later_s),
    ("uncached tokens", lambda f: f.uncached_tokens),
)


def draw(cells: report.Cells, title: str, path: Path) -> None:
    """One picture of one fleet."""
    arms = report.by_arm(cells)
    colours = colours_of(list(arms))
    arrives_over_time = any(arrived > 1 for cell in cells.values() for arrived, _ in cell.sessions)
    num_panels = 3 if arrives_over_time else 2
    figure, panels = pyplot.subplots(1, num_panels, figsize=(6 * num_panels, 4.2), squeeze=False)
    _ratios(panels[0, 0], arms, colours)
    _done_by(panels[0, 1], cells, colours)
    if arrives_over_time:
        _by_arrival(panels[0, 2], cells, colours)
    for panel in panels[0]:
        panel.spines[["top", "right"]].set_visible(False)
    handles, labels = panels[0, 1].get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside lower center", ncols=min(6, len(labels)), frameon=False, fontsize=8
    )
    figure.suptitle(title, x=0.01, ha="left", fontsize=11)
    figure.tight_layout(rect=(0, 0.06 + 0.04 * (len(labels) // 6), 1, 0.97))
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def colours_of(arms: Sequence[str]) -> dict[str, str]:
    ours, others = iter(OURS_COLOURS), iter(OTHER_COLOURS * 2)
    return {
        arm: STRAIGHT_COLOUR if arm == report.BASELINE else next(ours if arm.startswith("turns") else others)
        for arm in arms
    }


def _ratios(panel: Any, arms: Mapping[str, Mapping[int, FleetFigures]], colours: Mapping[str, str]) -> None:
    baseline = arms.get(report.BASELINE, {})
    compared = [arm for arm in arms if arm != report.BASELINE]
    width = 0.8 / max(1, len(compared))
    for place, arm in enumerate(compared):
        for group, (_, of) in enumerate(RATIOS):
            pairs = [(of(run), of(baseline[seed])) for seed, run in arms[arm].items() if seed in baseline]
            pairs = [(new, base) for new, base in pairs if base > 0]
            if not pairs:
                continue
            x = group + (place - (len(compared) - 1) / 2) * width
            ratio = sum(new for new, _ in pairs) / sum(base for _, base in pairs)
            panel.bar(x, ratio, width * 0.9, color=colours[arm])
            dots = [new / base for new, base in pairs]
            panel.plot([x] * len(dots), dots, "o", color="black", markersize=2.5, alpha=0.6)
    panel.axhline(1, color=STRAIGHT_COLOUR, linewidth=1)
    panel.set_ylim(0, 2)
    panel.set_xticks(range(len(RATIOS)), [name.replace(", ", ",\n") for name, _ in RATIOS], fontsize=8)
    panel.set_title("ratio to straight (bar: sums over seeds; cut at 2)", loc="left", fontsize=9)


def _done_by(panel: Any, cells: report.Cells, colours: Mapping[str, str]) -> None:
    completions_s: defaultdict[str, list[float]] = defaultdict(list)
    for (arm, _), cell in cells.items():
        completions_s[arm] += [end - arrived for arrived, end in cell.sessions]
    for arm, colour in colours.items():
        ordered = sorted(completions_s[arm])
        shares = [(place + 1) / len(ordered) for place in range(len(ordered))]
        panel.step(ordered, shares, where="post", color=colour, label=arm, linewidth=1.6)
    panel.set_xlim(0)
    panel.set_ylim(0, 1.02)
    panel.set_xlabel("seconds since the session arrived")
    panel.set_title("share of sessions done (all seeds)", loc="left", fontsize=9)


def _by_arrival(panel: Any, cells: report.Cells, colours: Mapping[str, str]) -> None:
    for (arm, _), cell in cells.items():
        points = [(arrived, end - arrived) for arrived, end in cell.sessions]
        panel.plot(*zip(*points, strict=True), "o", color=colours[arm], markersize=2, alpha=0.5)
    panel.set_ylim(0)
    panel.set_xlabel("arrival, seconds")
    panel.set_title("seconds that a session takes, by its arrival", loc="left", fontsize=9)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="+", metavar="NAME", help="of a result, such as dynamo-base")
    parser.add_argument("--results", type=Path, default=Path(__file__).with_name("results"), metavar="FOLDER")
    parser.add_argument("--pictures", type=Path, required=True, metavar="FOLDER", help="draw fleet-NAME.png there")
    options = parser.parse_args()
    for name in options.names:
        picture = options.pictures / f"fleet-{name}.png"
        draw(report.load(options.results / f"{name}.json"), name, picture)
        print(picture)


if __name__ == "__main__":
    main()
