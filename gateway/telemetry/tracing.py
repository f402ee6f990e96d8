"""What the path says to traces. Without them every call site is one comparison with None."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Protocol

from gateway.config.loading import ConfigError
from gateway.config.tracing import Tracing as Section

if TYPE_CHECKING:
    from gateway.core.exchange import Exchange
    from gateway.core.transport import HeaderList
    from tool_runtime.types import Call, Result


class Trace(Protocol):
    """Of one request. Synchronous but for `tool`, and never fails the request that it is about."""

    id: str
    """As `traceparent` has it."""

    def asks(self, exchange: Exchange, engine: str, base_url: str, headers: HeaderList) -> HeaderList:
        """A model call goes out: its headers, with this trace's context in the place of the client's."""
        ...

    def asked(self, exchange: Exchange) -> None:
        """The model call is over; harmless when there was none."""
        ...

    async def tool(self, call: Call, running: Awaitable[Result]) -> Result:
        """The result of a tool that the gateway runs."""
        ...

    def finished(self, exchange: Exchange) -> None:
        """The request has its outcome."""
        ...


class Tracing(Protocol):
    """Of one gateway."""

    def begin(self, exchange: Exchange) -> Trace | None:
        """None: this request is not traced."""
        ...

    def close(self) -> None:
        """Send what is left. May block for some seconds."""
        ...


def of(section: Section, clock: Callable[[], float]) -> Tracing | None:
    """None: traces are off. Raises ConfigError when the extra is not installed."""
    if section.endpoint is None:
        return None
    try:
        from gateway.telemetry.tracing_otel import OtelTracing, exporting
    except ImportError:
        raise ConfigError("tracing.endpoint needs OpenTelemetry: pip install 'turngate[otel]'") from None
    return OtelTracing(exporting(section.endpoint, section.service_name, section.share), clock)
