"""Watch engines: what they are, how full they are, whether they live; tell it as facts about replicas.

Each engine has one task. Between two awaits of it, `failed` is the only other writer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gateway.asking import PROBE_S, Asking
from gateway.engines import named
from gateway.engines.base import Abilities, Engine, EngineAddress, Pool, Report
from gateway.probes import probe
from gateway.transport import HeaderList, Upstream, UpstreamCut, UpstreamRefused
from policies.types import Fact, ReplicaId, ReplicaLost, ReplicaReported

LOG = logging.getLogger(__name__)

UP_PAGE = "/v1/models"
"""The page that decides: every kind has it, and an engine that lists no model yet is not ready."""
POLLS_TO_LOSE = 2
"""Failed polls in a row after which an engine counts as dead; one may be a hiccup."""
MAX_RETRY_S = 5.0
"""Longest time between two polls of an engine that is not up."""
MAX_COUNTED = 10


@dataclass(slots=True)
class KvEvents:
    """What was heard of an engine's KV events; written by their listener."""

    num_batches: int = 0
    problem: str = ""


@dataclass(slots=True, eq=False)
class RunningEngine:
    """One configured engine and what is known of it now."""

    address: EngineAddress
    engine: Engine
    abilities: Abilities
    """Replaced when the engine comes back: read it where it is needed."""
    report: Report = field(default_factory=Report)
    is_up: bool = False
    problem: str = "not asked yet"
    """Why it is not up, for people; empty when it is."""
    changed_at: float = 0.0
    """Since when it is up or not."""
    kv_events: KvEvents = field(default_factory=KvEvents)

    @property
    def name(self) -> str:
        return self.address.name

    def replica_id(self, pool: str) -> ReplicaId:
        return f"{self.name}/{pool}" if pool else self.name

    @property
    def replica_ids(self) -> list[ReplicaId]:
        return [self.replica_id(pool.name) for pool in self.report.pools]


@dataclass(frozen=True, slots=True)
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
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Raises ValueError for an engine kind that does not exist."""
        ask = Asking(upstream, timeout_s)
        self._watches = [_Watch(address, ask, tell, clock, probes_hints) for address in addresses]
        self._by_name = {watch.engine.name: watch for watch in self._watches}
        self._interval_s = interval_s
        self._sleep = sleep
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def engines(self) -> list[RunningEngine]:
        return [watch.engine for watch in self._watches]

    async def start(self) -> None:
        """Ask all engines once, side by side; then keep polling. One that does not answer is no error."""
        await asyncio.gather(*(watch.poll() for watch in self._watches))
        for watch in self._watches:
            engine = watch.engine
            if not engine.is_up:
                LOG.warning("engine %s is not up yet: %s", engine.name, engine.problem)
            self._tasks.append(asyncio.create_task(self._keep_polling(watch), name=f"monitor {engine.name}"))

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()

    def target(self, replica_id: ReplicaId) -> Target:
        """Engine and pool of a replica that was told of, also after it was lost."""
        if replica_id in self._by_name:
            return Target(self._by_name[replica_id].engine, "")
        name, _, pool = replica_id.rpartition("/")
        return Target(self._by_name[name].engine, pool)

    def failed(self, engine: RunningEngine) -> None:
        """It refused a connection: its replicas leave at once. The next poll that works brings them back."""
        self._by_name[engine.name].lose("it refused a connection")

    async def _keep_polling(self, watch: _Watch) -> None:
        while True:
            await self._sleep(min(MAX_RETRY_S, self._interval_s * 2**watch.num_failed))
            await watch.poll()


class _Watch:
    """Polls one engine, and is the only writer of what is known of it."""

    def __init__(
        self,
        address: EngineAddress,
        ask: Asking,
        tell: Callable[[Fact], None],
        clock: Callable[[], float],
        probes_hints: bool,
    ) -> None:
        kind = named(address.kind)
        self.engine = RunningEngine(address, kind, kind.abilities(), changed_at=clock())
        self.num_failed = 0
        """Polls that failed since the last one that worked; not counted on for ever."""
        self._ask = ask
        self._tell = tell
        self._clock = clock
        self._probes_hints = probes_hints
        self._fixed_pages: dict[str, str] = {}
        self._missing: set[str] = set()
        """Pages that this engine does not have; asked for again when it comes back."""
        self._had: frozenset[str] = frozenset()
        """Pages that the last poll gave: one of them less is a hiccup, not another kind of engine."""

    async def poll(self) -> None:
        """Ask for its pages once; what they say is told."""
        try:
            problem = await self._poll()
        except UpstreamCut as error:
            problem = str(error)
        except Exception as error:  # a page that no release had so far must not end the watch
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
        """Returns what is wrong; empty when the engine is up."""
        engine, kind = self.engine, self.engine.engine
        has_come_back = not engine.is_up
        if has_come_back:
            self._missing.clear()
            self._had = frozenset()
        pages = await self._pages((*kind.metrics_paths, *engine.address.metrics_urls))
        self._had = frozenset(kind.metrics_paths) & pages.keys()
        if has_come_back:
            self._fixed_pages = await self._pages(kind.probe_paths)
            engine.abilities = self._learned(self._fixed_pages | pages)
        report = kind.parse_report(self._fixed_pages | pages)
        if not report.models:
            return f"{UP_PAGE} lists no model yet"
        self._report(report)
        if has_come_back and self._probes_hints:
            await self._probe()
            if engine.is_up:  # told again: who hears of a replica reads its engine's abilities
                self._report(report)
        return ""

    async def _pages(self, paths: Sequence[str]) -> dict[str, str]:
        """Those that it has. Raises UpstreamCut when one is missing that must be there."""
        wanted = [path for path in paths if path not in self._missing]
        answers = await asyncio.gather(*(self._ask.page(self.engine.address, path) for path in wanted))
        pages = {}
        for path, (status, text) in zip(wanted, answers, strict=True):
            if status == 200:
                pages[path] = text
            elif path == UP_PAGE or path in self._had:
                raise UpstreamCut(f"GET {path} answered {status}" if status else text)
            elif status in (404, 405, 501):
                self._missing.add(path)
        return pages

    def _learned(self, pages: Mapping[str, str]) -> Abilities:
        """From its pages; fields that this version refused before stay refused."""
        kind, before = self.engine.engine, self.engine.abilities
        abilities = kind.abilities()
        defaults = frozenset(abilities.refused_fields)
        kind.learn(pages, abilities)
        if abilities.version == before.version:
            abilities.refused_fields |= before.refused_fields - defaults
        return abilities

    def _report(self, report: Report) -> None:
        engine = self.engine
        engine.abilities.num_pools = len(report.pools)
        if len(report.pools) > 1 and not engine.abilities.can_address_pools:
            report = replace(report, pools=(_pooled(report.pools),))
        known = set(engine.replica_ids) if engine.is_up else set()
        engine.report = report
        if not engine.is_up:
            engine.is_up, engine.problem, engine.changed_at = True, "", self._clock()
            LOG.info("engine %s is up: %s, %d KV pools", engine.name, ", ".join(report.models), len(report.pools))
        for replica_id in sorted(known.difference(engine.replica_ids)):
            self._tell(ReplicaLost(replica_id))
        for pool in report.pools:
            models = frozenset(report.models)
            replica_id = engine.replica_id(pool.name)
            tokens_per_char = engine.abilities.tokens_per_char
            self._tell(
                ReplicaReported(
                    replica_id, models, pool.capacity_tokens, pool.slots, pool.waiting, tokens_per_char
                )
            )

    async def _probe(self) -> None:
        engine = self.engine

        async def ask(path: str, headers: HeaderList, body: bytes) -> tuple[int, bytes]:
            return await self._ask.post(engine.address, path, headers, body)

        try:
            async with asyncio.timeout(PROBE_S):
                await probe(engine.engine, engine.abilities, engine.report, ask)
        except (TimeoutError, UpstreamRefused, UpstreamCut) as error:
            LOG.warning("engine %s: hints not probed: %s", engine.name, error or "it was too slow")


def _pooled(pools: Sequence[Pool]) -> Pool:
    """Pools that cannot be addressed as one: what any of them does not say, the sum does not either."""

    def total(values: list[int | None]) -> int | None:
        known = [value for value in values if value is not None]
        return sum(known) if len(known) == len(values) else None

    return Pool(
        "",
        total([pool.capacity_tokens for pool in pools]),
        pools[0].block_tokens,
        total([pool.slots for pool in pools]),
        total([pool.running for pool in pools]),
        total([pool.waiting for pool in pools]),
    )
