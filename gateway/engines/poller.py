"""One engine under watch: its pages are polled, its abilities probed, and its replicas reported as facts."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from urllib.parse import urlsplit

from gateway.core.errors import EngineFault
from gateway.core.transport import UpstreamCut, UpstreamRefused
from gateway.engines.base import (
    METRICS_PAGE,
    MODELS_PAGE,
    Abilities,
    EngineAdapter,
    EngineAddress,
    KvEventSource,
    PolledPool,
    Report,
    shown_kind,
)
from gateway.engines.breaker import Breaker, BreakerRules, BreakerState
from gateway.engines.client import PROBE_S, EngineClient, Probe
from gateway.engines.kinds import UNNAMED, adapter_of
from policies.types import CacheLost, Fact, QueueLimits, ReplicaId, ReplicaLost, ReplicaReported

LOG = logging.getLogger(__name__)

POLLS_TO_LOSE = 2
"""Failed polls in a row after which an engine counts as dead; one may be a hiccup."""
MAX_COUNTED = 10
RENTED_POLL_S = 300.0
"""Time between two polls of a rented engine that is up. Between them its calls show its health."""
_STARTED_AT = "\nprocess_start_time_seconds "
"""Metric that Prometheus' client libraries add by themselves."""


@dataclass(slots=True)
class KvEvents:
    """What was heard of an engine's KV events; written by their listener."""

    num_batches: int = 0
    problem: str = ""


@dataclass(slots=True, eq=False)
class RunningEngine:
    """One configured engine, and its state as last seen."""

    address: EngineAddress
    adapter: EngineAdapter
    """Of its address. One without a kind gets that of the kind that the engine shows as it comes up."""
    abilities: Abilities
    """Replaced when the engine comes back: read it where it is needed."""
    report: Report = field(default_factory=Report)
    is_up: bool = False
    problem: str = "not polled yet"
    """Why it is not up, for people; empty when it is."""
    changed_at: float = 0.0
    """Since when it is up or not."""
    kv_events: KvEvents = field(default_factory=KvEvents)

    @property
    def name(self) -> str:
        return self.address.name

    @property
    def is_rented(self) -> bool:
        return self.adapter.is_rented(self.address)

    def replica_id(self, pool: str) -> ReplicaId:
        return f"{self.name}/{pool}" if pool else self.name

    @property
    def kv_event_sources(self) -> tuple[KvEventSource, ...]:
        """Where its KV events are heard: as configured, else as it states them, which takes a plain address."""
        if self.address.kv_events is not None:
            return self.address.kv_events
        url = urlsplit(self.address.base_url)
        if url.scheme != "http" or url.hostname is None:
            return ()
        host = f"tcp://[{url.hostname}]" if ":" in url.hostname else f"tcp://{url.hostname}"
        ports = self.abilities.kv_event_ports
        return tuple(
            KvEventSource(f"{host}:{port}", f"{host}:{again}" if again else None) for port, again in ports
        )

    @property
    def replica_ids(self) -> list[ReplicaId]:
        return [self.replica_id(pool.name) for pool in self.report.pools]


@dataclass(frozen=True, slots=True)
class PollerContext:
    """What all pollers share."""

    client: EngineClient
    tell: Callable[[Fact], None]
    faulted: Callable[[str, EngineFault], None]
    """Gets the engine's name and its fault."""
    clock: Callable[[], float]
    rules: BreakerRules
    """Of the circuit breakers."""
    probes_hints: bool
    start_waits: bool
    """Whether hints are probed in the poll that finds the engine up, else in the next one."""
    amend: Callable[[ReplicaReported, RunningEngine], ReplicaReported]
    """Returns a report with what the gateway knows better than the engine."""
    came_up: Callable[[], Awaitable[None]]
    """Awaited after an engine came up: it may publish its KV events elsewhere now."""


class EnginePoller:
    """Polls one engine, and is the only writer of its `RunningEngine`."""

    def __init__(self, address: EngineAddress, context: PollerContext) -> None:
        """Raises ValueError for an engine kind that does not exist."""
        adapter = adapter_of(address.kind)
        self.engine = RunningEngine(address, adapter, adapter.abilities(), changed_at=context.clock())
        self.num_failed = 0
        """Polls that failed since the last one that worked, up to MAX_COUNTED."""
        self._context = context
        self._tell = context.tell
        self._clock = context.clock
        self._breakers: dict[ReplicaId, Breaker] = {}
        self._fixed_pages: dict[str, str] = {}
        self._missing: set[str] = set()
        """Pages that this engine does not have; requested again when it comes back."""
        self._had: frozenset[str] = frozenset()
        """Pages that it gave: when one of them goes, that is a fault."""
        self._due_at = 0.0
        """When the pages of a rented engine are read again."""
        self._is_unprobed = False
        """Whether it came up and its hints have not been probed since."""
        self._counted_at: dict[ReplicaId, float] = {}
        """Of the counts that were reported last."""
        self._started_at = ""
        """Start of its process, as its metrics state it. Empty: they do not."""

    def worked(self, replica_id: ReplicaId) -> None:
        """A call began to be answered."""
        breaker = self._breakers.get(replica_id)
        if breaker is not None and breaker.worked(self._clock()) and self.engine.is_up:
            LOG.info("replica %s works again", replica_id)
            self._report_replicas()

    def erred(self, replica_id: ReplicaId, may_open: bool) -> None:
        """A call failed. `may_open`: other replicas can do its work; else it gets calls as long as it is up."""
        breaker = self._breakers.setdefault(replica_id, Breaker(self._context.rules))
        if breaker.failed(self._clock(), may_open) and self.engine.is_up:
            LOG.warning("replica %s fails too often: it is left alone for a while", replica_id)
            self._context.faulted(self.engine.name, EngineFault.OPENED)
            self._tell(ReplicaLost(replica_id))

    def state(self, replica_id: ReplicaId) -> BreakerState:
        breaker = self._breakers.get(replica_id)
        return BreakerState.CLOSED if breaker is None else breaker.state(self._clock())

    async def poll(self) -> None:
        """Read its pages once, and report its replicas as facts."""
        try:
            problem = await self._poll()
        except UpstreamCut as error:
            problem = str(error)
            self._context.faulted(self.engine.name, EngineFault.POLL)
        except Exception as error:  # a page that no release had so far must not end the polling
            LOG.exception("engine %s: its pages cannot be read", self.engine.name)
            problem = f"its pages cannot be read: {error}"
        self.num_failed = min(self.num_failed + 1, MAX_COUNTED) if problem else 0
        if problem and (not self.engine.is_up or self.num_failed >= POLLS_TO_LOSE):
            self.lose(problem)

    def lose(self, problem: str) -> None:
        engine = self.engine
        engine.problem = problem
        if not engine.is_up:
            return
        engine.is_up = False
        engine.changed_at = self._clock()
        LOG.warning("engine %s is down: %s", engine.name, problem)
        for replica_id in engine.replica_ids:
            self._tell(ReplicaLost(replica_id))

    async def _poll(self) -> str:
        """Return what is wrong; empty when the engine is up."""
        engine, adapter = self.engine, self.engine.adapter
        has_come_back = not engine.is_up
        if engine.is_up and engine.is_rented and self._clock() < self._due_at:
            self._report_replicas()  # its breaker and its throttling may have changed
            return ""
        if has_come_back:
            self._missing.clear()
            self._had = frozenset()
            if engine.address.kind == UNNAMED:
                kind = shown_kind(await self._pages((MODELS_PAGE, METRICS_PAGE)))
                engine.adapter = adapter = adapter_of(kind or UNNAMED)
        pages = await self._pages((*adapter.metrics_paths, *engine.address.metrics_urls))
        if gone := self._had - pages.keys():
            LOG.debug("engine %s: no %s", engine.name, ", ".join(sorted(gone)))
            self._context.faulted(engine.name, EngineFault.PAGE)
            return ""  # it lives: the last report holds
        self._had = frozenset(adapter.metrics_paths).intersection(pages)
        self._note_restart(pages)
        if has_come_back:
            self._fixed_pages = await self._pages(adapter.probe_paths)
            engine.abilities = self._learned(self._fixed_pages | pages)
        report = adapter.parse_report(self._fixed_pages | pages)
        if not report.models:
            return f"{MODELS_PAGE} lists no model yet"
        self._take_over(report)
        self._due_at = self._clock() + RENTED_POLL_S
        if has_come_back:
            await self._context.came_up()
            self._is_unprobed = self._context.probes_hints and not engine.is_rented
        if self._is_unprobed and (self._context.start_waits or not has_come_back):
            self._is_unprobed = False
            await self._probe()
            if engine.is_up:  # once more: a reader of the fact reads the abilities too
                self._report_replicas()
        return ""

    async def _pages(self, paths: Sequence[str]) -> dict[str, str]:
        """Read those that it has. Raises UpstreamCut when a page is missing that must be there."""
        wanted = [path for path in paths if path not in self._missing]
        answers = await asyncio.gather(*(self._context.client.page(self.engine.address, path) for path in wanted))
        pages = {}
        for path, (status, text) in zip(wanted, answers, strict=True):
            if status == 200:
                pages[path] = text
            elif path == MODELS_PAGE:
                raise UpstreamCut(f"GET {path} answered {status}" if status else text)
            elif status in (404, 405, 501) and path not in self._had:
                self._missing.add(path)
        return pages

    def _learned(self, pages: Mapping[str, str]) -> Abilities:
        """Abilities from its pages; fields that this version refused before stay refused."""
        adapter, before = self.engine.adapter, self.engine.abilities
        abilities = adapter.abilities()
        defaults = frozenset(abilities.refused_fields)
        adapter.learn(pages, abilities)
        if abilities.version == before.version:
            abilities.refused_fields |= before.refused_fields - defaults
        return abilities

    def _take_over(self, report: Report) -> None:
        """Make `report` the state of the engine, and report its replicas."""
        engine = self.engine
        engine.abilities.num_pools = len(report.pools)
        if len(report.pools) > 1 and not engine.abilities.can_address_pools:
            report = replace(report, pools=(_pooled(report.pools),))
        known = set(engine.replica_ids) if engine.is_up else set()
        if engine.is_up and report.models != engine.report.models:
            LOG.warning("engine %s serves %s now", engine.name, ", ".join(report.models))
            self._context.faulted(engine.name, EngineFault.MODELS)
        engine.report = report
        if not engine.is_up:
            engine.is_up, engine.problem, engine.changed_at = True, "", self._clock()
            LOG.info("engine %s is up: %s, %s", engine.name, ", ".join(report.models), counted_pools(report))
        for replica_id in sorted(known.difference(engine.replica_ids)):
            self._tell(ReplicaLost(replica_id))
        self._report_replicas()

    def _report_replicas(self) -> None:
        engine = self.engine
        models = frozenset(engine.report.models)
        for pool in engine.report.pools:
            replica_id = engine.replica_id(pool.name)
            if (state := self.state(replica_id)) is not BreakerState.OPEN:
                is_new = pool.counted_at is None or pool.counted_at != self._counted_at.get(replica_id)
                if pool.counted_at is not None:
                    self._counted_at[replica_id] = pool.counted_at
                reported = ReplicaReported(
                    replica_id,
                    models,
                    pool.capacity_tokens,
                    pool.slots,
                    pool.waiting if is_new else None,
                    engine.abilities.tokens_per_char,
                    running=pool.running if is_new else None,
                    is_on_trial=state is BreakerState.HALF_OPEN,
                    limits=pool.limits,
                )
                self._tell(self._context.amend(reported, engine))

    def _note_restart(self, pages: Mapping[str, str]) -> None:
        """Report the cache as lost when another process answers than at the last poll."""
        starts = (f"\n{page}".partition(_STARTED_AT)[2].partition("\n")[0] for page in pages.values())
        started_at = next(filter(None, starts), "")
        before, self._started_at = self._started_at, started_at
        if self.engine.is_up and before and started_at and started_at != before:
            LOG.warning("engine %s was restarted: its cache is empty", self.engine.name)
            self._context.faulted(self.engine.name, EngineFault.RESTARTED)
            for replica_id in self.engine.replica_ids:
                self._tell(CacheLost(replica_id, None))

    async def _probe(self) -> None:
        engine = self.engine
        try:
            async with asyncio.timeout(PROBE_S):
                client = self._context.client
                await Probe(client, engine.address, engine.adapter, engine.abilities, engine.report).run()
        except (TimeoutError, UpstreamRefused, UpstreamCut) as error:
            LOG.warning("engine %s: hints not probed: %s", engine.name, error or "it was too slow")


def _pooled(pools: Sequence[PolledPool]) -> PolledPool:
    """Pools that cannot be addressed, as one. A sum is known where each pool states its part."""

    def total(values: list[int | None]) -> int | None:
        known = [value for value in values if value is not None]
        return sum(known) if len(known) == len(values) else None

    return PolledPool(
        "",
        total([pool.capacity_tokens for pool in pools]),
        pools[0].block_tokens,
        total([pool.slots for pool in pools]),
        total([pool.running for pool in pools]),
        total([pool.waiting for pool in pools]),
        QueueLimits(
            total([pool.limits.calls for pool in pools]),
            total([pool.limits.waiting for pool in pools]),
            total([pool.limits.prompt_tokens for pool in pools]),
            total([pool.limits.prefill_tokens for pool in pools]),
            is_full=all(pool.limits.is_full for pool in pools),
        ),
    )


def counted_pools(report: Report) -> str:
    """The number of pools, for people."""
    return "1 KV pool" if len(report.pools) == 1 else f"{len(report.pools)} KV pools"
