"""The demo's picture: what each session was doing, straight above and through the gateway below."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gateway.cli.demo.fleet import SessionRecord
from gateway.cli.demo.report import Arm

COLOURS = {"queued": "#c9ccd1", "prefill": "#d1495b", "decode": "#2e86ab", "tool": "#f0c75e"}


def draw(arms: Sequence[Arm], path: Path) -> None:
    """Write a PNG with one panel per arm. Needs matplotlib (extra `demo`)."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot
    from matplotlib.patches import Patch

    figure, panels = pyplot.subplots(len(arms), 1, figsize=(11, 3.4 * len(arms)), sharex=True, squeeze=False)
    for panel, arm in zip(panels[:, 0], arms, strict=True):
        _panel(panel, arm)
    panels[-1, 0].set_xlabel("seconds")
    handles = [Patch(color=colour, label=phase) for phase, colour in COLOURS.items()]
    figure.legend(handles=handles, loc="upper center", ncols=len(handles), frameon=False)
    figure.tight_layout(rect=(0, 0, 1, 0.96))
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _panel(panel: Any, arm: Arm) -> None:
    ordered = sorted(arm.sessions, key=lambda session: session.turns[0].first_token_at)
    for row, session in enumerate(ordered):
        for phase, spans in phases(session).items():
            panel.broken_barh(spans, (row + 0.1, 0.8), facecolors=COLOURS[phase])
    panel.set_title(
        f"{arm.name}: mean session {arm.mean_s:.1f} s, {arm.recomputed_tokens:,} tokens recomputed",
        loc="left",
        fontsize=10,
    )
    panel.set_ylabel("session")
    panel.set_yticks([])
    panel.set_ylim(len(ordered), 0)
    panel.spines[["top", "right"]].set_visible(False)


def phases(session: SessionRecord) -> dict[str, list[tuple[float, float]]]:
    """(start, duration) of each phase of a session, in seconds."""
    spans: dict[str, list[tuple[float, float]]] = {phase: [] for phase in COLOURS}
    for turn, following in zip(session.turns, [*session.turns[1:], None], strict=True):
        spans["queued"].append((turn.wanted_at, turn.admitted_at - turn.wanted_at))
        spans["prefill"].append((turn.admitted_at, turn.first_token_at - turn.admitted_at))
        spans["decode"].append((turn.first_token_at, turn.done_at - turn.first_token_at))
        if following is not None:
            spans["tool"].append((turn.done_at, following.wanted_at - turn.done_at))
    return spans
