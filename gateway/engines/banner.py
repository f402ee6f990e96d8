"""What is told at the start of a gateway: what was found at its engines."""

from __future__ import annotations

from collections.abc import Iterator

from gateway.engines.doctor import advice_of
from gateway.engines.hosts import EMBEDDED
from gateway.engines.monitor import RunningEngine
from gateway.engines.poller import counted_pools


def about(engine: RunningEngine) -> Iterator[str]:
    if not engine.is_up:
        yield f"{engine.name}: {engine.problem}; it is used as soon as it answers"
        return
    report, version = engine.report, engine.abilities.version
    sizes = [pool.capacity_tokens for pool in report.pools]
    size = f"{sum(filter(None, sizes)):,} tokens" if all(sizes) else "unknown size"
    kind = (
        f"{engine.address.kind} {version}".rstrip() if engine.address.kind != EMBEDDED else "a model of an engine"
    )
    yield f"{engine.name}: {kind} serving {', '.join(report.models)}; {counted_pools(report)}, {size}"
    for advice in advice_of(engine):
        yield f"  {advice.problem}: {advice.remedy}"
