"""Tasks that outlive whoever started them: kept, and ended together."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

GRACE_S = 5.0
"""For tools to end after they were cancelled; a thread that runs longer is left behind."""


class Tasks:
    """Owns the tasks that it starts."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    async def close(self) -> None:
        """Cancel all of them, and once more those that did not end at the first time."""
        for timeout_s in (GRACE_S, 0.1):
            for task in self._running:
                task.cancel()
            if self._running:
                await asyncio.wait(self._running, timeout=timeout_s)
