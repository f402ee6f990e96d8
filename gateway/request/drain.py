"""Stopping without losing anybody: answers that have begun are finished, everybody else is sent away at once."""

from __future__ import annotations

import asyncio
import logging

from gateway.core.errors import Failure, Outcome, Refused

LOG = logging.getLogger(__name__)

RETRY_AFTER_S = 1.0
"""Another gateway, or the next process of this one, takes over about as soon."""


class TurnedAway(Exception):
    """A turn waited for a replica when the gateway began to stop."""


class Drain:
    """Counts the requests of clients that are under way, and says when the last of them is over."""

    def __init__(self) -> None:
        self.is_on = False
        self.num_running = 0
        self._is_idle: asyncio.Event | None = None

    def left(self, num: int) -> None:
        self.num_running -= num
        if self._is_idle is not None and not self.num_running:
            self._is_idle.set()

    async def until_idle(self, grace_s: float) -> None:
        """Returns when nothing is under way any more, or when the time is over."""
        self._is_idle = asyncio.Event()
        if self.num_running:
            LOG.info("stopping: %d requests under way may take %g s more", self.num_running, grace_s)
            try:
                async with asyncio.timeout(grace_s):
                    await self._is_idle.wait()
            except TimeoutError:  # what still runs is cancelled with its connection
                LOG.warning("stopping: %d requests are cut off, their time is over", self.num_running)


def stopping() -> Refused:
    text = "This gateway is stopping. Try again: another one, or its successor, will answer."
    failure = Failure(503, "server_error", text, code="stopping", retry_after_s=RETRY_AFTER_S)
    return Refused(Outcome.REJECTED_STOPPING, failure)
