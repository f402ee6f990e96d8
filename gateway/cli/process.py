"""What serving asks of the system and the interpreter: many files, few collections, memory that is given back."""

from __future__ import annotations

import ctypes
import gc
import resource
from contextlib import suppress

LARGE_BYTES, KEPT_BYTES = 4 * 2**20, 8 * 2**20
"""Above nearly all requests: what the system gives anew for each costs half a millisecond a megabyte."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of <malloc.h>


def lift_file_limit() -> None:
    """As many open files as the system lets us: every stream takes two, and a usual shell allows 1,024."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):  # a system may not let go as far as it says
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def spare_collections() -> None:
    """What has been made so far stays; what a request makes is nearly always freed without the collector, which at
    its defaults looks at all sessions again and again: a sixth of the CPU time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 5, 1_000)


def give_memory_back() -> None:
    """Blocks above LARGE_BYTES are the system's again once they are freed, and so is the end of the heap above
    KEPT_BYTES. Left alone, glibc raises both bounds with each larger block that is freed (up to 32 MiB), and later
    giants leave holes in the heap: resident memory that grows with each of them. Other C libraries lack `mallopt`.
    """
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, LARGE_BYTES)
        mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)
