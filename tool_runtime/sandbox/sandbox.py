"""A sandbox for Python code: bubblewrap's namespaces, a system-call filter and limits. It needs all three.

The code sees the interpreter, the system's libraries and an empty /tmp. It sees no network or process.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import shutil
import signal
import subprocess
import sys
from asyncio.subprocess import Process
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tool_runtime.killable import reap
from tool_runtime.sandbox import inside, seccomp

_SYSTEM = ("/usr", "/lib", "/lib32", "/lib64")
_DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom")
_NOBODY = "65534"
_CHECK_S = 20.0
_COUNT_S = 0.05
_CHECK = "import os; os.listdir('/tmp') == [] and os.getuid()"
_PLACES = (
    "import json, sys; print(json.dumps([sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix]))"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxLimits:
    """The limits of one run."""

    timeout_s: float = 10.0
    memory_bytes: int = 512 * 1024 * 1024
    """Address space of the process."""
    disk_bytes: int = 64 * 1024 * 1024
    """Size of /tmp, which lies in memory."""
    files: int = 10_000
    """Files and directories in /tmp, each of which takes about 1 KB of memory beside `disk_bytes`. They are
    counted 20 times a second, so that a run may exceed the number by those of that time."""
    output_bytes: int = 65_536


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a run."""

    output: str
    """Its output and its errors, up to the limit."""
    status: int | None
    """Exit status. None: it was stopped for its time, for the length of its output, or for its files."""
    has_too_many_files: bool = False


class Sandbox:
    """Runs code, each time in a new sandbox that ends with the run."""

    def __init__(self, limits: SandboxLimits, python: str = "", bwrap: str = "bwrap") -> None:
        """Try the sandbox. An empty `python` stands for this interpreter without its packages.

        Raises ValueError, which names what is missing, where there is no working sandbox.
        """
        self._limits = limits
        if sys.platform != "linux":
            raise ValueError(f"the sandbox needs Linux; this is {sys.platform}")
        found = shutil.which(bwrap)
        if found is None:
            raise ValueError(f"{bwrap} was not found: install bubblewrap, 0.7 or newer")
        self._filter = seccomp.program()
        self._python = python or os.path.realpath(sys.executable)
        self._before = (found, *_isolation(), *_mounts(self._python, limits))
        self._inside = Path(inside.__file__).read_text(encoding="utf-8")
        self._check()

    async def run(self, code: str) -> Ended:
        """Run code. All its processes are killed at a time-out, at too much output, and on cancellation."""
        starting = asyncio.create_task(self._start(code))
        try:
            return await self._watch(await asyncio.shield(starting))
        finally:
            await _killed(await starting)  # an interrupted start would leave a half-made sandbox

    async def _start(self, code: str) -> Process:
        with _memory_file(self._filter) as filter_fd, _memory_file(code.encode(errors="replace")) as code_fd:
            return await asyncio.create_subprocess_exec(
                *self._command(filter_fd),
                stdin=code_fd,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                pass_fds=(filter_fd,),
                env={},
                start_new_session=True,
            )

    async def _watch(self, process: Process) -> Ended:
        assert process.stdout is not None
        most = self._limits.output_bytes
        output = bytearray()
        status = None
        counting = asyncio.create_task(self._until_too_many_files(process))
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._limits.timeout_s):
                    while len(output) <= most and (chunk := await process.stdout.read(65_536)):
                        output += chunk
                    if len(output) <= most:
                        status = await process.wait()
        finally:
            counting.cancel()
        text = output[:most].decode(errors="replace")
        return Ended(text, None, True) if counting.done() else Ended(text, status)

    async def _until_too_many_files(self, process: Process) -> None:
        """Kill a run once it has too many files. The kernel bounds the bytes of a tmpfs by `--size`. For its
        inodes bubblewrap has no option."""
        while True:
            num_files = _num_files(process.pid, self._limits.disk_bytes)
            if num_files is not None and num_files > self._limits.files:
                break
            await asyncio.sleep(_COUNT_S)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)

    def _command(self, filter_fd: int) -> tuple[str, ...]:
        limits = self._limits
        arguments = map(str, (limits.memory_bytes, limits.disk_bytes, math.ceil(limits.timeout_s)))
        program = (self._python, "-I", "-c", self._inside, *arguments)
        return (*self._before, "--seccomp", str(filter_fd), "--", *program)

    def _check(self) -> None:
        with _memory_file(self._filter) as filter_fd, _memory_file(_CHECK.encode()) as code_fd:
            try:
                tried = subprocess.run(  # noqa: S603
                    self._command(filter_fd),
                    stdin=code_fd,
                    capture_output=True,
                    text=True,
                    pass_fds=(filter_fd,),
                    env={},
                    timeout=_CHECK_S,
                    check=False,
                )
            except (OSError, subprocess.TimeoutExpired) as error:
                raise ValueError(f"the sandbox does not start: {error}") from None
        if tried.stdout.strip() != _NOBODY:
            said = (tried.stderr or tried.stdout).strip() or f"it ended with status {tried.returncode}"
            raise ValueError(
                f"the sandbox does not start: {said}\n(it needs bubblewrap 0.7 or newer, and a kernel or container"
                " that lets it create user namespaces)"
            )


def _isolation() -> Iterator[str]:
    # No --new-session: `run` has started one, which has no terminal. Its process group is killed as a whole.
    yield from ("--unshare-all", "--unshare-user", "--die-with-parent", "--cap-drop", "ALL")
    yield from ("--uid", _NOBODY, "--gid", _NOBODY, "--hostname", "sandbox", "--clearenv")
    yield from ("--setenv", "HOME", "/tmp", "--setenv", "LANG", "C.UTF-8")  # noqa: S108


def _mounts(python: str, limits: SandboxLimits) -> Iterator[str]:
    """Yield mounts that are read-only, but for /tmp, whose size is limited."""
    for place in _SYSTEM:
        if os.path.islink(place):
            yield from ("--symlink", os.readlink(place), place)
        elif os.path.isdir(place):
            yield from ("--ro-bind", place, place)
    for place in _interpreter_places(python):
        if not Path(place).is_relative_to("/usr"):
            yield from ("--ro-bind", place, place)
    yield from ("--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache")
    for device in _DEVICES:
        yield from ("--dev-bind", device, device)
    yield from ("--size", str(limits.disk_bytes), "--tmpfs", "/tmp", "--chdir", "/tmp")  # noqa: S108
    yield from ("--remount-ro", "/")


def _num_files(pid: int, disk_bytes: int) -> int | None:
    """Return the number of files in the /tmp of a sandbox. None: it is not there yet, or any more."""
    try:
        [child] = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        place = f"/proc/{child}/root/tmp"
        is_ours = os.stat(place).st_dev != os.stat("/tmp").st_dev  # noqa: S108
        disk = os.statvfs(place)
    except (OSError, ValueError):
        return None
    has_size = 0 <= disk.f_blocks * disk.f_frsize - disk_bytes < disk.f_frsize
    return disk.f_files - disk.f_ffree - 1 if is_ours and has_size else None


def _interpreter_places(python: str) -> list[str]:
    """Return the directories of an interpreter and its packages."""
    try:
        done = subprocess.run(  # noqa: S603
            (python, "-I", "-c", _PLACES), capture_output=True, text=True, timeout=_CHECK_S, check=True
        )
        return sorted({str(place) for place in json.loads(done.stdout)})
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise ValueError(f"{python} is no Python interpreter that runs: {error}") from None


async def _killed(process: Process) -> None:
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # the group: during set-up its processes do not end together
    await reap(process)


@contextmanager
def _memory_file(content: bytes) -> Iterator[int]:
    """Give the body of a `with` a descriptor from which it can read `content`."""
    descriptor = os.memfd_create("turngate")
    try:
        os.write(descriptor, content)
        os.lseek(descriptor, 0, os.SEEK_SET)
        yield descriptor
    finally:
        os.close(descriptor)
