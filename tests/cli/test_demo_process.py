"""Laws of the demo's own processes."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from urllib.parse import urlsplit

import pytest

from gateway.cli.demo_process import command
from tests.deadline import DEADLINE_S

STARTER = """
import asyncio, sys
from gateway.cli.demo_process import command

async def main():
    async with command(["engine", "--port", "0"]) as base_url:
        print(base_url, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_a_command_ends_with_its_starter_even_if_that_is_killed() -> None:
    pipe = asyncio.subprocess.PIPE
    starter = await asyncio.create_subprocess_exec(sys.executable, "-c", STARTER, stdout=pipe)
    assert starter.stdout is not None
    async with asyncio.timeout(DEADLINE_S):
        at = urlsplit((await starter.stdout.readline()).decode().strip())
        reader, writer = await asyncio.open_connection(at.hostname, at.port)
        os.kill(starter.pid, signal.SIGKILL)
        await starter.wait()
        assert await reader.read() == b""  # the engine is gone
        writer.close()


async def test_a_command_that_cannot_start_says_why() -> None:
    with pytest.raises(RuntimeError, match=r"turngate engine stopped: .*capacity_tokens"):
        async with command(["engine", "--port", "0", "--set", "embedded.capacity_tokens=none"]):
            pass
