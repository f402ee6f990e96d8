"""Wires the gateway together, starts its parts in order and stops them in reverse."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import replace
from importlib import import_module
from pathlib import Path as FilePath
from typing import cast

from gateway import config, settings
from gateway.admin import Admin
from gateway.answer import Answering
from gateway.batches.api import in_front_of
from gateway.batches.asking import LineKeys
from gateway.batches.service import Surroundings, serving
from gateway.breaks import PrefixBreaks
from gateway.engines.base import EngineAddress
from gateway.factlog import FactLog, Header
from gateway.forward import Forward
from gateway.gate import Gate
from gateway.handler import Path
from gateway.homes import Homes
from gateway.hosted import HostedEngine
from gateway.identity import Identity
from gateway.keys import Keys
from gateway.kvevents import listening
from gateway.lists.answer import Lists
from gateway.monitor import Monitor, RunningEngine
from gateway.observe import Observer
from gateway.plain import PlainCalls
from gateway.receipts import Receipts
from gateway.sessions import Sessions
from gateway.settings import Settings
from gateway.toolloop.wiring import OwnTools
from gateway.transport import Handler, Timeouts
from gateway.transports.aiohttp_server import AiohttpServer
from gateway.transports.aiohttp_upstream import AiohttpUpstream
from policies.admission import Limits
from policies.fifo import Fifo
from policies.lineage import Lineage
from policies.passthrough import Passthrough
from policies.place import Place, by_load, by_prefix, round_robin
from policies.policy import Policy
from policies.scheduler import Scheduler
from policies.turns import Turns
from policies.types import Fact, ReplicaReported, SessionEnded

PLACES: dict[str, Place] = {"prefix": by_prefix, "least_loaded": by_load, "round_robin": round_robin}
POLICIES: dict[str, Callable[[Place], Policy]] = {"turns": Turns, "fifo": Fifo, "passthrough": Passthrough}

LINE_DEADLINE_S = 6 * 3600.0
"""Of one attempt to answer a line of a batch."""


class App:
    """One gateway process. `start` once, then `stop` once."""

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.monotonic) -> None:
        """Raises ConfigError."""
        self._settings = settings
        self._clock = clock
        self._addresses = config.addresses(settings)
        self._keys = Keys(config.callers(settings))
        self._secret = config.identity_secret(settings) or os.urandom(32)
        self._policy = policy_of(settings.policy)
        self._running = AsyncExitStack()
        self._is_draining = False
        self.port = 0
        """Of the listener, once started."""

    async def start(self) -> None:
        """Engines first, then the listener. Raises OSError when it cannot listen; `stop` cleans up then too."""
        addresses = [await self._hosted(address) for address in self._addresses]
        upstream = AiohttpUpstream()
        self._running.push_async_callback(upstream.close)
        self._wire(addresses, upstream)
        self._running.callback(self.observer.close)
        self._running.callback(self.gate.stop)
        self._running.push_async_callback(self.monitor.stop)
        await self._running.enter_async_context(
            listening(self.monitor.engines, self.gate.tell, self.observer.evicted)
        )
        await self.monitor.start()
        if self.tools is not None:
            await self.tools.start()
        batches = await self._running.enter_async_context(self._serving_batches())
        server = AiohttpServer(in_front_of(self.path.handle, batches))
        self._running.push_async_callback(server.stop, self._settings.timeouts.shutdown_grace_s)
        listen = self._settings.listen
        self.port = await server.start(listen.host, listen.port)

    async def stop(self) -> None:
        """Stop accepting, let running requests finish for the grace period, then end everything."""
        self._is_draining = True
        await self._running.aclose()

    def banner(self) -> str:
        """What was found at the engines, and which base URL to set."""
        host = self._settings.listen.host
        shown = "127.0.0.1" if host in ("0.0.0.0", "::") else f"[{host}]" if ":" in host else host  # noqa: S104
        lines = [line for engine in self.monitor.engines for line in _about(engine)]
        base = f"http://{shown}:{self.port}/v1"
        return "\n".join([*lines, f"Ready. Point your agents at it: OPENAI_BASE_URL={base}"])

    def _wire(self, addresses: list[EngineAddress], upstream: AiohttpUpstream) -> None:
        settings, clock = self._settings, self._clock
        probing, times = settings.probing, settings.timeouts
        facts = FactLog(FilePath(settings.logging.facts), recorded(settings)) if settings.logging.facts else None
        receipts = Receipts(settings.receipts.keep_s, settings.receipts.max_kept)
        self.gate = gate = Gate(
            Scheduler(self._policy, limits_of(settings)), clock, lambda *told: self.observer.told(*told)
        )
        self.monitor = monitor = Monitor(
            addresses,
            upstream,
            self._tell,
            clock,
            interval_s=probing.interval_s,
            timeout_s=probing.timeout_s,
            probes_hints=probing.hints,
        )
        self.observer = observer = Observer(clock, gate.view, lambda: monitor.engines, receipts, facts)
        lineage = Lineage(settings.identity.max_sessions, settings.identity.session_ttl_s)
        self.identity = Identity(lineage, self._secret)
        self.tools = None
        if settings.tools.use or settings.tools.mcp:
            registry = observer.metrics.registry
            self.tools = OwnTools(settings.tools, upstream, registry, clock, self.identity.residency)
            self._running.push_async_callback(self.tools.close)
        timeouts = Timeouts(times.connect_s, times.first_byte_s, times.idle_s)
        forward = Forward(upstream, monitor, observer, timeouts, clock)
        self.path = self._path(forward)

    def _path(self, forward: Forward) -> Path:
        settings, clock, monitor, observer = self._settings, self._clock, self.monitor, self.observer
        homes, sessions = Homes(), Sessions(settings.identity.max_sessions, settings.identity.session_ttl_s)
        breaks = PrefixBreaks(settings.identity, observer.metrics)
        return Path(
            settings,
            self._keys,
            monitor,
            self.identity,
            self.gate,
            Answering(self.gate, forward, observer, settings, clock),
            PlainCalls(forward, monitor, homes, observer, settings.limits.attempts),
            homes,
            observer,
            sessions,
            breaks,
            toolbox := self.tools.toolbox if self.tools is not None else None,
            Admin(
                self._keys,
                settings.models,
                monitor,
                observer,
                sessions,
                breaks,
                toolbox,
                lambda: self._is_draining,
                clock,
            ),
            clock,
            Lists(lambda: self.gate.view(counts_sessions=False), observer.receipt_headers),
        )

    def _serving_batches(self) -> AbstractAsyncContextManager[Handler]:
        settings, observer = self._settings, self.observer
        around = Surroundings(
            self._path_of_lines().handle,
            self._keys,
            lambda: self.gate.view(counts_sessions=False),
            self.path.wrong_model,
            self.tools.runtime if self.tools is not None else None,
            lambda session_id: self.gate.tell(SessionEnded(session_id)),
            observer.metrics.registry,
            settings.limits.body_bytes,
            self._clock,
        )
        return serving(settings.batches, around)

    def _path_of_lines(self) -> Path:
        """The same path without the bounds that clients' timers impose, and with a memory of its own for sessions:
        tens of thousands of lines must not make it forget those of agents."""
        path, policy = self.path, self._settings.policy
        patient = self._settings.model_copy(
            update={"policy": policy.model_copy(update={"max_wait_plain_s": LINE_DEADLINE_S})}
        )
        max_sessions, ttl_s = 4 * patient.batches.in_flight, patient.identity.session_ttl_s
        identity = Identity(Lineage(max_sessions, ttl_s), self._secret)
        identity.tools_first = self.identity.tools_first
        forward = path.answering.forward
        forward = replace(forward, timeouts=replace(forward.timeouts, first_byte_s=LINE_DEADLINE_S))
        answering = replace(path.answering, forward=forward, settings=patient, plain_deadline_s=LINE_DEADLINE_S)
        return replace(
            path,
            settings=patient,
            keys=LineKeys(),
            identity=identity,
            sessions=Sessions(max_sessions, ttl_s),
            answering=answering,
            toolbox=None,
            plain=replace(path.plain, forward=forward),
        )

    def _tell(self, fact: Fact) -> None:
        """Facts of the monitor, with what the configuration knows better, and what identity learns from them."""
        if isinstance(fact, ReplicaReported):
            policy = self._settings.policy
            if policy.slots_per_replica is not None:
                fact = replace(fact, slots=policy.slots_per_replica)
            if policy.capacity_tokens is not None:
                fact = replace(fact, capacity_tokens=policy.capacity_tokens)
            if self.monitor.target(fact.replica_id).engine.abilities.system_before_tools is False:
                self.identity.tools_first.update(fact.models or ())
        self.gate.tell(fact)

    async def _hosted(self, address: EngineAddress) -> EngineAddress:
        """The address of an engine; an embedded one is started for it, on a loopback port."""
        if address.base_url:
            return address
        engine = HostedEngine(self._settings.embedded)
        self._running.push_async_callback(engine.stop)
        port = await engine.start()
        return replace(address, base_url=f"http://127.0.0.1:{port}")


def limits_of(settings: Settings) -> Limits:
    """What holds for every policy."""
    return Limits(
        ceiling=settings.policy.ceiling,
        price=settings.policy.price,
        hold_bound_s=settings.policy.hold_bound_s,
        max_queue=settings.limits.queue_turns,
        max_sessions=settings.identity.max_sessions,
        sub_agents_return=settings.policy.sub_agents_return,
    )


def recorded(settings: Settings) -> Header:
    """What `limits_of` and `policy_of` read, for the log of facts."""
    sections = ("policy", "limits", "identity")
    return Header({name: getattr(settings, name).model_dump(mode="json", exclude={"secret"}) for name in sections})


def policy_of(section: settings.Policy) -> Policy:
    """The policy of a short name, or of an import path `package.module:Name`. Raises ConfigError."""
    if section.name in POLICIES:
        return POLICIES[section.name](PLACES[section.placement])
    module, _, name = section.name.partition(":")
    try:
        return cast(Policy, getattr(import_module(module), name)(**section.options))
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        known = ", ".join(POLICIES)
        raise config.ConfigError(
            f"policy.name {section.name!r}: {error}; known: {known}, or module:Name"
        ) from None


def _about(engine: RunningEngine) -> Iterator[str]:
    if not engine.is_up:
        yield f"{engine.name}: {engine.problem}; it is used as soon as it answers"
        return
    report, version = engine.report, engine.abilities.version
    sizes = [pool.capacity_tokens for pool in report.pools]
    size = f"{sum(filter(None, sizes)):,} tokens" if all(sizes) else "unknown size"
    pools = "1 KV pool" if len(sizes) == 1 else f"{len(sizes)} KV pools"
    kind = f"{engine.address.kind} {version}".rstrip()
    yield f"{engine.name}: {kind} serving {', '.join(report.models)}; {pools}, {size}"
    for advice in engine.engine.advice(report, engine.abilities):
        yield f"  {advice.problem}: {advice.remedy}"
