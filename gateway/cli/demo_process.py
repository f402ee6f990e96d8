"""Parts of `turngate demo`: a line of progress, and the engine and the gateway as processes of their own.

`python -m gateway.cli.demo_process ARGUMENTS` is `turngate ARGUMENTS` that ends with the process that started it.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from tempfile import TemporaryFile

from gateway.cli.main import main


class Progress:
    """One line that counts turns; on a terminal it is redrawn in place."""

    def __init__(self, title: str, total: int) -> None:
        self._title, self._total, self._count = title, total, 0
        self._started_at = time.monotonic()
        self._is_terminal = sys.stdout.isatty()

    def begin(self) -> None:
        """Show that it begins; without a terminal too, where no step shows."""
        print(self._line(), end="" if self._is_terminal else "\n", flush=True)

    def step(self) -> None:
        self._count += 1
        if self._is_terminal:
            print(f"\r{self._line()}", end="", flush=True)

    def end(self) -> None:
        print(f"\r{self._line()}" if self._is_terminal else self._line(), flush=True)

    def _line(self) -> str:
        elapsed_s = time.monotonic() - self._started_at
        return f"{self._title}: {self._count}/{self._total} turns in {elapsed_s:.0f} s"


# ---- engine and gateway run as processes of their own, as a user would run them, on free loopback ports

READY_WITHIN_S = 30.0
STOP_WITHIN_S = 5.0
_ADDRESS = re.compile(rb"(?:OPENAI_BASE_URL=http|--engine vllm)://([\w.\[\]:]+:\d+)")


@asynccontextmanager
async def command(
    arguments: Sequence[str], stop: signal.Signals = signal.SIGTERM, stop_within_s: float = STOP_WITHIN_S
) -> AsyncIterator[str]:
    """Run `turngate ARGUMENTS` for the body of the block; the value is its base URL, without `/v1`. `stop`: the
    signal at the end of the block. A caller that is killed takes the command with it."""
    pipe = asyncio.subprocess.PIPE
    with TemporaryFile() as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", __name__, *arguments, stdin=pipe, stdout=pipe, stderr=log
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
            await _stop(process, stop, stop_within_s)


async def _stop(process: asyncio.subprocess.Process, stop: signal.Signals, within_s: float) -> None:
    if process.returncode is not None:
        return
    process.send_signal(stop)
    try:
        async with asyncio.timeout(within_s):
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


def _end_with_starter() -> None:
    """End like on SIGTERM once standard input ends: its other end is open as long as the starter lives."""
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    threading.Thread(target=_end_with_starter, daemon=True).start()
    sys.exit(main())
