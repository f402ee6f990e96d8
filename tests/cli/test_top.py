"""Laws of `turngate top` in a real terminal of 80 by 24: it draws, follows the keys, and leaves it as it was."""

from __future__ import annotations

import asyncio
import os
import pty
import re
import sys
import termios
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web

from tests.cli.snapshots import snapshot
from tests.deadline import DEADLINE_S

ENTERS, LEAVES = "\x1b[?1049h", "\x1b[?1049l"
"""The second screen of a terminal."""


@dataclass
class Terminal:
    """What a person sees and types; `seen` holds all that was ever written."""

    side: int
    seen: str = ""
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def read(self) -> None:
        try:
            self.seen += os.read(self.side, 65_536).decode(errors="replace")
        except OSError:  # the other side has closed
            asyncio.get_running_loop().remove_reader(self.side)
        self.changed.set()

    async def until(self, pattern: str) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not re.search(pattern, self.seen):
                self.changed.clear()
                await self.changed.wait()

    def type(self, keys: str) -> None:
        os.write(self.side, keys.encode())


@pytest.fixture
async def url() -> AsyncIterator[str]:
    """The address of a server that answers with a snapshot, as a gateway does."""

    async def live(request: web.Request) -> web.Response:
        return web.json_response(snapshot(6))

    app = web.Application()
    app.router.add_get("/v1/turngate/live", live)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


async def in_terminal(*arguments: str) -> tuple[Terminal, asyncio.subprocess.Process, int, list[Any]]:
    """The command, the inner side of its terminal, and how that was set before."""
    outer, inner = pty.openpty()
    before = termios.tcgetattr(inner)
    termios.tcsetwinsize(outer, (24, 80))
    terminal = Terminal(outer)
    asyncio.get_running_loop().add_reader(outer, terminal.read)
    command = sys.executable, "-m", "gateway", "top", *arguments
    environment = os.environ | {"TERM": "xterm-256color"}
    process = await asyncio.create_subprocess_exec(
        *command, stdin=inner, stdout=inner, stderr=inner, env=environment
    )
    return terminal, process, inner, before


async def left(terminal: Terminal, process: asyncio.subprocess.Process, inner: int) -> int:
    try:
        async with asyncio.timeout(DEADLINE_S):
            return await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
        asyncio.get_running_loop().remove_reader(terminal.side)
        os.close(inner)
        os.close(terminal.side)


async def test_top_follows_the_keys_and_leaves_the_terminal_as_it_was(url: str) -> None:
    terminal, process, inner, before = await in_terminal("--gateway", url, "--every", "0.1")
    await terminal.until("now by phase")
    assert ENTERS in terminal.seen
    assert "waiting:room" in terminal.seen
    terminal.type("s")
    await terminal.until("now by age")
    terminal.type("sq")
    await terminal.until(re.escape(LEAVES))
    assert await process.wait() == 0
    assert termios.tcgetattr(inner) == before
    await left(terminal, process, inner)


async def test_top_says_that_a_gateway_does_not_answer() -> None:
    terminal, process, inner, _ = await in_terminal("--gateway", "http://127.0.0.1:1", "--every", "0.1")
    await terminal.until("nothing answers at http://127.0.0.1:1")
    terminal.type("q")
    assert await left(terminal, process, inner) == 0


async def test_in_a_pipe_top_prints_once_and_ends(url: str) -> None:
    command = sys.executable, "-m", "gateway", "top", "--gateway", url
    process = await asyncio.create_subprocess_exec(*command, stdout=-1, stderr=-1)
    out, err = await asyncio.wait_for(process.communicate(), DEADLINE_S)
    assert (process.returncode, err) == (0, b"")
    assert b"\x1b" not in out
    assert out.count(b"d7567c") == 6
