"""How many model calls are open at once where nobody says."""

from __future__ import annotations

ENOUGH = 1024
"""More than a handful of engines run at once. Further agents wait here, where they take no memory, not there."""
_KEPT = 64
"""Open files for everything but connections."""
_PER_CALL = 3
"""A gateway in this process has two more for each: the client's other end, and the engine's."""


def default_calls() -> int:
    """As the limit on open files leaves room for, at most `ENOUGH`."""
    try:
        import resource
    except ImportError:  # not a POSIX system
        return ENOUGH // 2
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return ENOUGH
    return max(16, min(ENOUGH, (soft - _KEPT) // _PER_CALL))
