"""Calls a function that may never end, in a process that is killed when its time is over.

Code in this process can only be asked to end, and a thread, a query or a regular expression does not listen. So
such a function runs in a process of its own. A process that was not killed serves the next request, since the
start of one takes some 30 ms.
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
"""Longest start of a process. The time of a request begins after it."""
IDLE_S = 60.0
"""A process ends after so long without a request."""
MAX_ENDING = 16
"""No process is started while so many killed ones still exist, as where a disk hangs."""
END_S = 5.0


class ProcessLost(Exception):
    """The process ended without an answer, or could not be started. The text says why."""


class Killable:
    """One function and its processes, which belong to the running event loop until `close`.

    A request after `close` starts new ones. There are as many as concurrent requests, which the caller bounds.
    """

    def __init__(
        self, file: str, timeout_s: float, memory_bytes: int, fixed: Mapping[str, Any], *options: str
    ) -> None:
        """`file` has the function `answer`, `fixed` is a part of all requests, `options` go to the interpreter."""
        self.timeout_s = timeout_s
        # Isolated: neither the environment nor the current directory changes which modules it loads.
        command = (sys.executable, "-I", *options, child.__file__)
        self._command = (*command, file, str(timeout_s), str(memory_bytes), json.dumps(fixed))
        self._idle: list[tuple[Process, asyncio.TimerHandle]] = []
        """In the order of their last use."""
        self._ending: set[asyncio.Task[Any]] = set()

    def ask_now(self, request: Mapping[str, Any]) -> tuple[str, str]:
        """Block until there is an answer, as `ask`, before there is an event loop."""
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
        """Return kind and text of the answer. Raises TimeoutError, ProcessLost. No work goes on after this."""
        line = json.dumps(request).encode() + b"\n"
        if (kept := self._idle_process()) is not None:
            with suppress(ProcessLost):  # it may have been killed since its last use
                return await self._ask(kept, line)
        return await self._ask(await self._started(), line)

    async def close(self) -> None:
        """End the idle processes, and wait for all that were killed."""
        while (process := self._idle_process()) is not None:
            self._end(process)
        if self._ending:
            await asyncio.wait(self._ending, timeout=END_S)

    async def _ask(self, process: Process, line: bytes) -> tuple[str, str]:
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

    def _idle_process(self) -> Process | None:
        while self._idle:
            process, expiry = self._idle.pop()
            expiry.cancel()
            if process.returncode is None:
                return process
            self._end(process)  # it was killed from outside
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
            return await asyncio.shield(starting)  # asyncio cannot interrupt a start cleanly
        except asyncio.CancelledError:
            starting.add_done_callback(self._unwanted)
            self._keep_until_done(starting)
            raise
        except (TimeoutError, OSError, asyncio.IncompleteReadError):
            raise ProcessLost("its process does not start") from None

    async def _start(self) -> Process:
        # A session of its own: an interrupt from the terminal does not reach it.
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
        self._keep_until_done(asyncio.get_running_loop().create_task(reap(process)))

    def _keep_until_done(self, task: asyncio.Task[Any]) -> None:
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)


async def _reply(process: Process) -> tuple[str, str]:
    """Raises IncompleteReadError."""
    assert process.stdout is not None
    header = await process.stdout.readuntil(b"\n")
    kind, _, length = header.decode().partition(" ")
    return kind, (await process.stdout.readexactly(int(length))).decode()


async def reap(process: Process) -> None:
    """Wait for the end of a killed process."""
    assert process.stdout is not None
    while await process.stdout.read(65_536):  # its pipe is closed once all its output is read
        pass
    await process.wait()
