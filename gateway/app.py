"""Wires the gateway together, starts its parts in order and stops them in reverse.

What only a configured feature needs (batches, tools of our own, other members) is imported by the method that
wires it: together they are a fifth of the start.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path as FilePath
from typing import TYPE_CHECKING

from gateway.access.keys import Access, Keys, callers
from gateway.access.limits import Limiter
from gateway.api.live_page import LivePage
from gateway.api.router import Router
from gateway.api.routes import TABLE
from gateway.api.sessions import SessionViews
from gateway.api.views import Views
from gateway.batches import BatchHandler, off
from gateway.cluster.limit_sync import counters_of
from gateway.cluster.workers import WorkerIdentity, is_member
from gateway.config import loading
from gateway.config.live_settings import LiveSettings
from gateway.config.loading import refuse_missing
from gateway.config.settings import Settings
from gateway.core.transport import Handler, Server, Upstream
from gateway.engines.base import EngineAddress
from gateway.engines.breaker import BreakerRules
from gateway.engines.client import EngineClient
from gateway.engines.doctor import start_lines
from gateway.engines.monitor import Monitor, kv_events_heard
from gateway.engines.providers.upstream import ProviderUpstream
from gateway.prompt_lists.scatter import PromptListHandler
from gateway.request.answer import Answering
from gateway.request.background_calls import BackgroundCalls, WarmUps
from gateway.request.gate import Drain, Gate, limits_of, policy_of, recorded
from gateway.request.handler import RequestHandler
from gateway.request.model_call import Forward
from gateway.request.stateless import PlainCalls
from gateway.request.stored_responses import Homes, StoredResponses
from gateway.sessions.identity import Identity
from gateway.sessions.prefix_breaks import PrefixBreaks
from gateway.sessions.session_locations import Trail
from gateway.sessions.session_table import Sessions
from gateway.telemetry.factlog import FactLog
from gateway.telemetry.observer import Observer, tracing_of
from gateway.telemetry.receipts import Receipts
from gateway.transport import transport_of
from policies.recognition.lineage import Lineage
from policies.scheduler import Scheduler
from policies.types import Fact, ReplicaReported

if TYPE_CHECKING:
    from gateway.cluster.service import Joined
    from gateway.tools.toolbox import Toolbox
    from gateway.tools.wiring import OwnTools


class App:
    """One gateway process. `start` once, then `stop` once."""

    def __init__(
        self, settings: Settings, clock: Callable[[], float] = time.monotonic, place: WorkerIdentity | None = None
    ) -> None:
        """`place`: among the workers of a supervisor. Raises ConfigError."""
        self._place = place
        self._trail = Trail() if is_member(settings, place) else None
        settings = settings if place is None else place.of(settings)
        self.settings = LiveSettings(settings)
        self._clock = clock
        self.addresses = loading.addresses(settings)
        """Of the engines, as the configuration says now."""
        refuse_missing(settings, self.addresses)
        self._transport = transport_of(settings.transport)
        self.callers = callers(settings)
        """Of the client keys, by their hashes, likewise."""
        self._keys = Keys(self.callers)
        self._counters = counters_of(self._keys, is_shared=self._trail is not None)
        self._secret = loading.identity_secret(settings) or (place.secret.encode() if place else os.urandom(32))
        self._policy = policy_of(settings.policy)
        self._running = AsyncExitStack()
        self._drain = Drain()
        self._joined: Joined | None = None
        self._stops_at = 0.0
        """When answers have to be over. Past until `stop`, so a start that fails closes at once."""
        self.port = 0
        """Of the listener, once started."""
        self.admin_port = 0

    async def start(self) -> None:
        """Engines first, then the listener. Raises OSError when it cannot listen; `stop` cleans up then too."""
        settings = self.settings.current
        addresses = [await self._reachable(address) for address in self.addresses]
        upstream = self._transport.upstream()
        self._running.push_async_callback(upstream.close)
        self._upstream = ProviderUpstream(upstream, addresses, self._clock)
        self._wire(addresses, self._upstream)
        self._running.callback(self.observer.close)
        self._running.callback(self.gate.stop)
        self._running.push_async_callback(self.monitor.stop)
        self.follow_kv_events = await self._running.enter_async_context(
            kv_events_heard(self.monitor.engines, self.gate.tell, self.observer.evicted)
        )
        await self.monitor.start()
        if self.tools is not None:
            await self.tools.start()
        batches = off if settings.batches.directory is None else await self._batches()
        public = Router(self.path.handle, self.views, batches, Access.of(settings, self._keys))
        await self._listen(public.handle, replace(public, is_admin=True).handle)

    async def _listen(self, public: Handler, for_admin: Handler) -> None:
        if self._trail is not None:
            self._joined = await self._join(self._trail, public, for_admin)
            public, for_admin = self._joined.public, self._joined.admin
        server, shares_port = self._transport.server(public), self._place is not None
        self._running.push_async_callback(self._close, server)
        listen, admin = self.settings.current.listen, self.settings.current.admin
        self.port = await server.start(listen.host, listen.port, reuse_port=shares_port)
        if admin.port is not None:
            private = self._transport.server(for_admin)
            self._running.push_async_callback(private.stop, 0)
            self.admin_port = await private.start(admin.host, admin.port, reuse_port=shares_port)

    async def stop(self) -> None:
        """Turn away who waits and who comes, let answers finish for the grace period, then end everything."""
        self._drain.is_on = True
        grace_s = self.settings.current.timeouts.shutdown_grace_s
        self._stops_at = self._clock() + grace_s
        if self._joined is not None:
            await self._joined.leave()
        if self.port:
            self.gate.turn_away()
            await self._drain.until_idle(grace_s)
        await self._running.aclose()

    async def _close(self, server: Server) -> None:
        await server.stop(max(0.0, self._stops_at - self._clock()))

    def banner(self) -> str:
        """What was found at the engines, where to look at it, and which base URL to set."""
        host = self.settings.current.listen.host
        shown = "127.0.0.1" if host in ("0.0.0.0", "::") else f"[{host}]" if ":" in host else host  # noqa: S104
        lines = [line for engine in self.monitor.engines for line in start_lines(engine)]
        base = f"http://{shown}:{self.port}"
        lines.append(f"What happens in it: {base}/ui, or `turngate top`")
        return "\n".join([*lines, f"Ready. Point your agents at it: OPENAI_BASE_URL={base}/v1"])

    def _wire(self, addresses: list[EngineAddress], upstream: Upstream) -> None:
        settings, clock = self.settings.current, self._clock
        probing = settings.probing
        facts = FactLog(FilePath(settings.logging.facts), recorded(settings)) if settings.logging.facts else None
        kept = settings.receipts
        receipts = Receipts(kept.keep_s, kept.max_kept, kept.max_bytes)
        self.gate = gate = Gate(
            Scheduler(self._policy, limits_of(settings)),
            clock,
            errand=lambda decision: self.errands.begin(decision),
        )
        self.monitor = monitor = Monitor(
            addresses,
            upstream,
            self._tell,
            clock,
            interval_s=probing.interval_s,
            timeout_s=probing.timeout_s,
            probes_hints=probing.hints,
            rules=BreakerRules(probing.breaker_failures, probing.breaker_window_s, probing.breaker_open_s),
            faulted=lambda *what: self.observer.faulted(*what),
        )
        traces = tracing_of(settings.tracing, clock)
        self.observer = observer = Observer(clock, gate.view, lambda: monitor.engines, receipts, facts, traces)
        gate.listener = observer.told
        lineage = Lineage(settings.identity.max_sessions, settings.identity.session_ttl_s)
        self.identity = Identity(lineage, self._secret)
        self.tools = self._own_tools(upstream) if settings.tools.use or settings.tools.mcp else None
        forward = Forward(upstream, monitor, observer, clock)
        self.warm_ups = WarmUps(settings.policy.warm_up_bytes, forward, self.settings.of_clients)
        self.errands = BackgroundCalls(
            self.warm_ups, monitor, EngineClient(upstream, probing.timeout_s), gate.tell
        )
        self._running.push_async_callback(self.errands.stop)
        self.path = self._path(forward)

    def _path(self, forward: Forward) -> RequestHandler:
        settings, clock, monitor, observer = self.settings.current, self._clock, self.monitor, self.observer
        ask = EngineClient(forward.upstream, settings.probing.timeout_s)
        stored = StoredResponses(Homes(), monitor, ask, self._keys)
        sessions = Sessions(settings.identity.max_sessions, settings.identity.session_ttl_s)
        breaks = PrefixBreaks(settings.identity, observer.metrics)
        limiter = Limiter(self._counters, settings.prices, time.time, observer.limited)
        toolbox = self.tools.toolbox(self.identity.residency) if self.tools is not None else None
        self.views = self._views(limiter, sessions, breaks, toolbox)
        return RequestHandler(
            self.settings.of_clients,
            self._drain,
            self._keys,
            limiter,
            monitor,
            self.identity,
            self.gate,
            Answering(self.gate, forward, observer, clock, stored.homes, self.warm_ups),
            PlainCalls(forward, monitor, stored, observer),
            stored,
            observer,
            sessions,
            breaks,
            toolbox,
            clock,
            PromptListHandler(lambda: self.gate.view(counts_sessions=False), observer.receipt_headers),
            self._trail,
        )

    def _views(self, limiter: Limiter, sessions: Sessions, breaks: PrefixBreaks, toolbox: Toolbox | None) -> Views:
        return Views(
            limiter,
            self._keys,
            self.settings.of_clients,
            self.monitor,
            self.observer,
            SessionViews(sessions, self.gate.view, self._clock),
            breaks,
            toolbox,
            lambda: self._drain.is_on,
            LivePage(),
        )

    def _own_tools(self, upstream: Upstream) -> OwnTools:
        from gateway.cluster.service import results_of
        from gateway.tools.wiring import OwnTools

        settings, registry = self.settings.current, self.observer.metrics.registry
        shared = results_of(settings, self._secret, self._running)
        tools = OwnTools(settings.tools, upstream, registry, self._clock, shared)
        self._running.push_async_callback(tools.stop)
        return tools

    async def _join(self, trail: Trail, public: Handler, for_admin: Handler) -> Joined:
        from gateway.cluster.service import MemberContext, joined

        around = MemberContext(
            self._upstream,
            self._transport.server,
            self._close,
            self._secret,
            self._keys,
            self.path.stored.homes,
            trail,
            self._counters,
            self.gate,
            self.observer.metrics,
            self.settings.of_clients,
            self._clock,
            TABLE.destination,
        )
        return await self._running.enter_async_context(
            joined(self.settings.current, self._place, public, for_admin, around)
        )

    async def _batches(self) -> BatchHandler:
        from gateway.batches.service import batches_on

        runtime = self.tools.runtime if self.tools is not None else None
        return await self._running.enter_async_context(batches_on(self.path, self.settings, self._secret, runtime))

    def _tell(self, fact: Fact) -> None:
        """Facts of the monitor, with what the configuration knows better, and what identity learns from them."""
        if isinstance(fact, ReplicaReported):
            engine = self.monitor.target(fact.replica_id).engine
            fact = self._upstream.reported(fact, engine.address.base_url)
            policy = self.settings.current.policy
            if policy.slots_per_replica is not None:
                fact = replace(fact, slots=policy.slots_per_replica)
            if policy.capacity_tokens is not None:
                fact = replace(fact, capacity_tokens=policy.capacity_tokens)
            if engine.abilities.system_before_tools is False:
                self.identity.tools_first.update(fact.models or ())
        self.gate.tell(fact)

    async def _reachable(self, address: EngineAddress) -> EngineAddress:
        """Return the address of an engine. An embedded one is started, unless the supervisor has started it."""
        if self._place is not None and (base_url := self._place.hosted.get(address.name)):
            return replace(address, base_url=base_url)
        if address.base_url:
            return address
        from gateway.embedded.server import started_in_process  # few need it, and it is a tenth of the start

        return await started_in_process(address, self.settings.current.embedded, self._running)
