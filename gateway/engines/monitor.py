"""Watch all engines: what they are, how full they are, whether they live; tell it as facts about replicas."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable

from gateway.core.errors import EngineFault
from gateway.core.transport import Upstream
from gateway.engines.base import EngineAddress
from gateway.engines.breaker import USUAL, BreakerRules, BreakerState
from gateway.engines.poller import EngineClient, EnginePoller, PollerContext
from gateway.engines.poller import RunningEngine as RunningEngine
from policies.types import Fact, ReplicaId, value

LOG = logging.getLogger(__name__)

MAX_RETRY_S = 5.0
"""Longest time between two polls of an engine that is not up."""


def _uncounted(engine_name: str, fault: EngineFault) -> None:
    """For watches whose faults nobody counts."""


@value
class Target:
    """Where to send a call for a replica."""

    engine: RunningEngine
    pool: str
    """Pool to address; empty when there is one."""


class Monitor:
    """Owns the polling tasks between `start` and `stop`."""

    def __init__(
        self,
        addresses: Iterable[EngineAddress],
        upstream: Upstream,
        tell: Callable[[Fact], None],
        clock: Callable[[], float],
        *,
        interval_s: float = 1.0,
        timeout_s: float = 5.0,
        probes_hints: bool = True,
        rules: BreakerRules = USUAL,
        faulted: Callable[[str, EngineFault], None] = _uncounted,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Raises ValueError for an engine kind that does not exist."""
        self._around = PollerContext(EngineClient(upstream, timeout_s), tell, faulted, clock, rules, probes_hints)
        self._watches = {address.name: EnginePoller(address, self._around) for address in addresses}
        self.engines = [watch.engine for watch in self._watches.values()]
        """Those that are configured now."""
        self._gone: dict[str, EnginePoller] = {}
        """Taken out of the configuration; calls to them may still run."""
        self._interval_s = interval_s
        self._sleep = sleep
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def start(self) -> None:
        """Ask all engines once, side by side; then keep polling. One that does not answer is no error."""
        await asyncio.gather(*(watch.poll() for watch in self._watches.values()))
        for name in self._watches:
            self._begin(name)

    async def stop(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        self._tasks.clear()

    async def add(self, address: EngineAddress) -> None:
        """Watch one more engine. Raises ValueError for a kind that does not exist."""
        self._watches[address.name] = watch = EnginePoller(address, self._around)
        self.engines = [*self.engines, watch.engine]
        await watch.poll()
        self._begin(address.name)

    def remove(self, name: str) -> None:
        """No turn goes there any more; those that run may finish."""
        self._tasks.pop(name).cancel()
        self._gone[name] = watch = self._watches.pop(name)
        self.engines = [engine for engine in self.engines if engine is not watch.engine]
        watch.lose("it was taken out of the configuration")

    def target(self, replica_id: ReplicaId) -> Target:
        """Engine and pool of a replica that was told of, also after it was lost."""
        watch = self._of(replica_id)
        return Target(watch.engine, replica_id[len(watch.engine.name) + 1 :])

    def failed(self, engine: RunningEngine) -> None:
        """It refused a connection: its replicas leave at once. The next poll that works brings them back."""
        if (watch := self._watches.get(engine.name)) is not None and watch.engine is engine:
            watch.lose("it refused a connection")

    def worked(self, replica_id: ReplicaId) -> None:
        """A call to the replica began to be answered."""
        self._of(replica_id).worked(replica_id)

    def erred(self, replica_id: ReplicaId) -> None:
        """A call to the replica failed, and not because it is full. One that fails too often is left alone, unless
        it is the last that serves its models."""
        watch = self._of(replica_id)
        models = set(watch.engine.report.models)
        others = (
            other_id
            for other in self._watches.values()
            if other.engine.is_up and models & set(other.engine.report.models)
            for other_id in other.engine.replica_ids
            if other_id != replica_id and other.state(other_id) is BreakerState.CLOSED
        )
        watch.erred(replica_id, may_open=next(others, None) is not None)

    def state(self, replica_id: ReplicaId) -> BreakerState:
        """Of the replica's circuit breaker."""
        return self._of(replica_id).state(replica_id)

    def _of(self, replica_id: ReplicaId) -> EnginePoller:
        watch = self._find(replica_id) or self._find(replica_id.rpartition("/")[0])
        assert watch is not None, f"{replica_id} was never told of"
        return watch

    def _find(self, name: str) -> EnginePoller | None:
        return self._watches.get(name) or self._gone.get(name)

    def _begin(self, name: str) -> None:
        watch = self._watches[name]
        if not watch.engine.is_up:
            LOG.warning("engine %s is not up yet: %s", name, watch.engine.problem)
        self._tasks[name] = asyncio.create_task(self._keep_polling(watch), name=f"monitor {name}")

    async def _keep_polling(self, watch: EnginePoller) -> None:
        while True:
            await self._sleep(min(MAX_RETRY_S, self._interval_s * 2**watch.num_failed))
            await watch.poll()
