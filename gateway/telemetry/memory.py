"""What a gateway keeps beyond a request, owner by owner: the bytes now, and the bound."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector, CollectorRegistry

from gateway.core.fields import Json


class KeptMemory(Collector):
    """Owners with their bounds. An owner counts its bytes by itself, as they come and go; the counts are estimates
    from above, of objects and not of what the allocator holds for them."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._owners: dict[str, tuple[int, Callable[[], int]]] = {}
        registry.register(self)

    def show_owner(self, owner: str, bound_bytes: int, used_bytes: Callable[[], int]) -> None:
        """Show an owner from now on."""
        self._owners[owner] = bound_bytes, used_bytes

    def page(self) -> Json:
        """Return the sums and each owner, for /health."""
        rows = {owner: {"bytes": used(), "limit_bytes": bound} for owner, (bound, used) in self._owners.items()}
        sums = {key: sum(row[key] for row in rows.values()) for key in ("bytes", "limit_bytes")}
        return {**sums, "owners": rows}

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """Return nothing, so that registering reads no owner."""
        return ()

    def collect(self) -> Iterator[GaugeMetricFamily]:
        used = GaugeMetricFamily("turngate_memory_bytes", "Memory kept beyond a request, about", labels=("owner",))
        limit = GaugeMetricFamily("turngate_memory_limit_bytes", "Bound of that memory", labels=("owner",))
        for owner, (bound, used_bytes) in self._owners.items():
            used.add_metric([owner], used_bytes())
            limit.add_metric([owner], bound)
        yield from (used, limit)
