"""What the path says to traces. Without them every call site is one comparison with None."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from gateway.config.settings import TracingSettings as Section
from gateway.core.errors import ConfigError
from gateway.exchange import Exchange, Trace


class Tracing(Protocol):
    """Of one gateway."""

    def trace(self, exchange: Exchange) -> Trace | None:
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
