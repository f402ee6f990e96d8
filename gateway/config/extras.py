"""Which optional packages a configuration needs, told before anything is started."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec

from gateway.config.settings import Settings
from gateway.core.errors import ConfigError
from gateway.engines.base import EngineAddress


def refuse_missing(
    settings: Settings,
    addresses: Sequence[EngineAddress],
    is_installed: Callable[[str], bool] = lambda name: find_spec(name) is not None,
) -> None:
    """Raises ConfigError with one line per extra that is needed and not there."""
    missing = [
        f"{key} needs the package {package}: pip install 'turngate[{extra}]'"
        for key, package, extra in _needed(settings, addresses)
        if not is_installed(package)
    ]
    if missing:
        raise ConfigError("\n".join(missing))


def _needed(settings: Settings, addresses: Sequence[EngineAddress]) -> Iterator[tuple[str, str, str]]:
    """Key of the configuration, package, extra."""
    if settings.transport == "fast":
        yield "transport: fast", "httptools", "fast"
    if settings.cluster.redis is not None:
        yield "cluster.redis", "redis", "redis"
    if settings.batches.redis is not None:
        yield "batches.redis", "redis", "redis"
    if settings.tracing.endpoint is not None:
        yield "tracing.endpoint", "opentelemetry", "otel"
    if settings.tools.mcp:
        yield "tools.mcp", "mcp", "mcp"
    if any(address.kv_events for address in addresses):
        yield "engines: kv_events", "zmq", "kvevents"
    if any(address.kind == "bedrock" for address in addresses):
        yield "engines: bedrock://", "botocore", "bedrock"
