"""The schema of traces."""

from __future__ import annotations

from typing import Annotated

from gateway.config.section import Section, Share, form


class Tracing(Section):
    """OpenTelemetry traces of requests, without content. Needs `turngate[otel]`."""

    endpoint: Annotated[str, form("https?://.", "http://collector:4318")] | None = None
    """OTLP/HTTP collector, such as http://collector:4318. Headers: OTEL_EXPORTER_OTLP_HEADERS. null: off."""
    service_name: str = "turngate"
    """Name of this gateway in traces."""
    share: Share = 1
    """Of the requests that bring no `traceparent`: how many are traced. One that does decides itself."""
