"""Asks a function that may take for ever, in processes that are killed when it does.

What runs inside this process can only be asked to end, and no thread, query or regular expression listens. So such
a function runs in a process of its own. One that was not killed stays for the next request: starting one takes
some 30 ms.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from tool_runtime import killable_child as child

START_S = 20.0
"""For a process to come up; the time of a request begins after that."""
IDLE_S = 60.0
"""A process that was not used for so long is ended."""
MAX_ENDING = 16
"""Processes that were killed and are still there, as where a disk hangs. Then no more are started."""
END_S = 5.0


class ProcessLost(Exception):
    """There is no answer, and no process that could give one; the text says why."""


class Killable:
    """One function. Its processes belong to the running event loop until `close`; a later request starts new ones.

    There are as many as there are requests at once: to bound those is for the caller.
    """

    def __init__(
        self, file: str, timeout_s: float, memory_bytes: int, fixed: Mapping[str, Any], *options: str
    ) -> None:
        """`file` has the function `answer`; `fixed` is a part of all its requests. `options` are the
        interpreter's."""
        self.timeout_s = timeout_s
        # Isolated: neither variables nor the current directory say what it loads.
        command = (sys.executable, "-I", *options, child.__file__)
        self._command = (*command, file, str(timeout_s), str(memory_bytes), json.dumps(fixed))
        self._idle: list[tuple[Process, asyncio.TimerHandle]] = []
        """The last one was used last."""
        self._ending: set[asyncio.Task[Any]] = set()

    def ask_now(self, request: Mapping[str, Any]) -> tuple[str, str]:
        """As `ask`, before there is an event loop. Blocks."""
        command = (*self._command, json.dumps(request))
        most_s = START_S + self.timeout_s
        try:
            done = subprocess.run(command, stdin=DEVNULL, capture_output=True, timeout=most_s, check=False)  # noqa: S603
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ProcessLost(str(error)) from None
        header, _, payload = done.stdout.partition(b"\n")
        if not header:
            said = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
            raise ProcessLost(said or f"it ended with status {done.returncode}")
        return header.decode().partition(" ")[0], payload.decode()

    async def ask(self, request: Mapping[str, Any]) -> tuple[str, str]:
        """Kind and text of the answer. Raises TimeoutError, ProcessLost. Nothing runs on when this ends."""
        line = json.dumps(request).encode() + b"\n"
        if (kept := self._taken()) is not None:
            with suppress(ProcessLost):  # it may have been killed since
                return await self._asked(kept, line)
        return await self._asked(await self._started(), line)

    async def close(self) -> None:
        """Ends the processes that are not in use, and waits for all that were ended."""
        while (process := self._taken()) is not None:
            self._end(process)
        if self._ending:
            await asyncio.wait(self._ending, timeout=END_S)

    async def _asked(self, process: Process, line: bytes) -> tuple[str, str]:
        kind = child.FULL
        try:
            async with asyncio.timeout(self.timeout_s):
                assert process.stdin is not None
                process.stdin.write(line)
                await process.stdin.drain()
                kind, text = await _reply(process)
        except (asyncio.IncompleteReadError, ConnectionError):
            raise ProcessLost("its process was killed, or ended by itself") from None
        finally:
            if kind == child.FULL:
                self._end(process)
            else:
                self._keep(process)
        if kind == child.FULL:
            raise ProcessLost("it needs more memory than it may have")
        return kind, text

    def _taken(self) -> Process | None:
        while self._idle:
            process, expiry = self._idle.pop()
            expiry.cancel()
            if process.returncode is None:
                return process
            self._end(process)  # somebody else has killed it
        return None

    def _keep(self, process: Process) -> None:
        expiry = asyncio.get_running_loop().call_later(IDLE_S, self._expire, process)
        self._idle.append((process, expiry))

    def _expire(self, process: Process) -> None:
        self._idle = [(other, expiry) for other, expiry in self._idle if other is not process]
        self._end(process)

    async def _started(self) -> Process:
        if len(self._ending) >= MAX_ENDING:
            raise ProcessLost("processes that were killed before have not ended")
        starting = asyncio.create_task(self._start())
        try:
            return await asyncio.shield(starting)  # asyncio cannot break off a start cleanly
        except asyncio.CancelledError:
            starting.add_done_callback(self._unwanted)
            self._own(starting)
            raise
        except (TimeoutError, OSError, asyncio.IncompleteReadError):
            raise ProcessLost("its process does not start") from None

    async def _start(self) -> Process:
        # A session of its own: what interrupts our terminal is not for it.
        process = await asyncio.create_subprocess_exec(
            *self._command, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, start_new_session=True
        )
        try:
            async with asyncio.timeout(START_S):
                await _reply(process)
        except BaseException:
            self._end(process)
            raise
        return process

    def _unwanted(self, starting: asyncio.Task[Process]) -> None:
        if not starting.cancelled() and starting.exception() is None:
            self._end(starting.result())

    def _end(self, process: Process) -> None:
        with suppress(ProcessLookupError):
            process.kill()
        self._own(asyncio.get_running_loop().create_task(_reaped(process)))

    def _own(self, task: asyncio.Task[Any]) -> None:
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)


async def _reply(process: Process) -> tuple[str, str]:
    """Raises IncompleteReadError."""
    assert process.stdout is not None
    header = await process.stdout.readuntil(b"\n")
    kind, _, length = header.decode().partition(" ")
    return kind, (await process.stdout.readexactly(int(length))).decode()


async def _reaped(process: Process) -> None:
    assert process.stdout is not None
    while await process.stdout.read(65_536):  # its pipe is closed when all its output was taken
        pass
    await process.wait()
