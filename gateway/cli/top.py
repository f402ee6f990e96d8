"""`turngate top`: the fleet in a terminal, refreshed, or printed once for a pipe."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, TypeAlias

from gateway.cli import process, remote
from gateway.cli.remote import NoPage
from gateway.config import loading
from gateway.config.settings import Settings
from gateway.core.errors import ConfigError
from gateway.core.fields import Json
from gateway.core.transport import Upstream
from gateway.transport.aiohttp_upstream import AiohttpUpstream

if TYPE_CHECKING:
    from rich.console import Console

ROWS = 300
"""Sessions that are asked for; a screen shows the first of them by its order."""
ORDERS = ("phase", "age", "turn", "tokens", "family")
_KEYS = frozenset(("sessions", "replicas", "turns"))
_GONE = "\x04"
"""A terminal that was closed reads as this key, too."""
_QUIT = frozenset(("q", "\x03", _GONE))

Ask: TypeAlias = Callable[[], Awaitable[Json]]
"""Asks for a fresh snapshot. Raises NoPage."""
Pressed: TypeAlias = asyncio.Queue[str]


def add_flags(parser: argparse.ArgumentParser) -> None:
    remote.add_gateway_flags(parser)
    parser.add_argument("--once", action="store_true", help="print the snapshot once and exit")
    parser.add_argument(
        "--sort", choices=ORDERS, default="phase", help="order the sessions by this (default: %(default)s)"
    )
    parser.add_argument(
        "--every",
        type=float,
        default=1.0,
        metavar="SECONDS",
        help="refresh at this interval (default: %(default)s)",
    )


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    return process.run_loop(top(settings, arguments))


async def top(settings: Settings, arguments: argparse.Namespace) -> int:
    """Watch until q is pressed; without a terminal, print once. Raises ConfigError."""
    try:
        from rich.console import Console
    except ImportError:
        raise ConfigError("turngate top draws with rich: pip install 'turngate[top]'") from None
    key, url, console = key_of(settings, arguments.key), arguments.gateway, Console()
    async with _asking(url, key, settings.probing.timeout_s) as ask:
        if arguments.once or not sys.stdout.isatty():
            return await once(ask, url, arguments.sort, console)
        with keyboard() as pressed:
            return await watch(ask, url, arguments.sort, console, pressed, arguments.every)


@asynccontextmanager
async def _asking(url: str, key: str, timeout_s: float) -> AsyncIterator[Ask]:
    upstream = AiohttpUpstream()
    try:
        yield lambda: read_snapshot(upstream, url, key, timeout_s, ROWS)
    finally:
        await upstream.close()


async def read_snapshot(upstream: Upstream, url: str, key: str, timeout_s: float, limit: int) -> Json:
    """Return the live snapshot, with at most `limit` sessions. An empty `key` is not sent. Raises NoPage."""
    snapshot = await remote.page(upstream, url, f"/v1/turngate/live?limit={limit}", key, timeout_s)
    if not snapshot.keys() >= _KEYS:
        raise NoPage(f"{remote.base_of(url)} is no Turngate, or an old one")
    return snapshot


def key_of(settings: Settings, reference: str | None) -> str:
    """Return the key to show: the given one, else the configured one of the operator, else the first client's.
    Hashes cannot be shown. Raises ConfigError."""
    if reference is not None:
        return remote.given_key(reference)
    for configured in (settings.admin.key, *(entry.key for entry in settings.keys)):
        if configured is not None and configured.startswith(("env:", "file:")):
            return loading.secret(configured)
    return ""


async def once(ask: Ask, url: str, sort: str, console: Console) -> int:
    """Print everything once; 1 when the gateway gives no snapshot."""
    from gateway.cli.screen import Screen

    try:
        console.print(Screen(await ask(), url, sort), end="")
    except NoPage as error:
        print(f"turngate: {error}", file=sys.stderr)
        return 1
    return 0


async def watch(ask: Ask, url: str, sort: str, console: Console, pressed: Pressed, interval_s: float) -> int:
    """Draw until q is pressed. While the gateway does not answer, its last snapshot stays below the problem."""
    from rich.live import Live

    from gateway.cli.screen import Screen

    snapshot, problem, page = None, "", 0
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            try:
                snapshot, problem = await ask(), ""
            except NoPage as error:
                problem = str(error)
            live.update(Screen(snapshot, url, sort, console.height, problem, page), refresh=True)
            key = await _pressed_within(pressed, interval_s)
            if key in _QUIT:
                return 0
            if key == " ":
                page += 1
            if key == "s":
                page = 0
                sort = ORDERS[(ORDERS.index(sort) + 1) % len(ORDERS)]


async def _pressed_within(pressed: Pressed, seconds: float) -> str:
    """Return the key, or an empty text when none was pressed."""
    try:
        async with asyncio.timeout(seconds):
            return await pressed.get()
    except TimeoutError:
        return ""


@contextmanager
def keyboard() -> Iterator[Pressed]:
    """Put each key into a queue as it is pressed. Where standard input is no terminal, none ever comes."""
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
