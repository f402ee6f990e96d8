"""Real time for the engine model: one task runs its iterations and wakes the requests that they gave tokens to.

The schedule is absolute: an iteration is due where the previous one ended, so late wake-ups do not add up. All
tokens of an iteration are handed out at once, without a task per request or per token. An idle engine sleeps.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gateway.embedded.model import EngineModel, ModelRequest, Step


class EngineStopped(Exception):
    """The engine was stopped, or failed, before the answer was complete."""


class Generation:
    """One request in the engine; written by the driver, read by the one handler that waits for it."""

    __slots__ = (
        "_progress",
        "admitted_at",
        "cached_tokens",
        "finished",
        "finished_at",
        "first_token_at",
        "num_tokens",
        "submitted_at",
        "was_stopped",
    )

    def __init__(self, submitted_at: float) -> None:
        self.num_tokens = 0
        self.cached_tokens = 0
        self.submitted_at = submitted_at
        self.admitted_at: float | None = None
        self.first_token_at: float | None = None
        self.finished_at: float | None = None
        self.finished = asyncio.Event()
        self.was_stopped = False
        self._progress = asyncio.Event()

    async def more_than(self, num_tokens: int) -> int:
        """Wait for further tokens; returns how many there are now. Raises EngineStopped."""
        while self.num_tokens <= num_tokens and not self.was_stopped:
            self._progress.clear()
            await self._progress.wait()
        return self._checked()

    async def all(self) -> int:
        """Wait for the last token; returns how many there are. Raises EngineStopped."""
        await self.finished.wait()
        return self._checked()

    @property
    def queue_s(self) -> float:
        """Time in the waiting queue before its prefill began; 0 while it is there."""
        return 0.0 if self.admitted_at is None else self.admitted_at - self.submitted_at

    def _checked(self) -> int:
        if self.was_stopped:
            raise EngineStopped
        return self.num_tokens

    def gave(self, num_tokens: int) -> None:
        self.num_tokens += num_tokens
        self._progress.set()

    def stop(self) -> None:
        self.was_stopped = True
        self._progress.set()
        self.finished.set()


class EngineDriver:
    def __init__(
        self,
        model: EngineModel,
        speed: float,
        clock: Callable[[], float],
        on_finished: Callable[[Generation], None] = lambda _: None,
    ) -> None:
        self.model = model
        self.lag_s = 0.0
        """How far the last iteration ended behind its schedule."""
        self._speed = speed
        self._clock = clock
        self._on_finished = on_finished
        self._live: dict[str, Generation] = {}
        self._has_work = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def is_running(self) -> bool:
        return self._task is not None and not self._task.done()

    def start(self) -> None:
        """Needs a running loop."""
        self._task = asyncio.create_task(self._run(), name="embedded engine")

    async def stop(self) -> None:
        """Stop at once; requests in flight get EngineStopped. Raises what the model failed with, if it did."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            if not self._task.cancelled():
                self._task.result()

    def submit(self, request: ModelRequest) -> Generation:
        """Raises NeverFits, or EngineStopped when it does not run. Whoever submits also aborts."""
        if not self.is_running:
            raise EngineStopped
        self.model.submit(request)
        generation = self._live[request.id] = Generation(self._clock())
        self._has_work.set()
        return generation

    def abort(self, request_id: str) -> None:
        """Forget a request in any phase; nothing happens when it has finished."""
        if self._live.pop(request_id, None) is not None:
            self.model.abort(request_id)

    async def _run(self) -> None:
        due_at = self._clock()
        try:
            while True:
                step = self.model.step()
                if step is None:
                    self._has_work.clear()
                    await self._has_work.wait()
                    due_at = self._clock()
                    continue
                due_at += step.duration_s / self._speed
                await asyncio.sleep(max(0.0, due_at - self._clock()))
                self._hand_out(step)
                self.lag_s = self._clock() - due_at
        finally:
            for request_id, generation in self._live.items():
                self.model.abort(request_id)
                generation.stop()
            self._live.clear()

    def _hand_out(self, step: Step) -> None:
        """Tell the requests that are still here; one whose client left meanwhile is gone from `_live`."""
        now, live = self._clock(), self._live
        for request_id in step.admitted:
            if (generation := live.get(request_id)) and generation.admitted_at is None:
                generation.admitted_at = now - step.duration_s / self._speed
        for prefilled in step.prefilled:
            if generation := live.get(prefilled.id):
                generation.first_token_at = generation.first_token_at or now
                generation.cached_tokens = prefilled.cached_tokens
                generation.gave(1)
        for request_id in step.decoded:
            if generation := live.get(request_id):
                generation.gave(step.num_iterations)
        for request_id in step.finished:
            if generation := live.pop(request_id, None):
                generation.finished_at = now
                generation.finished.set()
                self._on_finished(generation)
