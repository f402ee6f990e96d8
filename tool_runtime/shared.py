"""Executions that processes share: what is asked before a call that may be shared runs, and told after it."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Protocol

from tool_runtime.outcome import Outcome


class Claimed(Protocol):
    """One call in this process."""

    outcome: Outcome | None
    """Of another process; None: this one executes it."""

    def keep(self, outcome: Outcome, ttl_s: float) -> None:
        """It has been executed here. Told to those who wait for it now and, for `ttl_s`, to those who come."""
        ...


class Shared(Protocol):
    """Where processes meet. A failure of the way to it is as if nobody else was there."""

    def claimed(self, key: bytes) -> AbstractAsyncContextManager[Claimed]:
        """Entered once the outcome is known or nobody else executes the call. Who dies while executing it loses
        its claim within seconds."""
        ...
