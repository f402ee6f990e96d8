"""Runs the engine model in real time: one task runs its iterations and wakes the requests that got tokens.

The schedule is absolute: an iteration is due at the end of the one before it, so late wake-ups do not add up. All
tokens of an iteration are distributed at once, without a task per request or per token. An idle engine sleeps.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gateway.embedded.model import EngineModel, ModelRequest, Step


class EngineStopped(Exception):
    """The engine was stopped, or failed, before the answer was complete."""


class Generation:
    """One request in the engine. The driver writes it, and the handler that waits for it reads it."""

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
        """Wait for more than `num_tokens` tokens, and return their number. Raises EngineStopped."""
        while self.num_tokens <= num_tokens and not self.was_stopped:
            self._progress.clear()
            await self._progress.wait()
        return self._checked()

    async def all(self) -> int:
        """Wait for the last token, and return their number. Raises EngineStopped."""
        await self.finished.wait()
        return self._checked()

    @property
    def queue_s(self) -> float:
        """Time in the queue before its prefill began. 0 while it waits there."""
        return 0.0 if self.admitted_at is None else self.admitted_at - self.submitted_at

    def _checked(self) -> int:
        if self.was_stopped:
            raise EngineStopped
        return self.num_tokens

    def add_tokens(self, num_tokens: int) -> None:
        self.num_tokens += num_tokens
        self._progress.set()

    def stop(self) -> None:
        self.was_stopped = True
        self._progress.set()
        self.finished.set()


class EngineDriver:
    """An engine model with the task that runs it."""

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
        """Stop at once. Requests in flight get EngineStopped. Raises the error of a model that failed."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            if not self._task.cancelled():
                self._task.result()

    def submit(self, request: ModelRequest) -> Generation:
        """Queue a request, which the caller aborts in the end. Raises NeverFits, and EngineStopped if it is not
        running."""
        if not self.is_running:
            raise EngineStopped
        self.model.submit(request)
        generation = self._live[request.id] = Generation(self._clock())
        self._has_work.set()
        return generation

    def abort(self, request_id: str) -> None:
        """Forget a request in any phase. A finished one is left as it is."""
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
                self._distribute(step)
                self.lag_s = self._clock() - due_at
        finally:
            for request_id, generation in self._live.items():
                self.model.abort(request_id)
                generation.stop()
            self._live.clear()

    def _distribute(self, step: Step) -> None:
        """Give the tokens of an iteration to the requests that are still live: one whose client has left is
        not."""
        now, live = self._clock(), self._live
        for request_id in step.admitted:
            if (generation := live.get(request_id)) and generation.admitted_at is None:
                # An iteration that is behind its schedule takes less time than the model says.
                generation.admitted_at = max(generation.submitted_at, now - step.duration_s / self._speed)
        for prefilled in step.prefilled:
            if generation := live.get(prefilled.id):
                generation.first_token_at = generation.first_token_at or now
                generation.cached_tokens = prefilled.cached_tokens
                generation.add_tokens(1)
        for request_id in step.decoded:
            if generation := live.get(request_id):
                generation.add_tokens(step.num_iterations)
        for request_id in step.finished:
            if generation := live.pop(request_id, None):
                generation.finished_at = now
                generation.finished.set()
                self._on_finished(generation)
