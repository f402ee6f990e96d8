"""Executions that processes share: what is asked before a call that may be shared runs, and told after it."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from tool_runtime.outcome import Outcome


@dataclass(slots=True)
class Claimed:
    """One call in this process."""

    outcome: Outcome | None = None
    """Of another process or attempt; None: this one executes it."""
    kept: Outcome | None = None
    """It has been executed here. Told to those who wait for it now and, for `ttl_s`, to those who come."""
    ttl_s: float = 0.0


class Attempt(Protocol):
    """One attempt to give an answer. Where it is lost, with its client's connection or its process, and the client
    asks again, no call of a destructive tool is started twice: the first equal call of the next attempt gets what
    is known of the one that was started."""

    def claimed(self, key: bytes, unknown: Outcome) -> AbstractAsyncContextManager[Claimed]:
        """Entered before a call starts. `unknown`: what is known of it until it ends."""
        ...

    def ended(self, is_whole: bool) -> None:
        """The client has got the whole answer, or it is lost. Never waits."""
        ...


class Shared(Protocol):
    """Where processes meet. A failure of the way to it is as if nobody else was there."""

    def attempt(self, answer: bytes, is_retry: bool = False, lost_s: float | None = None) -> Attempt:
        """`answer`: equal when the same one is asked for again. `is_retry`: the client says that it is;
        `lost_s`: that it asked so long ago, and lost the connection over it."""
        ...

    def claimed(self, key: bytes) -> AbstractAsyncContextManager[Claimed]:
        """Entered once the outcome is known or nobody else executes the call. Who dies while executing it loses
        its claim within seconds."""
        ...
