from __future__ import annotations

import asyncio
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.clock import Clock
from tests.clock import clock as clock
from tests.deadline import DEADLINE_S
from tests.tool_runtime.sandbox.here import in_sandbox
from tests.tool_runtime.tools.calls import called
from tool_runtime.sandbox.sandbox import Sandbox, SandboxLimits
from tool_runtime.tools.python_eval import build
from tool_runtime.types import Result, Status

TIMEOUT_S = 1_000_000 + os.getpid()
"""Of runs that can be told from all others by it."""


async def run(code: str, **settings: Any) -> Result:
    return await called(build(settings), code=code)


WAYS_OUT = {
    "the network": "import socket; socket.create_connection(('127.0.0.1', 80))",
    "names": "import socket; socket.getaddrinfo('example.com', 80)",
    "the machine's host": "import socket; socket.socket(40, socket.SOCK_STREAM)",
    "a process": "import subprocess; subprocess.run(['/usr/bin/env'])",
    "a fork": "import os; os.fork()",
    "our files": f"open({__file__!r})",
    "accounts": "open('/etc/passwd')",
    "processes": "import os; os.listdir('/proc')",
    "the system's files": "open('/usr/x', 'w')",
    "the root": "open('/x', 'w')",
    "devices": "open('/dev/x', 'w')",
    "disks": "import os; os.mknod('/tmp/disk', 0o60666, os.makedev(254, 0)); open('/tmp/disk', 'rb').read(1)",
    "root's rights": "import os; os.setuid(0)",
    "other limits": "import resource; resource.setrlimit(resource.RLIMIT_AS, (-1, -1))",
    "much memory": "x = [bytearray(10_000_000) for _ in range(100)]",
    "memory files": "import os; os.memfd_create('x')",
    "a large file": "open('/tmp/a', 'wb').write(bytes(70_000_000))",
    "large files": "for i in range(20): open(f'/tmp/{i}', 'wb').write(bytes(10_000_000))",
    "many files": "x = [open('/dev/null') for _ in range(100)]",
}


@in_sandbox
@pytest.mark.parametrize("code", WAYS_OUT.values(), ids=WAYS_OUT)
async def test_the_sandbox_lets_nothing_out(code: str) -> None:
    result = await run(code)
    assert (result.status, "Error: Traceback" in result.text) == (Status.ERROR, True), result.text


FILES = "for i in range(10**9): open(f'/tmp/{i}', 'w').close()"
DIRECTORIES = "import os\nfor i in range(10**9): os.mkdir(f'/tmp/{i}')"


@in_sandbox
@pytest.mark.parametrize("code", [FILES, DIRECTORIES])
async def test_files_without_content_are_counted(code: str) -> None:
    result = await run(code, files=500, timeout_s=60)
    assert (result.status, "[stopped for more than 500 files]" in result.text) == (Status.ERROR, True), result.text
    few = "import time\nfor i in range(400): open(f'/tmp/{i}', 'w').close()\ntime.sleep(0.2); 7"
    result = await run(few, files=500)
    assert result.text == "7\n"


@in_sandbox
@pytest.mark.parametrize(
    "more",
    [
        "a.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**22)",
        "a.sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, bytes(4))])",
        "import fcntl, os; fcntl.fcntl(os.pipe()[1], fcntl.F_SETPIPE_SZ, 2**20)",
    ],
)
async def test_no_buffer_of_the_kernel_is_larger_or_outlives_its_file(more: str) -> None:
    result = await run(f"import socket\na, b = socket.socketpair()\n{more}")
    assert (result.status, "PermissionError" in result.text) == (Status.ERROR, True), result.text


@in_sandbox
async def test_an_event_loop_runs_inside() -> None:
    code = "import asyncio\nasync def main(): return await asyncio.to_thread(sum, [3, 4])\nasyncio.run(main())"
    assert (await run(code)).text == "7\n"


@in_sandbox
async def test_nothing_of_our_environment_is_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNGATE_SECRET", "secret")
    result = await run("import os; sorted(os.environ), os.listdir('/tmp'), os.getuid(), os.getpid() < 10")
    assert result.text == "(['HOME', 'LANG', 'PWD'], [], 65534, True)\n"


@in_sandbox
async def test_forbidden_system_calls_fail() -> None:
    code = (
        "import ctypes, errno\nlibc = ctypes.CDLL(None, use_errno=True)\n"
        f"[errno.errorcode[ctypes.get_errno()] for n in {numbers()} if libc.syscall(n, 0, 0, 0, 0) < 0]"
    )
    result = await run(code)
    assert result.text == f"{['EPERM'] * (len(numbers()) - 1) + ['ENOSYS']}\n"


def numbers() -> list[int]:
    """ptrace, unshare, mount, bpf, keyctl; io_uring_setup; clone3."""
    return (
        [101, 272, 165, 321, 250, 425, 435]
        if os.uname().machine == "x86_64"
        else [117, 97, 40, 280, 219, 425, 435]
    )


@in_sandbox
async def test_code_that_prints_without_end_is_stopped_with_what_it_printed() -> None:
    result = await run("print('begun', flush=True)\nwhile True: print('x' * 1000)", output_bytes=1000)
    assert result.status is Status.ERROR
    assert result.text.startswith("Error: begun\n")
    assert "[stopped after 10 s or 1000 bytes of output]" in result.text


@in_sandbox
@pytest.mark.parametrize("code", ["while True: pass", "import time; time.sleep(600)"])
async def test_code_that_does_not_end_is_stopped_after_its_time(code: str, clock: Clock) -> None:
    box = Sandbox(SandboxLimits(timeout_s=TIMEOUT_S))
    task = asyncio.create_task(box.run(code))
    while not processes(str(TIMEOUT_S)):
        await asyncio.sleep(0.01)
    while not task.done():
        clock.advance(TIMEOUT_S)
        await asyncio.sleep(0.01)
    assert task.result().status is None
    assert await left(TIMEOUT_S) == []


@in_sandbox
async def test_a_run_whose_caller_has_left_is_killed_in_every_phase_of_it() -> None:
    box = Sandbox(SandboxLimits(timeout_s=TIMEOUT_S))
    for wait_ms in range(0, 60, 2):
        task = asyncio.create_task(box.run("import time; time.sleep(1000)"))
        await asyncio.sleep(wait_ms / 1000)
        task.cancel()
        _, hanging = await asyncio.wait([task], timeout=DEADLINE_S)
        assert not hanging
    assert await left(TIMEOUT_S) == []


async def left(timeout_s: int) -> list[str]:
    """Processes of runs with this limit, which have a while to go."""
    until = time.monotonic() + DEADLINE_S
    while (found := processes(str(timeout_s))) and time.monotonic() < until:
        await asyncio.sleep(0.01)
    return found


def processes(last_argument: str) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if path.read_bytes().rstrip(b"\0").endswith(b"\0" + last_argument.encode()):
                found.append(path.parent.name)
    return found


@in_sandbox
async def test_runs_know_nothing_of_each_other() -> None:
    box = Sandbox(SandboxLimits())
    codes = [
        f"open('/tmp/a', 'w').write('{n}')\nimport os; os.listdir('/tmp'), open('/tmp/a').read()" for n in "12"
    ]
    ended = await asyncio.gather(*map(box.run, codes))
    assert [run.output for run in ended] == ["(['a'], '1')\n", "(['a'], '2')\n"]
