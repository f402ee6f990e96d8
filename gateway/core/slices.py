"""Work in slices: a large body is read step by step, and the event loop goes round between the steps."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from itertools import islice
from typing import Any, TypeAlias, TypeVar

from gateway.core.values import is_sparse

T = TypeVar("T")
Steps: TypeAlias = Generator[None, None, T]
"""Work that pauses where others may run, and returns its result."""

LARGE_BYTES = 256 * 1024
"""A smaller body is read in one step of a few milliseconds."""
VERY_LARGE_BYTES = 1280 * 1024
"""A body from this length on is read in slices."""
SLICE_S = 0.004
"""After it the loop goes round, at the end of the step that runs then."""


def is_large(raw: bytes) -> bool:
    """Return whether a body is read in slices, which takes twice the CPU time of one step. One step of 10 to 20 ms
    is enough for a sparse one below VERY_LARGE_BYTES."""
    return len(raw) >= LARGE_BYTES and (len(raw) >= VERY_LARGE_BYTES or not is_sparse(raw))


def finished(steps: Steps[T], step_done: Callable[[], None] = lambda: None) -> T:
    """Return the result of all steps, which run here. `step_done` is called after each but the last."""
    while True:
        try:
            next(steps)
        except StopIteration as ended:
            result: T = ended.value
            return result
        step_done()


_FREED_ITEMS = 2_048
_CONTAINERS = (dict, list)


def freed(given: dict[str, Any] | list[Any]) -> Steps[None]:
    """Free a long JSON value: at once, a million values take 40 ms. What anything else refers to stays.

    What a list or an object holds is noted before that is freed, so that it takes nothing with it.
    """
    left: list[Any] = [given]
    num = 0
    del given
    while left:
        held = left.pop()
        items: Iterator[object] = iter(held.values() if isinstance(held, dict) else held)
        num += 1
        while (some := list(islice(items, _FREED_ITEMS))) or num >= _FREED_ITEMS:
            left += [item for item in some if isinstance(item, _CONTAINERS)]
            num += len(some)
            if num >= _FREED_ITEMS:
                num = 0
                yield


class Slices:
    """Reads large bodies, one at a time in the order of their arrival, so that many hold the loop no longer than
    one."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._turnstile = asyncio.Lock()
        self._freeing: deque[Steps[None]] = deque()
        self.names: dict[str, asyncio.Future[None]] = {}
        """The latest body under each session name of which one is being read."""

    async def admit(self, name: str) -> Reading:
        """Return the reading of a body, once those that came before under its name are read. Empty: it has no
        name."""
        before = self.names.get(name)
        reading = Reading(self, name)
        if before is not None:
            try:
                await asyncio.shield(before)
            except asyncio.CancelledError:
                before.add_done_callback(lambda _: reading.leave())  # until then the next body waits, too
                raise
        return reading

    async def run(self, steps: Steps[T]) -> T:
        """Return the result of the steps. What follows is in another slice. Cancelled, they end where they are."""
        try:
            async with self._turnstile:
                while True:
                    pause_at = self._clock() + SLICE_S
                    try:
                        next(steps)
                        while self._clock() < pause_at:
                            next(steps)
                    except StopIteration as ended:
                        result: T = ended.value
                        break
                    await asyncio.sleep(0)
            await asyncio.sleep(0)
            return result
        finally:
            steps.close()

    def free(self, given: dict[str, Any] | list[Any]) -> None:
        """Free a long JSON value in slices, after those that came before. They begin when the caller has returned
        to the loop."""
        self._freeing.append(freed(given))
        if len(self._freeing) == 1:
            asyncio.get_running_loop().call_soon(self._free)

    def _free(self) -> None:
        pause_at = self._clock() + SLICE_S
        while self._freeing:
            for _ in self._freeing[0]:
                if self._clock() >= pause_at:
                    asyncio.get_running_loop().call_soon(self._free)
                    return
            self._freeing.popleft()


class Reading:
    """One large body, or one under the same session name, from its arrival to the recognition of its session."""

    __slots__ = ("_left", "_name", "slices")

    def __init__(self, slices: Slices, name: str) -> None:
        self.slices = slices
        self._name = name
        self._left = asyncio.get_running_loop().create_future()
        if name:
            slices.names[name] = self._left

    def leave(self) -> None:
        """End the reading, and admit the next body under its name; harmless if repeated."""
        if not self._left.done():
            self._left.set_result(None)
        if self.slices.names.get(self._name) is self._left:
            del self.slices.names[self._name]
