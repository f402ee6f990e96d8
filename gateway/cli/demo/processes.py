"""Engine and gateway as their own processes, as a user would run them, on free loopback ports."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from tempfile import TemporaryFile

READY_WITHIN_S = 30.0
STOP_WITHIN_S = 5.0
_ADDRESS = re.compile(rb"(?:OPENAI_BASE_URL=http|--engine vllm)://([\w.\[\]:]+:\d+)")


@asynccontextmanager
async def command(arguments: Sequence[str]) -> AsyncIterator[str]:
    """Run `turngate ARGUMENTS` for the body of the block; the value is its base URL, without `/v1`."""
    with TemporaryFile() as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "gateway", *arguments, stdout=asyncio.subprocess.PIPE, stderr=log
        )
        try:
            async with asyncio.timeout(READY_WITHIN_S):
                base_url = await _base_url(process)
            if base_url is None:
                log.seek(0)
                said = log.read().decode(errors="replace").strip().splitlines()
                raise RuntimeError(f"turngate {arguments[0]} stopped: {said[-1] if said else 'no message'}")
            yield base_url
        finally:
            await _stop(process)


async def _stop(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    process.terminate()
    try:
        async with asyncio.timeout(STOP_WITHIN_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


async def _base_url(process: asyncio.subprocess.Process) -> str | None:
    """From the first address that the process prints: where it listens. None: it ended without one."""
    assert process.stdout is not None
    while line := await process.stdout.readline():
        found = _ADDRESS.search(line)
        if found:
            return f"http://{found[1].decode()}"
    return None
