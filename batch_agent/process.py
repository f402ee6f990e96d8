"""Runs a command in a process group of its own, and ends the whole group with it."""

from __future__ import annotations

import asyncio
import os
import signal
from asyncio.subprocess import PIPE, SubprocessStreamProtocol
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from batch_agent.results import WorkerError

_LINE_BYTES = 64 << 20
"""A longer line of output ends the run. An event may hold a whole file, but not as much."""
_KEPT_LINES = 20
_GRACE_S = 2.0
"""Time for a command to end after a signal, and for the rest of its output after its end."""


class _Process(SubprocessStreamProtocol):
    """Notices the exit itself: asyncio's `wait` returns only when no child has the output open any more."""

    def __init__(self) -> None:
        super().__init__(limit=_LINE_BYTES, loop=asyncio.get_running_loop())
        self.has_exited = asyncio.Event()

    def process_exited(self) -> None:
        super().process_exited()
        self.has_exited.set()


async def run(
    command: Sequence[str], stdin: bytes, cwd: Path, env: Mapping[str, str], on_line: Callable[[bytes], None]
) -> None:
    """Run a command to its end, and give `on_line` each line of its standard output.

    The whole process group ends with the command, or when this is cancelled. Raises WorkerError for an exit status
    other than 0, with the end of the standard error. Raises also as `on_line` does.
    """
    try:
        transport, process = await asyncio.get_running_loop().subprocess_exec(
            _Process, *command, cwd=cwd, env=env, stdin=PIPE, stdout=PIPE, stderr=PIPE, start_new_session=True
        )
    except OSError as error:
        raise WorkerError(f"{command[0]} cannot be started: {error.strerror}") from None
    last_lines: deque[bytes] = deque(maxlen=_KEPT_LINES)
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(_feed(process, stdin))
            readers = [
                group.create_task(_read(process.stdout, on_line)),
                group.create_task(_read(process.stderr, last_lines.append)),
            ]
            await process.has_exited.wait()
            _signal(transport, signal.SIGKILL)  # children that are left would hold the output open
            _, late = await asyncio.wait(readers, timeout=_GRACE_S)
            for reader in late:
                reader.cancel()
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None
    finally:
        await _end(transport, process)
    if (status := transport.get_returncode()) != 0:
        said = b"".join(last_lines).decode(errors="replace").strip()
        raise WorkerError(f"{command[0]} ended with exit status {status}: {said[-1000:]}")


async def _feed(process: _Process, data: bytes) -> None:
    assert process.stdin is not None
    with suppress(BrokenPipeError, ConnectionResetError):
        process.stdin.write(data)
        await process.stdin.drain()
    process.stdin.close()


async def _read(stream: asyncio.StreamReader | None, on_line: Callable[[bytes], None]) -> None:
    assert stream is not None
    while True:
        try:
            line = await stream.readline()
        except ValueError:
            raise WorkerError(f"the program wrote a line of more than {_LINE_BYTES} bytes") from None
        if not line:
            return
        on_line(line)


async def _end(transport: asyncio.SubprocessTransport, process: _Process) -> None:
    """Ask the group to end, then kill it."""
    if not process.has_exited.is_set():
        _signal(transport, signal.SIGTERM)
        with suppress(TimeoutError):
            async with asyncio.timeout(_GRACE_S):
                await process.has_exited.wait()
    _signal(transport, signal.SIGKILL)
    await process.has_exited.wait()
    transport.close()


def _signal(transport: asyncio.SubprocessTransport, number: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(transport.get_pid(), number)
