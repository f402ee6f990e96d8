"""Builds the gateway, starts its parts in order and stops them in reverse.

Features that few configurations use (batches, tools of the gateway, other members) are imported by the method that
builds them: together they are a fifth of the start.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.access.keys import Access, Keys, callers
from gateway.access.limits import Limiter
from gateway.api.host_guard import HostGuard
from gateway.api.routes import TABLE, Router
from gateway.api.sessions import SessionViews
from gateway.api.views import LivePage, Views
from gateway.batches import BatchHandler, off
from gateway.cluster.limit_sync import counters_of
from gateway.cluster.workers import WorkerIdentity, is_member
from gateway.config import loading
from gateway.config.live_settings import LiveSettings
from gateway.config.loading import refuse_missing
from gateway.config.memory import MemoryBounds
from gateway.config.settings import Policy, Settings
from gateway.core.slices import Slices
from gateway.core.transport import Handler, Server
from gateway.engines.base import EngineAddress
from gateway.engines.breaker import BreakerRules
from gateway.engines.client import EngineClient
from gateway.engines.doctor import start_lines
from gateway.engines.monitor import KvEventHearing, Monitor
from gateway.engines.poller import RunningEngine
from gateway.engines.providers.upstream import ProviderUpstream
from gateway.engines.services import Services
from gateway.prompt_lists.scatter import PromptListHandler
from gateway.request.answer import Answering
from gateway.request.background_calls import BackgroundCalls
from gateway.request.gate import Drain, Gate, limits_of, policy_of, recorded
from gateway.request.handler import RequestHandler, TurnHandler
from gateway.request.incoming_bodies import IncomingBodies
from gateway.request.learned import LearnedFile
from gateway.request.model_call import Forward
from gateway.request.parsed_beginnings import ParsedBeginnings
from gateway.request.stateless import StatelessCalls
from gateway.request.stored_responses import Homes, StoredResponses
from gateway.sessions.identity import Identity, lineage_of
from gateway.sessions.prefix_breaks import PrefixBreaks
from gateway.sessions.session_locations import Trail
from gateway.sessions.session_table import SessionPart, SessionTable
from gateway.telemetry.factlog import FactLog
from gateway.telemetry.observer import Observer, tracing_of
from gateway.telemetry.receipts import Receipts
from gateway.transport import transport_of
from policies.scheduler import Scheduler
from policies.types import ReplicaReported

if TYPE_CHECKING:
    from gateway.cluster.service import Joined
    from gateway.tools.wiring import OwnTools


LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What a gateway that has started is made of."""

    upstream: ProviderUpstream
    observer: Observer
    gate: Gate
    monitor: Monitor
    services: Services
    kv_events: KvEventHearing
    background_calls: BackgroundCalls
    stored: StoredResponses
    tools: OwnTools | None
    handler: RequestHandler
    views: Views


class App:
    """One gateway process. `start` once, then `stop` once."""

    def __init__(
        self, settings: Settings, clock: Callable[[], float] = time.monotonic, worker: WorkerIdentity | None = None
    ) -> None:
        """`worker`: this process, among those of a supervisor. Raises ConfigError."""
        settings = settings if worker is None else worker.of(settings)
        self.settings = LiveSettings(settings)
        self._clock = clock
        self._worker = worker
        self._trail = Trail() if is_member(settings, worker) else None
        self.addresses = loading.addresses(settings)
        """Of the engines, as the configuration says now."""
        refuse_missing(settings, self.addresses)
        self._transport = transport_of(settings.transport)
        self.callers = callers(settings)
        """Of the client keys, by their hashes, likewise."""
        self._keys = Keys(self.callers)
        self._counters = counters_of(self._keys, is_shared=self._trail is not None)
        self._secret = loading.identity_secret(settings) or (worker.secret.encode() if worker else os.urandom(32))
        self._scheduler = Scheduler(policy_of(settings.policy), limits_of(settings))
        self._learned = self._learned_file()
        self._drain = Drain()
        self._exits = AsyncExitStack()
        """Stops what has started, in reverse."""
        self._parts: Parts | None = None
        self._joined: Joined | None = None
        self._stops_at = 0.0
        """When answers have to be over. Past until `stop`, so that a start that fails closes at once."""
        self.port = 0
        """Of the listener, once started."""
        self.admin_port = 0

    @property
    def parts(self) -> Parts:
        """Those of a gateway that has started."""
        assert self._parts is not None, "the gateway has not started"
        return self._parts

    async def start(self) -> None:
        """Start the engines, then the listener. Raises OSError when it cannot listen; `stop` cleans up then
        too."""
        single = [address for address in self.addresses if not address.resolves_all]
        exits, addresses = self._exits, [await self._reachable(address) for address in single]
        upstream = self._transport.upstream()
        exits.push_async_callback(upstream.close)
        self._parts = parts = self._build(addresses, ProviderUpstream(upstream, addresses, self._clock))
        exits.push_async_callback(parts.background_calls.stop)
        exits.callback(parts.observer.close)
        exits.callback(parts.gate.stop)
        exits.push_async_callback(parts.kv_events.stop)
        exits.push_async_callback(parts.monitor.stop)
        exits.push_async_callback(parts.services.stop)
        await parts.kv_events.follow(parts.monitor.engines)
        if self._learned is not None:
            parts.gate.tell(self._learned.read())
        starting = [parts.monitor.start(), *([parts.tools.start()] if parts.tools is not None else [])]
        await asyncio.gather(*starting)  # engines are probed while MCP servers start: each may take seconds
        await self.follow_services()
        access = Access.of(self.settings.current, self._keys)
        public = Router(parts.handler.handle, parts.views, await self._batches(parts), access)
        for fact in () if self._learned is None else self._learned.residents():
            parts.gate.tell(fact)
        await self._listen(public.handle, replace(public, is_admin=True).handle)
        if self._learned is not None:
            self._learned.start()
            exits.push_async_callback(self._learned.stop)

    async def stop(self) -> None:
        """Turn waiting and new requests away, let answers finish for the grace period, then end everything."""
        self._drain.is_on = True
        grace_s = self.settings.current.timeouts.shutdown_grace_s
        self._stops_at = self._clock() + grace_s
        if self._joined is not None:
            await self._joined.leave()
        if self.port:
            self.parts.gate.turn_away()
            await self._drain.until_idle(grace_s)
        await self._exits.aclose()

    async def follow_services(self) -> None:
        """Watch the names that stand for several engines and are configured now."""
        await self.parts.services.follow([address for address in self.addresses if address.resolves_all])

    async def follow_kv_events(self) -> None:
        """Hear the events of the engines that are configured now. Raises ConfigError when packages are missing."""
        await self.parts.kv_events.follow(self.parts.monitor.engines)

    def banner(self) -> str:
        """Return what was found at the engines, where to look at it, and which base URL to set."""
        host = self.settings.current.listen.host
        shown = "127.0.0.1" if host in ("0.0.0.0", "::") else f"[{host}]" if ":" in host else host  # noqa: S104
        lines = [line for engine in self.parts.monitor.engines for line in start_lines(engine)]
        base = f"http://{shown}:{self.port}"
        lines.append(f"What happens in it: {base}/ui, or `turngate top`")
        is_any_up = any(engine.is_up for engine in self.parts.monitor.engines)
        state = "Ready." if is_any_up else "Listening, but no engine answers yet: requests get 503 until one does."
        return "\n".join([*lines, f"{state} Point your agents at it: OPENAI_BASE_URL={base}/v1"])

    # ---- building, from what stands alone to what uses it

    def _build(self, addresses: list[EngineAddress], upstream: ProviderUpstream) -> Parts:
        settings, clock = self.settings.current, self._clock
        observer, gate = self._observer(), Gate(self._scheduler, clock)
        bounds = MemoryBounds.of(settings)
        lineage = lineage_of(settings.identity.max_sessions, bounds.recognition)
        identity = Identity(lineage, self._secret, max_tool_bytes=bounds.tool_lists)
        monitor = self._monitor(addresses, upstream, gate, observer, identity)
        forward, client = self._callers(upstream, monitor, observer)
        background_calls, kv_events = BackgroundCalls(monitor, client), KvEventHearing(gate.tell, observer.evicted)
        gate.connect(background_calls.release, observer.record_decisions)
        tools = self._own_tools(upstream, observer)
        toolbox = tools.toolbox(identity.residency) if tools else None
        stored = StoredResponses(Homes(max_bytes=bounds.response_places), monitor, client, self._keys)
        turns = TurnHandler(
            clock=clock,
            monitor=monitor,
            identity=identity,
            sessions=self._sessions(identity, gate, observer, kv_events, toolbox),
            breaks=PrefixBreaks(settings.identity, observer.metrics, bounds.prefix_breaks),
            stored=stored,
            toolbox=toolbox,
            trail=self._trail,
            gate=gate,
            answering=Answering(gate, forward, observer, clock, stored.homes),
        )
        handler = self._handler(turns, forward, observer)
        self._show_memory(handler, bounds)
        return Parts(
            upstream=upstream,
            observer=observer,
            gate=gate,
            monitor=monitor,
            services=Services(monitor, self.follow_kv_events),
            kv_events=kv_events,
            background_calls=background_calls,
            stored=stored,
            tools=tools,
            handler=handler,
            views=self._views(handler),
        )

    def _callers(
        self, upstream: ProviderUpstream, monitor: Monitor, observer: Observer
    ) -> tuple[Forward, EngineClient]:
        """Return what sends the clients' requests, and what sends the gateway's own."""
        client = EngineClient(upstream, self.settings.current.probing.timeout_s)
        return Forward(upstream, monitor, observer, self._clock, Slices()), client

    def _show_memory(self, handler: RequestHandler, bounds: MemoryBounds) -> None:
        """Show who keeps what beyond a request; batches show their own."""
        turns, observer, bodies = handler.turns, handler.observer, handler.bodies
        identity, sessions, breaks, homes = turns.identity, turns.sessions, turns.breaks, turns.stored.homes
        show = observer.metrics.memory.show_owner
        show("incoming_bodies", bounds.incoming_bodies, lambda: bodies.num_bytes)
        show("parsed_beginnings", bounds.parsed_beginnings, lambda: handler.beginnings.num_bytes)
        show("receipts", bounds.receipts, lambda: observer.receipt_bytes)
        show("tool_lists", bounds.tool_lists, lambda: identity.num_tool_bytes)
        show("prefix_breaks", bounds.prefix_breaks, lambda: breaks.num_bytes)
        show("families", bounds.families, lambda: self._scheduler.family_bytes)
        show("response_places", bounds.response_places, lambda: homes.num_bytes)
        show("recognition", bounds.recognition, lambda: identity.num_bytes)
        show("sessions", bounds.sessions, lambda: sessions.num_bytes)
        if (toolbox := turns.toolbox) is not None:
            show("hidden_results", bounds.hidden_results, lambda: toolbox.num_hidden_bytes)
            show("tool_results", bounds.tool_results, lambda: toolbox.num_cached_bytes)

    def _sessions(self, identity: Identity, *shared: SessionPart | None) -> SessionTable:
        section, parts = self.settings.current.identity, [part for part in shared if part is not None]
        max_bytes = MemoryBounds.of(self.settings.current).sessions
        return SessionTable(section.max_sessions, section.session_ttl_s, [identity], parts, max_bytes)

    def _monitor(
        self,
        addresses: list[EngineAddress],
        upstream: ProviderUpstream,
        gate: Gate,
        observer: Observer,
        identity: Identity,
    ) -> Monitor:
        settings, probing = self.settings.current, self.settings.current.probing
        monitor = Monitor(
            addresses,
            upstream,
            gate.tell,
            self._clock,
            interval_s=probing.interval_s,
            timeout_s=probing.timeout_s,
            probes_hints=probing.hints,
            start_waits=probing.start_waits,
            rules=BreakerRules(probing.breaker_failures, probing.breaker_window_s, probing.breaker_open_s),
            faulted=observer.faulted,
            amend=ReportAmender(upstream, identity, settings.policy, self._learned).amended,
            came_up=self.follow_kv_events,
        )
        observer.metrics.show_fleet(gate.view, monitor)
        return monitor

    def _learned_file(self) -> LearnedFile | None:
        settings = self.settings.current
        if settings.learned_file is None:
            return None
        keeps_families = settings.identity.secret is not None
        if not keeps_families:
            LOG.info("learned_file: what is learned of families is not kept, since `identity.secret` is not set")
        return LearnedFile(Path(settings.learned_file), self._scheduler, time.time, keeps_families)

    def _observer(self) -> Observer:
        settings, kept = self.settings.current, self.settings.current.receipts
        facts = FactLog(Path(settings.logging.facts), recorded(settings)) if settings.logging.facts else None
        receipts = Receipts(kept.keep_s, kept.max_kept, MemoryBounds.of(settings).receipts)
        return Observer(self._clock, receipts, facts, tracing_of(settings.tracing, self._clock))

    def _handler(self, turns: TurnHandler, forward: Forward, observer: Observer) -> RequestHandler:
        return RequestHandler(
            settings=self.settings.of_clients,
            clock=self._clock,
            drain=self._drain,
            keys=self._keys,
            limiter=Limiter(self._counters, self.settings.current.prices, time.time, observer.limited),
            monitor=turns.monitor,
            turns=turns,
            stateless=StatelessCalls(forward, turns.monitor, turns.stored, observer),
            bodies=IncomingBodies(),
            slices=forward.slices,
            beginnings=ParsedBeginnings(
                turns.identity.cutter, MemoryBounds.of(self.settings.current).parsed_beginnings
            ),
            lists=PromptListHandler(turns.gate.replica_view, observer.receipt_headers, forward.slices),
            observer=observer,
        )

    def _views(self, handler: RequestHandler) -> Views:
        turns = handler.turns
        return Views(
            handler.limiter,
            self._keys,
            self.settings.of_clients,
            handler.monitor,
            handler.observer,
            SessionViews(turns.sessions, turns.gate.view, self._clock),
            turns.breaks,
            turns.toolbox,
            self._drain,
            LivePage(),
        )

    def _own_tools(self, upstream: ProviderUpstream, observer: Observer) -> OwnTools | None:
        settings = self.settings.current
        if not settings.tools.use and not settings.tools.mcp:
            return None
        from gateway.cluster.service import results_of
        from gateway.tools.wiring import OwnTools

        shared = results_of(settings, self._secret, self._exits)
        bounds, registry = MemoryBounds.of(settings), observer.metrics.registry
        bounded = {"hidden_bytes": bounds.hidden_results, "cache_bytes": bounds.tool_results}
        tools = OwnTools(settings.tools.model_copy(update=bounded), upstream, registry, self._clock, shared)
        self._exits.push_async_callback(tools.stop)
        return tools

    # ---- starting

    async def _reachable(self, address: EngineAddress) -> EngineAddress:
        """Return the address of an engine. An embedded one is started, unless the supervisor has started it."""
        if self._worker is not None and (base_url := self._worker.hosted.get(address.name)):
            return replace(address, base_url=base_url)
        if address.base_url:
            return address
        from gateway.embedded.server import started_in_process  # few need it, and it is a tenth of the start

        return await started_in_process(address, self.settings.current.embedded, self._exits)

    async def _batches(self, parts: Parts) -> BatchHandler:
        if self.settings.current.batches.directory is None:
            return off
        from gateway.batches.service import batches_on

        runtime = parts.tools.runtime if parts.tools is not None else None
        batches = batches_on(parts.handler, self.settings, self._secret, runtime)
        return await self._exits.enter_async_context(batches)

    async def _listen(self, public: Handler, for_admin: Handler) -> None:
        if self._trail is not None:
            self._joined = await self._join(self._trail, public, for_admin)
            public, for_admin = self._joined.public, self._joined.admin
        listen, admin = self.settings.current.listen, self.settings.current.admin
        public = HostGuard(public, self._keys, (*listen.hosts, listen.host), listen.is_loopback).handle
        server, shares_port = self._transport.server(public), self._worker is not None
        self._exits.push_async_callback(self._close, server)
        self.port = await server.start(listen.host, listen.port, reuse_port=shares_port)
        if admin.port is not None:
            if admin.key is None:
                for_admin = HostGuard(for_admin, None, (*listen.hosts, admin.host), admin.is_loopback).handle
            private = self._transport.server(for_admin)
            self._exits.push_async_callback(private.stop, 0)
            self.admin_port = await private.start(admin.host, admin.port, reuse_port=shares_port)

    async def _close(self, server: Server) -> None:
        await server.stop(max(0.0, self._stops_at - self._clock()))

    async def _join(self, trail: Trail, public: Handler, for_admin: Handler) -> Joined:
        from gateway.cluster.service import MemberContext, joined

        parts = self.parts
        context = MemberContext(
            parts.upstream,
            self._transport.server,
            self._close,
            self._secret,
            self._keys,
            parts.stored.homes,
            parts.handler.bodies,
            trail,
            self._counters,
            parts.gate,
            parts.observer.metrics,
            self.settings.of_clients,
            self._clock,
            TABLE.destination,
        )
        return await self._exits.enter_async_context(
            joined(self.settings.current, self._worker, public, for_admin, context)
        )


@dataclass(frozen=True, slots=True)
class ReportAmender:
    """Completes what engines report by what the gateway knows better, and gives identity its share of it."""

    upstream: ProviderUpstream
    identity: Identity
    policy: Policy
    learned: LearnedFile | None = None

    def amended(self, fact: ReplicaReported, engine: RunningEngine) -> ReplicaReported:
        """Return the report with the limits of a rented engine, and those that the configuration sets."""
        fact = self.upstream.reported(fact, engine.address.base_url)
        if self.policy.slots_per_replica is not None:
            fact = replace(fact, slots=self.policy.slots_per_replica)
        if self.policy.capacity_tokens is not None:
            fact = replace(fact, capacity_tokens=self.policy.capacity_tokens)
        if engine.abilities.system_before_tools is False:
            self.identity.tools_first.update(fact.models or ())
        return fact if self.learned is None else self.learned.completed(fact, engine.adapter.kind)
