"""The holder of the current configuration, and the part of it that each request follows to its end."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gateway.config.memory import MemoryBounds
from gateway.config.settings import Models, Policy, RequestLimits, Settings, Stream
from gateway.core.transport import Timeouts

PLAIN_DEADLINE_S = 590.0
"""Bound on an answer that is not streamed: SDKs give up at 600 s (facts, clients 5)."""
LINE_DEADLINE_S = 6 * 3600.0
"""Bound on one attempt to answer a line of a batch."""


@dataclass(frozen=True, slots=True)
class RequestSettings:
    """The settings that one request follows to its end, whatever is reloaded meanwhile. All requests that begin
    under one configuration share them."""

    models: Models = Models()
    limits: RequestLimits = RequestLimits()
    stream: Stream = Stream()
    max_wait_s: float = Policy().max_wait_s
    max_wait_plain_s: float = Policy().max_wait_plain_s
    timeouts: Timeouts = Timeouts()
    """Time-outs of each call to an engine."""
    plain_deadline_s: float = PLAIN_DEADLINE_S
    """Bound on an answer that is not streamed."""

    @staticmethod
    def of(settings: Settings) -> RequestSettings:
        """Return the settings of a client's request."""
        policy, times = settings.policy, settings.timeouts
        return RequestSettings(
            settings.models,
            settings.limits.model_copy(update={"incoming_bytes": MemoryBounds.of(settings).large_bodies}),
            settings.stream,
            policy.max_wait_s,
            policy.max_wait_plain_s,
            Timeouts(times.connect_s, times.first_byte_s, times.idle_s),
        )

    def for_lines(self) -> RequestSettings:
        """Return the settings of a line of a batch, without the bounds that clients' timers impose."""
        return replace(
            self,
            max_wait_plain_s=LINE_DEADLINE_S,
            timeouts=replace(self.timeouts, first_byte_s=LINE_DEADLINE_S),
            plain_deadline_s=LINE_DEADLINE_S,
        )


class LiveSettings:
    """The current settings. Only `reload` writes them.

    Law: no part of the gateway keeps a copy of a value that a reload may change. A handler reads this holder once,
    when its request begins, and passes the settings on, so that the request ends as it began.
    """

    def __init__(self, settings: Settings) -> None:
        self.become(settings)

    def become(self, settings: Settings) -> None:
        """Replace the settings for requests that begin from now on."""
        self.current = settings
        self._of_clients = RequestSettings.of(settings)
        self._of_lines = self._of_clients.for_lines()

    def of_clients(self) -> RequestSettings:
        """Return the settings of a client's request that begins now."""
        return self._of_clients

    def of_lines(self) -> RequestSettings:
        """Return the settings of a line of a batch, or of a model call of its agent run, that begins now."""
        return self._of_lines
