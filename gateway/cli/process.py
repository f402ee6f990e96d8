"""The process of a command: its event loop, the signals that end it, and the limits that a server lifts."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import gc
import resource
import signal
import sys
from collections.abc import Coroutine
from contextlib import suppress
from importlib import import_module
from typing import Any

LARGE_BYTES, KEPT_BYTES = 4 * 2**20, 32 * 2**20
"""Above nearly all requests, and what a few of them take together: memory that the system maps for each request
costs half a millisecond a megabyte."""
SWITCH_S = 0.0005
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of <malloc.h>


def run_loop(main: Coroutine[Any, Any, int]) -> int:
    """Run a command to its end, on uvloop where the extra `fast` is installed."""
    try:
        new_loop = import_module("uvloop").new_event_loop
    except ImportError:
        new_loop = None
    with asyncio.Runner(loop_factory=new_loop) as runner:
        return runner.run(main)


def stop_signal() -> asyncio.Event:
    """Return an event that the first SIGINT or SIGTERM sets; the next one has its default effect and ends the
    process."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()

    def on_signal() -> None:
        stop.set()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal)
    return stop


def cannot_start(error: OSError) -> int:
    """Print why a server cannot start. Return its exit status."""
    where = f": {error.filename}" if error.filename else ""
    hint = " (--port takes another, 0 any free one)" if error.errno == errno.EADDRINUSE else ""
    print(f"turngate: cannot start: {error.strerror or error}{where}{hint}", file=sys.stderr)
    return 1


# ---- limits of the system and the interpreter


def lift_file_limit() -> None:
    """Allow as many open files as the system permits: every stream takes two, and a usual shell allows 1,024."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):  # a system may refuse a limit that it states
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def switch_threads_soon() -> None:
    """Let a thread that computes give the interpreter's lock back after SWITCH_S. By default that takes 5 ms, and
    the event loop waits as long after each of its system calls."""
    sys.setswitchinterval(SWITCH_S)


def spare_collections() -> None:
    """Exempt everything made so far from garbage collection, and collect seldom. Nearly all objects of a request
    are freed without the collector, which at its defaults scans all sessions again and again: a sixth of the CPU
    time. A collection of the middle generation is a step of the loop, and as long as what is young then: 3 ms for
    20,000 objects, 25 ms for 120,000."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 1, 6_000)


def give_memory_back() -> None:
    """Return freed blocks above LARGE_BYTES, and the end of the heap above KEPT_BYTES, to the system. By default
    glibc raises both bounds with each larger block that is freed (up to 32 MiB). Later large blocks then leave
    holes in the heap, and resident memory grows with each of them. Other C libraries lack `mallopt`."""
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, LARGE_BYTES)
        mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)
