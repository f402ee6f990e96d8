"""How many connections this process may have open."""

from __future__ import annotations

_KEPT = 64
"""For everything but connections."""
_PER_CALL = 3
"""A gateway in this process has two more for each: the client's other end, and the engine's."""
_UNKNOWN = 512


def most_calls() -> int:
    """Model calls at once that the limit on open files leaves room for."""
    try:
        import resource
    except ImportError:  # not a POSIX system
        return _UNKNOWN
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return 1 << 16
    return max(16, (soft - _KEPT) // _PER_CALL)
