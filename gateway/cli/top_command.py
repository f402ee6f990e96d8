"""What the command line does with the live snapshot: `turngate top`."""

from __future__ import annotations

import argparse
import sys

from gateway.config import loading
from gateway.config.settings import Settings
from gateway.core.errors import ConfigError


async def top(settings: Settings, arguments: argparse.Namespace) -> int:
    """Until q is pressed; once where nobody can press it. Raises ConfigError."""
    try:
        from rich.console import Console
    except ImportError:
        raise ConfigError("turngate top draws with rich: pip install 'turngate[top]'") from None
    from gateway.cli import top as view
    from gateway.cli.live_snapshot import ask
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
