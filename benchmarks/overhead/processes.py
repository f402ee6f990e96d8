"""Processes under measurement: pinned to a core, with the CPU time and the memory of their whole tree."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

STOP_S = 10.0


@dataclass(frozen=True, slots=True)
class MeasuredProcess:
    """A process group; its tree is read from /proc."""

    process: subprocess.Popen[bytes]

    def pids(self) -> list[int]:
        pids = [self.process.pid]
        for pid in pids:
            with suppress(OSError):
                for task in Path(f"/proc/{pid}/task").iterdir():
                    pids += map(int, (task / "children").read_text().split())
        return pids

    def cpu_s(self) -> float:
        """User and system time of what runs now, to the nanosecond."""
        total_s = 0.0
        for pid in self.pids():
            with suppress(OSError):
                total_s += time.clock_gettime((~pid << 3) | 2)  # clock_getcpuclockid(3)
        return total_s

    def rss_mb(self) -> float:
        pages = 0
        for pid in self.pids():
            with suppress(OSError):
                pages += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


@contextmanager
def running(
    command: Sequence[str | Path], log: Path, core: int, env: Mapping[str, str] | None = None
) -> Iterator[MeasuredProcess]:
    """A command with its output in a file, until the end of the `with`."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(part) for part in command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(env or {})},
            start_new_session=True,
            preexec_fn=lambda: os.sched_setaffinity(0, {core}),
        )
    try:
        yield MeasuredProcess(process)
    finally:
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                process.wait(STOP_S)
