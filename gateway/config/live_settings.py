"""The one holder of what the configuration says now, and what of it each request follows to its end."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gateway.config.settings import Models, Policy, RequestLimits, Settings, Stream
from gateway.core.transport import Timeouts

PLAIN_DEADLINE_S = 590.0
"""An answer that is not streamed comes before this: SDKs give up at 600 s (facts, clients 5)."""
LINE_DEADLINE_S = 6 * 3600.0
"""Of one attempt to answer a line of a batch."""


@dataclass(frozen=True, slots=True)
class RequestSettings:
    """What one request follows from its beginning to its end, whatever is reloaded meanwhile. Made once for each
    configuration, and shared by all requests that begin under it."""

    models: Models = Models()
    limits: RequestLimits = RequestLimits()
    stream: Stream = Stream()
    max_wait_s: float = Policy().max_wait_s
    max_wait_plain_s: float = Policy().max_wait_plain_s
    timeouts: Timeouts = Timeouts()
    """Of each call to an engine."""
    plain_deadline_s: float = PLAIN_DEADLINE_S
    """An answer that is not streamed comes before this."""

    @staticmethod
    def of(settings: Settings) -> RequestSettings:
        """Of a client's request."""
        policy, times = settings.policy, settings.timeouts
        return RequestSettings(
            settings.models,
            settings.limits,
            settings.stream,
            policy.max_wait_s,
            policy.max_wait_plain_s,
            Timeouts(times.connect_s, times.first_byte_s, times.idle_s),
        )

    def for_lines(self) -> RequestSettings:
        """Of a line of a batch: without the bounds that clients' timers impose."""
        return replace(
            self,
            max_wait_plain_s=LINE_DEADLINE_S,
            timeouts=replace(self.timeouts, first_byte_s=LINE_DEADLINE_S),
            plain_deadline_s=LINE_DEADLINE_S,
        )


class LiveSettings:
    """Written by `reload` alone.

    Law: nobody keeps a copy of a value that a reload may change. Whatever serves a request reads the holder once,
    when the request begins, and hands on what it read, so that the request ends as it began.
    """

    def __init__(self, settings: Settings) -> None:
        self.become(settings)

    def become(self, settings: Settings) -> None:
        """What begins from now on follows these."""
        self.current = settings
        self._of_clients = RequestSettings.of(settings)
        self._of_lines = self._of_clients.for_lines()

    def of_clients(self) -> RequestSettings:
        """For a client's request that begins now."""
        return self._of_clients

    def of_lines(self) -> RequestSettings:
        """For a line of a batch, or one model call of its agent run, that begins now."""
        return self._of_lines
