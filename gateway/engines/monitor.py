"""Watches all engines: what they are, how full they are, whether they live; reported as facts about replicas."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import TYPE_CHECKING

from gateway.core.errors import ConfigError, EngineFault
from gateway.core.transport import Upstream
from gateway.engines.base import EngineAddress
from gateway.engines.breaker import USUAL, BreakerRules, BreakerState
from gateway.engines.client import EngineClient
from gateway.engines.poller import EnginePoller, PollerContext, RunningEngine
from policies.types import Fact, ReplicaId, ReplicaReported, SessionId, value

if TYPE_CHECKING:
    from gateway.engines.kv_events import KvEventListener

LOG = logging.getLogger(__name__)

MAX_RETRY_S = 5.0
"""Longest time between two polls of an engine that is not up."""


def _uncounted(engine_name: str, fault: EngineFault) -> None:
    """Takes faults where no metrics are kept."""


def _as_reported(reported: ReplicaReported, _engine: RunningEngine) -> ReplicaReported:
    """For fleets of which the gateway knows nothing better."""
    return reported


@value
class Target:
    """Where to send a call for a replica."""

    engine: RunningEngine
    pool: str
    """Pool to address; empty when there is one."""


async def _unheard() -> None:
    """Hears nothing that engines publish."""


class Monitor:
    """Owns a poller for each engine, and its task between `start` and `stop`."""

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
        start_waits: bool = True,
        rules: BreakerRules = USUAL,
        faulted: Callable[[str, EngineFault], None] = _uncounted,
        amend: Callable[[ReplicaReported, RunningEngine], ReplicaReported] = _as_reported,
        came_up: Callable[[], Awaitable[None]] = _unheard,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`came_up` is awaited after an engine came up. Raises ValueError for a kind that does not exist."""
        client = EngineClient(upstream, timeout_s)
        self._context = PollerContext(
            client, tell, faulted, clock, rules, probes_hints, start_waits, amend, came_up
        )
        self._pollers = {address.name: EnginePoller(address, self._context) for address in addresses}
        self.engines = [poller.engine for poller in self._pollers.values()]
        """Those that are configured now."""
        self._removed: dict[str, EnginePoller] = {}
        """Taken out of the configuration; calls to them may still run."""
        self._interval_s = interval_s
        self._sleep = sleep
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def start(self) -> None:
        """Poll all engines once, side by side; then keep polling. An engine that does not answer is no error."""
        await asyncio.gather(*(poller.poll() for poller in self._pollers.values()))
        for name in self._pollers:
            self._start_polling(name)

    async def stop(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        self._tasks.clear()

    async def add_engine(self, address: EngineAddress) -> None:
        """Watch one more engine. Raises ValueError for a kind that does not exist."""
        self._pollers[address.name] = poller = EnginePoller(address, self._context)
        self.engines = [*self.engines, poller.engine]
        await poller.poll()
        self._start_polling(address.name)

    def remove_engine(self, name: str) -> None:
        """Send no further turn there; those that run may finish."""
        self._tasks.pop(name).cancel()
        self._removed[name] = poller = self._pollers.pop(name)
        self.engines = [engine for engine in self.engines if engine is not poller.engine]
        poller.lose("it was taken out of the configuration")

    def target(self, replica_id: ReplicaId) -> Target:
        """Engine and pool of a replica that was reported, also after it was lost."""
        poller = self._of(replica_id)
        return Target(poller.engine, replica_id[len(poller.engine.name) + 1 :])

    def failed(self, engine: RunningEngine) -> None:
        """Take out an engine that refused a connection. The next poll that works brings its replicas back."""
        if (poller := self._pollers.get(engine.name)) is not None and poller.engine is engine:
            poller.lose("it refused a connection")

    def worked(self, replica_id: ReplicaId) -> None:
        """A call to the replica began to be answered."""
        self._of(replica_id).worked(replica_id)

    def erred(self, replica_id: ReplicaId) -> None:
        """A call to the replica failed, and not because it is full. A replica that fails too often gets no calls
        for a while, unless it is the last that serves its models."""
        poller = self._of(replica_id)
        models = set(poller.engine.report.models)
        others = (
            other_id
            for other in self._pollers.values()
            if other.engine.is_up and models & set(other.engine.report.models)
            for other_id in other.engine.replica_ids
            if other_id != replica_id and other.state(other_id) is BreakerState.CLOSED
        )
        poller.erred(replica_id, may_open=next(others, None) is not None)

    def state(self, replica_id: ReplicaId) -> BreakerState:
        """Of the replica's circuit breaker."""
        return self._of(replica_id).state(replica_id)

    def _of(self, replica_id: ReplicaId) -> EnginePoller:
        poller = self._find(replica_id) or self._find(replica_id.rpartition("/")[0])
        assert poller is not None, f"{replica_id} was never reported"
        return poller

    def _find(self, name: str) -> EnginePoller | None:
        return self._pollers.get(name) or self._removed.get(name)

    def _start_polling(self, name: str) -> None:
        poller = self._pollers[name]
        if not poller.engine.is_up:
            LOG.warning("engine %s is not up yet: %s", name, poller.engine.problem)
        self._tasks[name] = asyncio.create_task(self._keep_polling(poller), name=f"monitor {name}")

    async def _keep_polling(self, poller: EnginePoller) -> None:
        while True:
            await self._sleep(min(MAX_RETRY_S, self._interval_s * 2**poller.num_failed))
            await poller.poll()


# ---- what engines themselves publish of their KV cache, in the place of inference


class KvEventHearing:
    """Hears the engines that publish events. The packages for it are imported only when one is configured so."""

    def __init__(
        self, tell: Callable[[Fact], None], evicted: Callable[[ReplicaId, int, float | None], None]
    ) -> None:
        """`evicted`: (replica, blocks, horizon in seconds)."""
        self._tell, self._evicted = tell, evicted
        self._listener: KvEventListener | None = None

    async def follow(self, engines: Collection[RunningEngine]) -> None:
        """Hear these engines from now on, and no others. Raises ConfigError when the packages are missing that
        the configuration needs; events that an engine offers by itself need not be heard."""
        if self._listener is None and any(engine.kv_event_sources for engine in engines):
            try:
                from gateway.engines.kv_events import KvEventListener
            except ImportError as error:
                problem = f"{error}: pip install 'turngate[kvevents]'"
                if any(engine.address.kv_events for engine in engines):
                    raise ConfigError(f"engines: kv_events: {problem}") from None
                for engine in engines:
                    engine.kv_events.problem = problem
                return
            self._listener = KvEventListener(self._tell, self._evicted)
        if self._listener is not None:
            await self._listener.follow(engines)

    def forget_session(self, _tenant: str, session_id: SessionId) -> None:
        if self._listener is not None:
            self._listener.forget_session(session_id)

    async def stop(self) -> None:
        if self._listener is not None:
            await self._listener.stop()
