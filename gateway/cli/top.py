"""`turngate top`: the fleet in a terminal, again and again, or once for a pipe."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

from rich.console import Console
from rich.live import Live

from gateway.cli.remote import NotTold
from gateway.cli.screen import SORTS, Screen
from gateway.core.fields import Json

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
