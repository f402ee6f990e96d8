"""Asks a running gateway for its live snapshot."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.segment import Segment
from rich.style import Style
from rich.table import Table
from rich.text import Text

from gateway.api.live import PATH
from gateway.cli.remote import NotTold, base_of, page
from gateway.config import loading
from gateway.config.settings import Settings
from gateway.core.errors import ConfigError
from gateway.core.fields import Json
from gateway.core.transport import Upstream

_KEYS = frozenset(("sessions", "replicas", "turns"))


async def ask(upstream: Upstream, url: str, key: str, timeout_s: float, limit: int) -> Json:
    """The snapshot, with at most `limit` sessions. `key`: empty: none is sent. Raises NotTold."""
    told = await page(upstream, url, f"{PATH}?limit={limit}", key, timeout_s)
    if not told.keys() >= _KEYS:
        raise NotTold(f"{base_of(url)} is no Turngate, or an old one")
    return told


# ---- draws a snapshot for a terminal of any size

COLOURS: Mapping[str, str] = {
    "waiting": "yellow",
    "prefill": "magenta",
    "decode": "green",
    "tool": "cyan",
    "lease": "blue",
    "idle": "bright_black",
}
_ORDER = {phase: number for number, phase in enumerate(COLOURS)}
GAUGE_CELLS = 24
ID_CHARS = 10
COLUMNS = ("SESSION", "FAMILY", "TENANT", "PHASE", "FOR", "TURN", "LEFT", "TOKENS", "REPLICA")
_NUMBERS = ("TURN", "LEFT", "TOKENS", "FOR")
_LEFT_OUT = ((70, ("FAMILY", "LEFT")), (50, ("TOKENS", "REPLICA")))
"""In a terminal with fewer columns."""
_NAMES = {"residency": "room"}
"""Of what is waited for, in the words of the head."""
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
    """One snapshot. With a `height` it fills it, and ends with the keys; `problem`: why there is no newer one."""

    def __init__(
        self,
        told: Json | None,
        url: str,
        sort: str,
        height: int | None = None,
        problem: str = "",
        page: int = 0,
    ) -> None:
        self._told = told
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
        if self._told is None:
            return
        num_replicas = len(self._told["replicas"])
        num_shown, rows = num_replicas, None
        if self._height is not None:
            room = self._height - _OTHER_LINES
            num_shown = min(num_replicas, max(1, room // 3))
            rows = max(1, room - num_shown - bool(num_shown < num_replicas) - bool(self._problem))
        yield head(self._told, self._url)
        yield replicas(self._told, num_shown)
        yield sessions(self._told, self._sort, rows, self._page, width)


def head(told: Json, url: str) -> Text:
    states, waiting = told["states"], told["waiting"]
    clock = time.strftime("%H:%M:%S", time.localtime(told["at"]))
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append(f"turngate {told['version']}", style="bold").append(f"  {url}  {clock}\n")
    text.append(f"{states['running']} running", style=COLOURS["decode"])
    text.append(f"  {states['waiting']} waiting", style=COLOURS["waiting"])
    text.append(f" ({waiting['residency']} for room, {waiting['slot']} for a slot)")
    text.append(f"  {states['idle']} between turns", style=COLOURS["tool"])
    return text.append(f"  families: {told['families']}")


def replicas(told: Json, num_shown: int) -> Table:
    table = _table("REPLICA", "RESIDENT TOKENS", "", "SLOTS", right=("SLOTS",))
    for row in told["replicas"][:num_shown]:
        used, ceiling, capacity = row["residency_tokens"], row["ceiling_tokens"], row["capacity_tokens"]
        sizes = f"{amount(used)} of {amount(ceiling)}" if ceiling else f"{amount(used)}, size unknown"
        slots = f"{row['slots_used']}/{row['slots'] or '?'}"
        state = slots if row["is_up"] else Text("DOWN", style="bold red")
        table.add_row(_clipped(row["id"], 16), gauge(used, ceiling, capacity or ceiling), sizes, state)
    if (more := len(told["replicas"]) - num_shown) > 0:
        table.add_row(f"and {more} more")
    return table


def gauge(used: int, ceiling: int | None, full: int | None) -> Text:
    """The share of the pool that residents fill; a bar at the ceiling, which they may not pass."""
    if not full or not ceiling:
        return Text("?" * 3, style="bright_black")
    filled = min(GAUGE_CELLS, round(GAUGE_CELLS * used / full))
    at = min(GAUGE_CELLS - 1, round(GAUGE_CELLS * ceiling / full))
    cells = ["#" if cell < filled else "." for cell in range(GAUGE_CELLS)]
    cells[at] = "|"
    return Text("".join(cells), style="red" if used > ceiling else "yellow" if used > 0.9 * ceiling else "green")


def sessions(told: Json, sort: str, rows_left: int | None, page: int, width: int) -> Table:
    """A page of them; after the last comes the first."""
    rows = sorted(told["sessions"], key=SORTS[sort])
    num_pages = -(-len(rows) // rows_left) if rows and rows_left else 1
    first = (page % num_pages) * (rows_left or 0)
    shown = rows[first : first + rows_left] if rows_left is not None else rows
    cells = [_cells(row) for row in shown]
    left_out = {name for least, names in _LEFT_OUT if width < least for name in names}
    if not any(row["TENANT"] for row in cells):
        left_out.add("TENANT")
    names = [name for name in COLUMNS if name not in left_out]
    table = _table(*names, right=_NUMBERS)
    for row in cells:
        table.add_row(*(row[name] for name in names))
    hidden = told["total"] - len(shown)
    where = f", this is page {page % num_pages + 1} of {num_pages}" if num_pages > 1 else ""
    table.caption = f"{hidden} more sessions{where}" if hidden > 0 else None
    table.caption_justify = "left"
    return table


def _cells(row: Json) -> dict[str, str | Text]:
    waits_for = row.get("waits_for", "")
    phase = row["phase"] + (f":{_NAMES.get(waits_for, waits_for)}" if waits_for else "")
    return {
        "SESSION": row["session"][:ID_CHARS],
        "FAMILY": row["family"][:6],
        "TENANT": _clipped(row.get("tenant", ""), 8),
        "PHASE": Text(phase, style=COLOURS.get(row["phase"], "")),
        "FOR": seconds(row["phase_s"]),
        "TURN": str(row["turn"]),
        "LEFT": f"{row['expected_turns']:.1f}" if "expected_turns" in row else "",
        "TOKENS": amount(row["prompt_tokens"]) if "prompt_tokens" in row else "",
        "REPLICA": _clipped(row.get("replica", ""), 14),
    }


def amount(tokens: float) -> str:
    """1234567 -> 1.2M: at most four characters and a letter."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if tokens >= size:
            return f"{tokens / size:.0f}{letter}" if tokens >= 100 * size else f"{tokens / size:.1f}{letter}"
    return f"{tokens:.0f}"


def seconds(value: float) -> str:
    """5400 -> 1.5h."""
    if value >= 3600:
        return f"{value / 3600:.1f}h"
    return f"{value / 60:.0f}m" if value >= 600 else f"{value:.0f}s"


def _clipped(text: str, cells: int) -> str:
    """Its end says more than its beginning: gpu-rack-7/worker-12."""
    while cell_len(text) > cells:
        text = "~" + text[2:]
    return text


def _table(*names: str, right: tuple[str, ...] = ()) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), header_style=Style(bold=True, dim=True))
    for name in names:
        table.add_column(name, no_wrap=True, overflow="ellipsis", justify="right" if name in right else "left")
    return table


# ---- `turngate top`: the fleet in a terminal, again and again, or once for a pipe

ROWS = 300
_GONE = "\x04"
"""Also what is read of a terminal that was closed."""
_QUIT = frozenset(("q", "\x03", _GONE))

Ask: TypeAlias = Callable[[], Awaitable[Json]]
"""The snapshot, freshly asked for. Raises NotTold."""
Pressed: TypeAlias = asyncio.Queue[str]


async def once(ask: Ask, url: str, sort: str, console: Console) -> int:
    """Everything, printed once; 1 when the gateway does not say."""
    try:
        console.print(Screen(await ask(), url, sort), end="")
    except NotTold as error:
        print(f"turngate: {error}", file=sys.stderr)
        return 1
    return 0


async def watch(ask: Ask, url: str, sort: str, console: Console, pressed: Pressed, interval_s: float) -> int:
    """Until q is pressed. That a gateway does not answer stands over what it said last."""
    told, problem, orders, page = None, "", list(SORTS), 0
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            try:
                told, problem = await ask(), ""
            except NotTold as error:
                problem = str(error)
            live.update(Screen(told, url, sort, console.height, problem, page), refresh=True)
            key = await _pressed_within(pressed, interval_s)
            if key in _QUIT:
                return 0
            if key == " ":
                page += 1
            if key == "s":
                page = 0
                sort = orders[(orders.index(sort) + 1) % len(orders)]


async def _pressed_within(pressed: Pressed, seconds: float) -> str:
    """Empty: nothing was pressed."""
    try:
        async with asyncio.timeout(seconds):
            return await pressed.get()
    except TimeoutError:
        return ""


@contextmanager
def keyboard() -> Iterator[Pressed]:
    """Each key as it is pressed, from a terminal on standard input; elsewhere none ever comes."""
    pressed: Pressed = asyncio.Queue()
    if not sys.stdin.isatty():
        yield pressed
        return
    import termios
    import tty

    loop, descriptor = asyncio.get_running_loop(), sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)

    def read() -> None:
        for key in os.read(descriptor, 64).decode(errors="replace") or _GONE:
            pressed.put_nowait(key)

    tty.setcbreak(descriptor)
    loop.add_reader(descriptor, read)
    try:
        yield pressed
    finally:
        loop.remove_reader(descriptor)
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


# ---- what the command line does with the live snapshot: `turngate top`


async def top(settings: Settings, arguments: argparse.Namespace) -> int:
    """Until q is pressed; once where nobody can press it. Raises ConfigError."""
    try:
        from rich.console import Console
    except ImportError:
        raise ConfigError("turngate top draws with rich: pip install 'turngate[top]'") from None
    from gateway.cli import top as view
    from gateway.cli.top import ask
    from gateway.transport.aiohttp_upstream import AiohttpUpstream

    key = key_of(settings, arguments.key)
    upstream, url, console = AiohttpUpstream(), arguments.gateway, Console()
    timeout_s = settings.probing.timeout_s
    try:
        if arguments.once or not sys.stdout.isatty():
            return await view.once(
                lambda: ask(upstream, url, key, timeout_s, view.ROWS), url, arguments.sort, console
            )
        with view.keyboard() as pressed:
            return await view.watch(
                lambda: ask(upstream, url, key, timeout_s, view.ROWS),
                url,
                arguments.sort,
                console,
                pressed,
                arguments.every,
            )
    finally:
        await upstream.close()


def key_of(settings: Settings, reference: str | None) -> str:
    """The key to show: the given one, else the configured one of the operator, else the first client's. Hashes
    cannot be shown. Raises ConfigError."""
    if reference is not None:
        return loading.secret(reference)
    known = [settings.admin.key, *(entry.key for entry in settings.keys)]
    for found in known:
        if found is not None and found.startswith(("env:", "file:")):
            return loading.secret(found)
    return ""
