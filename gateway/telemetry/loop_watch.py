"""How late the event loop is, and which step held it: one step that takes long delays every other request.

The loop beats every BEAT_S. A beat that comes late shows the length of the step before it. A thread looks at the
loop's stack while a beat is overdue, since after it nothing tells what ran. A step that keeps the interpreter's
lock to itself is seen when it returns, in the function that called it.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType

LOG = logging.getLogger(__name__)

BEAT_S = 0.01
LOOK_S = 0.02
"""Between two looks of the thread; a beat that is overdue by as much is looked into."""
LONG_S = 0.05
"""A longer step is logged."""
QUIET_S = 1.0
"""Between two lines of the log."""
NOT_SEEN = "not seen"
_OURS = ("gateway", "policies", "tool_runtime")
_AROUND = ("gateway.cli", "gateway.__main__", __name__)
"""They are on every stack, and no step of the loop."""


class LoopWatch:
    """Watches the running loop from `start` until `stop`. `observe` takes each lag, in seconds."""

    def __init__(self, observe: Callable[[float], None]) -> None:
        self._observe = observe
        self._due_at = self._logged_at = 0.0
        self._step = NOT_SEEN
        """Which one held the loop when the thread looked last, since the last beat."""
        self._is_over = threading.Event()
        self._loop_thread = 0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._loop_thread = threading.get_ident()
        self._next_beat()
        threading.Thread(target=self._look, name="loop watch", daemon=True).start()

    def stop(self) -> None:
        self._is_over.set()
        if self._timer is not None:
            self._timer.cancel()

    def beat(self) -> None:
        """Measure how late this beat is, and log the step that held the loop for long."""
        now, step = time.monotonic(), self._step
        lag_s, self._step = max(0.0, now - self._due_at), NOT_SEEN
        self._observe(lag_s)
        if lag_s >= LONG_S and now - self._logged_at >= QUIET_S:
            self._logged_at = now
            LOG.warning("the event loop was held", extra={"fields": {"seconds": round(lag_s, 3), "step": step}})
        self._next_beat()

    def _next_beat(self) -> None:
        self._due_at = time.monotonic() + BEAT_S
        self._timer = asyncio.get_running_loop().call_later(BEAT_S, self.beat)

    def _look(self) -> None:
        while not self._is_over.wait(LOOK_S):
            # A look between the end of the step and the beat sees none: then the look before it stays.
            if time.monotonic() - self._due_at >= LOOK_S and (step := self._step_now()) != NOT_SEEN:
                self._step = step

    def _step_now(self) -> str:
        return step_of(sys._current_frames().get(self._loop_thread))


def step_of(frame: FrameType | None) -> str:
    """Return the innermost function of the gateway on a stack, as `gateway.request.payload:parse_body`."""
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if module.partition(".")[0] in _OURS and not module.startswith(_AROUND):
            return f"{module}:{frame.f_code.co_name}"
        frame = frame.f_back
    return NOT_SEEN
