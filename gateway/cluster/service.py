"""Puts the parts of a member together, starts them in order, and stops them in reverse order."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace

from prometheus_client import CollectorRegistry, Gauge

from gateway.access.keys import Keys
from gateway.access.limits import Counters
from gateway.cluster.destination import Destination
from gateway.cluster.limit_sync import LimitTally, RedisTally, SharedCounters, SiblingTally, run
from gateway.cluster.membership import Board, Member, Membership, RedisBoard, connected
from gateway.cluster.peer_client import PeerClient, SiblingBoard, private
from gateway.cluster.router import ForwardCounter, MemberRouter
from gateway.cluster.tool_results import RedisResults
from gateway.cluster.workers import WorkerIdentity
from gateway.config import loading
from gateway.config.live_settings import RequestSettings
from gateway.config.settings import Settings
from gateway.core.transport import Handler, Server, Upstream
from gateway.request.gate import Gate
from gateway.request.incoming_bodies import IncomingBodies
from gateway.request.stored_responses import Homes
from gateway.sessions.session_locations import Trail
from gateway.telemetry.metrics import Metrics
from policies.types import ReplicaReported


@dataclass(frozen=True, slots=True)
class MemberContext:
    """The parts of its gateway that a member uses."""

    upstream: Upstream
    server: Callable[[Handler], Server]
    """Makes the private listener."""
    close: Callable[[Server], Awaitable[None]]
    """Closes it within the rest of the grace period."""
    secret: bytes
    """`identity.secret`."""
    keys: Keys
    homes: Homes
    bodies: IncomingBodies
    trail: Trail
    counters: Counters
    gate: Gate
    metrics: Metrics
    settings: Callable[[], RequestSettings]
    """Returns the settings of a client's request that begins now."""
    clock: Callable[[], float]
    destination: Callable[[str, str], Destination]
    """Where a method and a path are answered."""


@dataclass(frozen=True, slots=True)
class Joined:
    """The listeners' handlers of a process that is a member."""

    public: Handler
    admin: Handler
    leave: Callable[[], Awaitable[None]]
    """Makes the others send no more requests. Requests that are under way still arrive."""


@asynccontextmanager
async def joined(
    settings: Settings, place: WorkerIdentity | None, serve: Handler, admin: Handler, context: MemberContext
) -> AsyncIterator[Joined]:
    """Join the other members until the end of the context. Raises OSError, ConfigError.

    `serve` and `admin`: the handlers of this process alone.
    """
    secret = hmac.new(context.secret, b"turngate members", hashlib.sha256).hexdigest()
    peer_client = PeerClient(context.upstream, secret)
    async with AsyncExitStack() as running:
        pages: dict[str, Callable[[str], bytes]] = {
            "metrics": lambda _: context.metrics.exposition(),
            "holds": lambda answer_id: b"yes" if context.homes.is_known(answer_id) else b"no",
        }
        server = context.server(private(secret, pages, serve, admin))
        running.push_async_callback(context.close, server)
        me = await _listening(settings, place, server)
        board = _board(settings, place, me, peer_client, context, pages)
        running.push_async_callback(board.close)

        def apply_share(replica_id: str, share: float) -> None:
            has_strangers = share < 1 and context.keys.num_tenants > 1
            context.gate.tell(ReplicaReported(replica_id, share=share, has_strangers=has_strangers))

        membership = Membership(me, board, context.trail, context.gate.replica_view, apply_share, context.clock)
        _gauges(context.metrics.registry, membership)
        await membership.exchange_once()
        task = asyncio.create_task(membership.run(), name="exchange between members")
        running.push_async_callback(_ended, task)
        if isinstance(context.counters, SharedCounters):
            tally = _tally(board, membership, peer_client, context.counters, pages)
            counting = run(tally, context.counters, context.keys, lambda: membership.members)
            rounds = asyncio.create_task(counting, name="limits of all members")
            running.push_async_callback(_ended, rounds)
        router = _router_of(settings, serve, membership, peer_client, context)
        yield Joined(router.handle, replace(router, serve=admin, is_admin=True).handle, membership.leave)


async def _listening(settings: Settings, place: WorkerIdentity | None, server: Server) -> Member:
    """Start the private listener, and return this member."""
    host = settings.cluster.host
    if place is None:
        port = await server.start(host, settings.cluster.port)
        public, worker = settings.listen.port or port, 0
    else:
        port = await server.start(host, place.private_ports[place.worker], reuse_port=True)
        public, worker = place.port, place.worker
    return Member(f"{socket.gethostname()}:{public}", worker, _url(host, port))


def _url(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _board(
    settings: Settings,
    place: WorkerIdentity | None,
    me: Member,
    peer_client: PeerClient,
    context: MemberContext,
    pages: dict[str, Callable[[str], bytes]],
) -> Board:
    if settings.cluster.redis is not None:
        return RedisBoard(connected(redis_url(settings)), prefix_of(context.secret))
    assert place is not None, "a member without Redis is a worker"
    ports = enumerate(place.private_ports)
    siblings = [Member(me.gateway, n, _url(settings.cluster.host, p)) for n, p in ports if n != me.worker]
    board = SiblingBoard(siblings, peer_client, context.trail)
    pages.update(board.pages)
    return board


def _tally(
    board: Board,
    membership: Membership,
    peer_client: PeerClient,
    counters: SharedCounters,
    pages: dict[str, Callable[[str], bytes]],
) -> LimitTally:
    if not isinstance(board, SiblingBoard):
        assert isinstance(board, RedisBoard)
        me, members = membership.me.id, lambda: (member.id for member in membership.members)
        return RedisTally(board.redis, board.prefix, me, members)
    tally = SiblingTally(board.expected, peer_client, counters)
    pages.update(tally.pages)
    return tally


def results_of(settings: Settings, secret: bytes, running: AsyncExitStack) -> RedisResults | None:
    """Return the results of tools that gateways share. None: there are no other gateways."""
    if settings.cluster.redis is None:
        return None
    results = RedisResults(connected(redis_url(settings)), prefix_of(secret))
    running.push_async_callback(results.close)
    return results


def redis_url(settings: Settings) -> str:
    """Return `cluster.redis`, with its password if it has one. Raises ConfigError."""
    url = settings.cluster.redis or ""
    return loading.secret(url) if url.startswith(("env:", "file:")) else url


def prefix_of(secret: bytes) -> str:
    """Return the prefix of all keys in Redis. Gateways with another secret have another prefix."""
    return "turngate:" + hmac.new(secret, b"turngate redis", hashlib.sha256).hexdigest()[:16]


def _router_of(
    settings: Settings, serve: Handler, membership: Membership, peer_client: PeerClient, context: MemberContext
) -> MemberRouter:
    return MemberRouter(
        serve=serve,
        membership=membership,
        peer_client=peer_client,
        keys=context.keys,
        homes=context.homes,
        bodies=context.bodies,
        destination=context.destination,
        own_page=context.metrics.exposition,
        problems=lambda: {"exchange": membership.problem} if membership.problem else {},
        forwarded=ForwardCounter(context.metrics.registry),
        volatile=[re.compile(pattern) for pattern in settings.identity.volatile_patterns],
        settings=context.settings,
        max_file_bytes=settings.batches.file_bytes + 2**20,
        shares_batches=settings.batches.redis is not None,
        runs_tools=bool(settings.tools.use or settings.tools.mcp),
    )


def _gauges(registry: CollectorRegistry, membership: Membership) -> None:
    members = Gauge("turngate_cluster_members", "Processes that serve as one, as last heard", registry=registry)
    members.set_function(lambda: len(membership.members))
    heard = Gauge("turngate_cluster_heard", "Whether the last exchange between members worked", registry=registry)
    heard.set_function(lambda: not membership.problem)


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
