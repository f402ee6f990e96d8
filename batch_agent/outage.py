"""An outage of the gateway: all agents of a run wait for its end together."""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from batch_agent.connection import NOT_THERE
from batch_agent.results import AgentFailed, ConnectError, HTTPStatusError, OutageError, WorkerError
from batch_agent.spec import OUTAGE_S

LOG = logging.getLogger(__name__)

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 5.0
"""Pauses between two looks at a gateway that does not answer."""
RETURNS_PER_S = 100.0
"""Rate at which calls go out again after an outage: those of a thousand agents take ten seconds."""
LONGEST_RETURN_S = 10.0

_YEAR_S = 365 * 86_400.0

T = TypeVar("T")
Look = Callable[[], Awaitable[str | None]]
"""Returns why the gateway does not answer. None: it answers."""


class Outage:
    """Shared by all calls to one gateway, of one batch or of several that follow each other.

    Laws:
    1. A call without an answer waits while the gateway does not answer, for at most `outage_s`, and is then sent
       again. That is no retry. If the gateway answers a look, the failure is the call's own.
    2. One call looks for all that wait, and nothing else is sent. After the outage the calls go out one by one.
    3. Calls wait only for a gateway that has answered before: a wrong address is reported at once.
    4. After `outage_s` all waiting calls fail. Later calls are sent, and fail at once or end the outage.
    """

    def __init__(
        self,
        outage_s: float = OUTAGE_S,
        tell: Callable[[str], None] = LOG.warning,
        *,
        wall_clock: Callable[[], float] = time.time,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        rng: random.Random | None = None,
    ) -> None:
        """`outage_s` 0: an outage is a failure like others. `tell` reports its begin and its end to a person."""
        self.outage_s = outage_s
        self.is_known = False
        """Whether the gateway has ever answered."""
        self.num_waiting = 0
        self.text = ""
        """The report of the current outage."""
        self._tell = tell
        self._wall_clock = wall_clock
        self._sleep = sleep
        self._rng = rng or random.Random()  # noqa: S311 - spreads calls
        self._looking = asyncio.Lock()
        """The call that looks holds it."""
        self._num_looks = self._num_returning = 0
        self._has_given_up = False
        self._since: float | None = None
        """When the outage began. All times are those of the event loop's clock. None: there is no outage."""
        self._ended_at = self._seen_at = -math.inf
        """When the last outage ended, and when the last answered look was sent."""

    @property
    def is_waited_for(self) -> bool:
        return self._since is not None and _now() < self._since + self.outage_s

    async def through(self, ask: Callable[[], Awaitable[T]], look: Look, *, is_answer: bool = True) -> T:
        """Return the result of `ask`, after an outage if need be. Raises as `ask` does, and OutageError.

        `is_answer`: the result comes from the gateway.
        """
        left_s = self.outage_s
        while True:
            waits_from = _now()
            if self.is_waited_for:
                await self._was_on(look, left_s)
            else:
                try:
                    answer = await ask()
                except (AgentFailed, TimeoutError) as error:
                    waits_from = _now()
                    can_be_waited_for = self.is_known and left_s > 0 and is_no_answer(error)
                    if not can_be_waited_for or not await self._was_on(look, left_s):
                        raise
                else:
                    self.is_known |= is_answer
                    if is_answer and self._since is not None and not self.is_waited_for:
                        self._end()
                    return answer
            left_s -= _now() - waits_from

    async def _was_on(self, look: Look, left_s: float) -> bool:
        """Wait until the gateway answers. True: there was an outage until now. Raises OutageError."""
        came_at = _now()
        if not (self.num_waiting or self.is_waited_for or self._has_given_up):
            self._since = None  # no call waits any more, so whether the outage went on is unknown
        ends_at = min((came_at if self._since is None else self._since) + self.outage_s, came_at + left_s)
        self.num_waiting += 1
        try:
            async with asyncio.timeout_at(ends_at), self._looking:
                while self._seen_at < came_at:
                    await self._look(look, came_at)
        except TimeoutError:
            raise OutageError(self._given_up()) from None
        finally:
            self.num_waiting -= 1
        was_on = self._ended_at >= came_at
        if was_on:
            await self._sleep(self._rng.uniform(0, min(LONGEST_RETURN_S, self._num_returning / RETURNS_PER_S)))
        return was_on

    async def _look(self, look: Look, came_at: float) -> None:
        sent_at = _now()
        why = await look()
        if why is None:
            self._seen_at = sent_at
            if self._since is not None:
                self._end()
            return
        if self._since is None:
            self._since = came_at
            began, ends = _clock(self._wall_clock()), _clock(self._wall_clock() + min(self.outage_s, _YEAR_S))
            self.text = f"{why}; waiting for it since {began}, until {ends}"
            self._tell(self.text)
        pause_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(self._num_looks, 10))
        self._num_looks += 1
        await self._sleep(pause_s)

    def _end(self) -> None:
        assert self._since is not None
        self._ended_at = _now()
        self._tell(f"the gateway answers again, after {self._ended_at - self._since:.0f} s")
        self._since, self._num_looks, self._has_given_up, self.text = None, 0, False, ""
        self._num_returning = self.num_waiting

    def _given_up(self) -> str:
        text = f"the gateway did not answer for {self.outage_s:g} s (outage_s). {self.text}".strip()
        if self._since is not None and not self._has_given_up and not self.is_waited_for:
            self._has_given_up = True
            self._tell(text)
        return text


def _clock(at: float) -> str:
    return time.strftime("%a %H:%M:%S", time.localtime(at))


def _now() -> float:
    return asyncio.get_running_loop().time()


def is_no_answer(error: Exception) -> bool:
    """Whether the gateway may be gone. A refusal with a `Retry-After` is an answer."""
    if isinstance(error, HTTPStatusError):
        return error.status in NOT_THERE and error.retry_after_s is None
    return isinstance(error, ConnectError | WorkerError | TimeoutError)
