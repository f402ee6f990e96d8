"""What an experiment hands over: a table with its bars, the data behind it, and pictures."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

Points: TypeAlias = Sequence[tuple[float, float]]
NOTE = (
    "A simulation: the Scheduler that serves, the embedded engine's model, virtual time. Seconds are those of the "
    "model in `gateway/embedded/model.py`; read them as ratios."
)


@dataclass(frozen=True, slots=True)
class Bar:
    """A claim with its number."""

    claim: str
    value: float
    most: float | None = None
    least: float | None = None

    @property
    def is_met(self) -> bool:
        return (self.most is None or self.value <= self.most) and (self.least is None or self.value >= self.least)

    def __str__(self) -> str:
        bound = f"<= {self.most:g}" if self.least is None else f">= {self.least:g}"
        return f"- {'met' if self.is_met else '**NOT met**'}: {self.claim}: {self.value:.3f} ({bound})"


@dataclass(frozen=True, slots=True)
class Picture:
    title: str
    across: str
    up: str
    lines: Mapping[str, Points]


@dataclass(frozen=True, slots=True)
class Outcome:
    about: str
    head: Sequence[str]
    rows: Sequence[Sequence[object]]
    data: Any
    bars: Sequence[Bar] = ()
    pictures: Sequence[Picture] = field(default_factory=tuple)


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Markdown; floats with three digits that count."""
    lines = [head, ["---"] * len(head), *([_cell(value) for value in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _cell(value: object) -> str:
    if not isinstance(value, float):
        return f"{value:,}" if isinstance(value, int) else str(value)
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.3f}"


def text_of(outcome: Outcome) -> str:
    """Markdown: the subject, its bars, its table."""
    bars = "\n".join(map(str, outcome.bars))
    about = "\n\n".join(textwrap.fill(part, 110) for part in (outcome.about, NOTE))
    return "\n\n".join(filter(None, (about, bars, table(outcome.head, outcome.rows))))


def draw(pictures: Sequence[Picture], file: Path) -> None:
    import matplotlib as mpl  # slow to import, and only needed here

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    file.parent.mkdir(parents=True, exist_ok=True)
    figure, panels = plt.subplots(1, len(pictures), figsize=(5.5 * len(pictures), 4), squeeze=False)
    for panel, picture in zip(panels[0], pictures, strict=True):
        for label, points in picture.lines.items():
            panel.plot(*zip(*points, strict=True), marker="o", markersize=3, label=label)
        panel.set(title=picture.title, xlabel=picture.across, ylabel=picture.up)
        panel.set_ylim(bottom=0)
        panel.grid(alpha=0.3)
        panel.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(file, dpi=110)
    plt.close(figure)
