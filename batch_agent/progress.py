"""One line on a terminal that tells how far a batch is."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from typing import TextIO

from batch_agent.results import AgentResult, Usage

_LEAST_PAUSE_S = 0.1
"""Between two lines on a terminal; elsewhere, such as in a log, `_LOG_PAUSE_S`."""
_LOG_PAUSE_S = 30.0
_LONGEST_PAUSE_S = 1.0
"""On a terminal, while nothing ends."""


class Progress:
    """Told of each result; writes to standard error."""

    def __init__(
        self, total: int, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._total = total
        self._stream = stream or sys.stderr
        self._clock = clock
        self._is_terminal = self._stream.isatty()
        self._began_at = self._shown_at = clock()
        self._num_done = self._num_failed = 0
        self._has_shown = False
        self._usage = Usage()

    def __call__(self, result: AgentResult) -> None:
        self._num_done += 1
        self._num_failed += not result.ok
        self._usage += result.usage
        pause_s = _LEAST_PAUSE_S if self._is_terminal else _LOG_PAUSE_S
        if self._clock() - self._shown_at >= pause_s:
            self._show()

    async def keep_showing(self) -> None:
        """Until it is cancelled: a terminal shows that time passes, also before the first result."""
        while self._is_terminal:
            self._show()
            await asyncio.sleep(_LONGEST_PAUSE_S)

    def tell(self, text: str) -> None:
        """A line of its own, at once."""
        start = "\r\x1b[K" if self._is_terminal and self._has_shown else ""
        print(f"{start}batch-agent: {text}", file=self._stream, flush=True)
        self._has_shown = False

    def end(self) -> None:
        """The last line stays; of a batch that never began there is none."""
        if self._num_done:
            self._show()
        if self._is_terminal and self._has_shown:
            print(file=self._stream)

    def line(self) -> str:
        passed_s = max(1e-9, self._clock() - self._began_at)
        usage, done = self._usage, self._num_done
        cached = f", {usage.cached_tokens / usage.prompt_tokens:.0%} cached" if usage.prompt_tokens else ""
        to_come = self._total - done
        left = f", about {passed_s / done * to_come:.0f} s left" if done and to_come else ""
        return (
            f"{done}/{self._total} done, {self._num_failed} failed, {passed_s:.0f} s, "
            f"{usage.completion_tokens / passed_s:.0f} tokens/s{cached}{left}"
        )

    def _show(self) -> None:
        self._shown_at, self._has_shown = self._clock(), True
        if self._is_terminal:
            print(f"\r\x1b[K{self.line()}", end="", file=self._stream, flush=True)
        else:
            print(self.line(), file=self._stream, flush=True)
