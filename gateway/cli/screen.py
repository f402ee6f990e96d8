"""Draws a live snapshot for a terminal of any size."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.segment import Segment
from rich.style import Style
from rich.table import Table
from rich.text import Text

from gateway.api.why import amount
from gateway.core.fields import Json

COLOURS: Mapping[str, str] = {
    "waiting": "yellow",
    "queued": "red",
    "prefill": "magenta",
    "decode": "green",
    "tool": "cyan",
    "lease": "blue",
    "idle": "bright_black",
}
_ORDER = {phase: number for number, phase in enumerate(COLOURS)}
GAUGE_CELLS = 24
ID_CHARS = 10
NAME_CELLS = 16
COLUMNS = (
    "SESSION",
    "AGENT",
    "CLIENT'S ID",
    "FAMILY",
    "TENANT",
    "PHASE",
    "FOR",
    "TURN",
    "LEFT",
    "TOKENS",
    "REPLICA",
)
_NUMBERS = ("TURN", "LEFT", "TOKENS", "FOR")
_LEFT_OUT = (
    (130, ("CLIENT'S ID",)),
    (100, ("AGENT",)),
    (70, ("FAMILY", "LEFT")),
    (50, ("TOKENS", "REPLICA")),
)
"""In a terminal with fewer columns."""
_NAMES = {"residency": "room"}
"""Reasons to wait, in the words of the head."""
_OTHER_LINES = 6
"""Two of the head, the column names of both tables, how many sessions are not shown, the keys."""

SORTS: Mapping[str, Callable[[Json], Any]] = {
    "phase": lambda row: (_ORDER.get(row["phase"], 9), -row["phase_s"]),
    "age": lambda row: -row["age_s"],
    "turn": lambda row: -row["turn"],
    "tokens": lambda row: -row.get("prompt_tokens", 0),
    "family": lambda row: (row["family"], row["age_s"]),
}


class Screen:
    """One snapshot. With a `height` it fills that many lines, the last with the keys. `problem` says why there is
    no newer one."""

    def __init__(
        self,
        snapshot: Json | None,
        url: str,
        sort: str,
        height: int | None = None,
        problem: str = "",
        page: int = 0,
    ) -> None:
        self._snapshot = snapshot
        self._url = url
        self._sort = sort
        self._height = height
        self._problem = problem
        self._page = page

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = console.render_lines(
            Group(*self._parts(options.max_width)), options.update(height=None), pad=False
        )
        if self._height is not None:
            keys = Text(
                f"q quit   space next page   s sort (now by {self._sort})",
                style="dim",
                no_wrap=True,
                overflow="ellipsis",
            )
            room = self._height - 1
            lines = [*lines[:room], *([[]] * (room - len(lines))), *console.render_lines(keys, options, pad=False)]
        for number, line in enumerate(lines, 1):
            yield from line
            if self._height is None or number < len(lines):
                yield Segment.line()

    def _parts(self, width: int) -> Iterator[RenderableType]:
        if self._problem:
            yield Text(self._problem, style="bold red")
        if self._snapshot is None:
            return
        num_replicas = len(self._snapshot["replicas"])
        num_shown, rows = num_replicas, None
        if self._height is not None:
            room = self._height - _OTHER_LINES
            num_shown = min(num_replicas, max(1, room // 3))
            rows = max(1, room - num_shown - bool(num_shown < num_replicas) - bool(self._problem))
        yield head(self._snapshot, self._url)
        yield replicas(self._snapshot, num_shown)
        yield sessions(self._snapshot, self._sort, rows, self._page, width)


def head(snapshot: Json, url: str) -> Text:
    states, waiting = snapshot["states"], snapshot["waiting"]
    clock = time.strftime("%H:%M:%S", time.localtime(snapshot["at"]))
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append(f"turngate {snapshot['version']}", style="bold").append(f"  {url}  {clock}")
    text.append(gates(snapshot["replicas"]) + "\n")
    text.append(f"{states['running']} running", style=COLOURS["decode"])
    text.append(f"  {states['waiting']} waiting", style=COLOURS["waiting"])
    text.append(f" ({waiting['residency']} for room, {waiting['slot']} for a slot)")
    text.append(f"  {states['idle']} between turns", style=COLOURS["tool"])
    return text.append(f"  families: {snapshot['families']}")


def gates(rows: Sequence[Json]) -> str:
    """Return what all gates saved and cost together, in seconds of sessions; empty where none is counted."""
    counted = [row for row in rows if row.get("gate", "none") != "none"]
    if not counted:
        return ""
    saved, held = (seconds(sum(row[key] for row in counted)) for key in ("gate_saved_s", "gate_held_s"))
    if all(row["gate"] == "observed" for row in counted):
        return f"  gate would save {saved}, cost {held}"
    state = " open" if any(row["gate"] == "open" for row in counted) else ""
    return f"  gate{state}: saved {saved}, cost {held}"


def replicas(snapshot: Json, num_shown: int) -> Table:
    table = _table("REPLICA", "RESIDENT TOKENS", "", "SLOTS", right=("SLOTS",))
    for row in snapshot["replicas"][:num_shown]:
        used, ceiling, capacity = row["residency_tokens"], row["ceiling_tokens"], row["capacity_tokens"]
        sizes = f"{amount(used)} of {amount(ceiling)}" if ceiling else f"{amount(used)}, size unknown"
        slots = f"{row['slots_used']}/{row['slots'] or '?'}"
        state = slots if row["is_up"] else Text("DOWN", style="bold red")
        table.add_row(_clipped(row["id"], 16), gauge(used, ceiling, capacity or ceiling), sizes, state)
    if (more := len(snapshot["replicas"]) - num_shown) > 0:
        table.add_row(f"and {more} more")
    return table


def gauge(used: int, ceiling: int | None, full: int | None) -> Text:
    """Return the share of the pool that resident sessions fill, with a bar at the ceiling that bounds them."""
    if not full or not ceiling:
        return Text("?" * 3, style="bright_black")
    filled = min(GAUGE_CELLS, round(GAUGE_CELLS * used / full))
    at = min(GAUGE_CELLS - 1, round(GAUGE_CELLS * ceiling / full))
    cells = ["#" if cell < filled else "." for cell in range(GAUGE_CELLS)]
    cells[at] = "|"
    return Text("".join(cells), style="red" if used > ceiling else "yellow" if used > 0.9 * ceiling else "green")


def sessions(snapshot: Json, sort: str, rows_left: int | None, page: int, width: int) -> Table:
    """Return one page of them; the first follows the last."""
    rows = sorted(snapshot["sessions"], key=SORTS[sort])
    num_pages = -(-len(rows) // rows_left) if rows and rows_left else 1
    first = (page % num_pages) * (rows_left or 0)
    shown = rows[first : first + rows_left] if rows_left is not None else rows
    cells = [_cells(row) for row in shown]
    left_out = {name for least, names in _LEFT_OUT if width < least for name in names}
    left_out |= {name for name in ("TENANT", "AGENT", "CLIENT'S ID") if not any(row[name] for row in cells)}
    names = [name for name in COLUMNS if name not in left_out]
    table = _table(*names, right=_NUMBERS)
    for row in cells:
        table.add_row(*(row[name] for name in names))
    hidden = snapshot["total"] - len(shown)
    where = f", this is page {page % num_pages + 1} of {num_pages}" if num_pages > 1 else ""
    table.caption = f"{hidden} more sessions{where}" if hidden > 0 else None
    table.caption_justify = "left"
    return table


def _cells(row: Json) -> dict[str, str | Text]:
    waits_for = row.get("waits_for", "")
    what = _NAMES.get(waits_for, waits_for) or row.get("tool", "")
    phase = row["phase"] + (f":{what}" if what else "")
    return {
        "SESSION": row["session"][:ID_CHARS],
        "AGENT": Text(_clipped(row.get("agent", ""), NAME_CELLS)),  # what clients chose is no markup
        "CLIENT'S ID": Text(row.get("client_session", "")),
        "FAMILY": row["family"][:6],
        "TENANT": _clipped(row.get("tenant", ""), 8),
        "PHASE": Text(phase, style=COLOURS.get(row["phase"], "")),
        "FOR": seconds(row["phase_s"]),
        "TURN": str(row["turn"]),
        "LEFT": f"{row['expected_turns']:.1f}" if "expected_turns" in row else "",
        "TOKENS": amount(row["prompt_tokens"]) if "prompt_tokens" in row else "",
        "REPLICA": _clipped(row.get("replica", ""), 14),
    }


def seconds(value: float) -> str:
    """5400 -> 1.5h."""
    if value >= 3600:
        return f"{value / 3600:.1f}h"
    return f"{value / 60:.0f}m" if value >= 600 else f"{value:.0f}s"


def _clipped(text: str, cells: int) -> str:
    """Keep the end, which says more than the beginning: gpu-rack-7/worker-12."""
    while cell_len(text) > cells:
        text = "~" + text[2:]
    return text


def _table(*names: str, right: tuple[str, ...] = ()) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), header_style=Style(bold=True, dim=True))
    for name in names:
        table.add_column(name, no_wrap=True, overflow="ellipsis", justify="right" if name in right else "left")
    return table
