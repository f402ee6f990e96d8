"""Puts the parts of a member together, starts them in order and stops them in reverse."""

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

from gateway.access.counters import Counters
from gateway.access.keys import Keys
from gateway.cluster.destination import Destination
from gateway.cluster.limit_sync import LimitTally, RedisTally, SharedCounters, SiblingTally, run
from gateway.cluster.membership import Board, Member, Peers, RedisBoard, connected
from gateway.cluster.peer_client import Hops, Siblings, private
from gateway.cluster.router import Forwarded, Front
from gateway.cluster.tool_results import RedisResults
from gateway.cluster.workers import WorkerIdentity
from gateway.config import loading
from gateway.config.live_settings import RequestSettings
from gateway.config.settings import Settings
from gateway.core.transport import Handler, Server, Upstream
from gateway.request.gate import Gate
from gateway.request.stored_responses import Homes
from gateway.sessions.session_locations import Trail
from gateway.telemetry.metrics import Metrics
from policies.types import ReplicaReported


@dataclass(frozen=True, slots=True)
class MemberContext:
    """What a member needs of its gateway."""

    upstream: Upstream
    server: Callable[[Handler], Server]
    """For the private listener."""
    close: Callable[[Server], Awaitable[None]]
    """Within what is left of the time to stop."""
    secret: bytes
    """Of identity."""
    keys: Keys
    homes: Homes
    trail: Trail
    counters: Counters
    gate: Gate
    metrics: Metrics
    settings: Callable[[], RequestSettings]
    """Those for a client's request that begins now."""
    clock: Callable[[], float]
    destination: Callable[[str, str], Destination]
    """Where a method and a path are answered."""


@dataclass(frozen=True, slots=True)
class Joined:
    """A process that is a member."""

    public: Handler
    admin: Handler
    leave: Callable[[], Awaitable[None]]
    """Others send no more; what is on its way still comes."""


@asynccontextmanager
async def joined(
    settings: Settings, place: WorkerIdentity | None, serve: Handler, admin: Handler, around: MemberContext
) -> AsyncIterator[Joined]:
    """`serve` and `admin`: the handlers of this process alone. Raises OSError, ConfigError."""
    secret = hmac.new(around.secret, b"turngate members", hashlib.sha256).hexdigest()
    hops = Hops(around.upstream, secret)
    async with AsyncExitStack() as running:
        pages: dict[str, Callable[[str], bytes]] = {
            "metrics": lambda _: around.metrics.exposition(),
            "holds": lambda answer_id: b"yes" if around.homes.is_known(answer_id) else b"no",
        }
        server = around.server(private(secret, pages, serve, admin))
        running.push_async_callback(around.close, server)
        me = await _listening(settings, place, server)
        board = _board(settings, place, me, hops, around, pages)
        running.push_async_callback(board.close)

        def give(replica_id: str, share: float) -> None:
            around.gate.tell(
                ReplicaReported(replica_id, share=share, has_strangers=share < 1 and around.keys.num_tenants > 1)
            )

        peers = Peers(me, board, around.trail, lambda: around.gate.view(counts_sessions=False), give, around.clock)
        _gauges(around.metrics.registry, peers)
        await peers.once()
        task = asyncio.create_task(peers.run(), name="exchange between members")
        running.push_async_callback(_ended, task)
        if isinstance(around.counters, SharedCounters):
            tally = _tally(board, peers, hops, around.counters, pages)
            counting = run(tally, around.counters, around.keys, lambda: peers.members)
            rounds = asyncio.create_task(counting, name="limits of all members")
            running.push_async_callback(_ended, rounds)
        front = _front(settings, serve, peers, hops, around)
        yield Joined(front.handle, replace(front, serve=admin, is_admin=True).handle, peers.leave)


async def _listening(settings: Settings, place: WorkerIdentity | None, server: Server) -> Member:
    """This member, whose private listener is up."""
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
    hops: Hops,
    around: MemberContext,
    pages: dict[str, Callable[[str], bytes]],
) -> Board:
    if settings.cluster.redis is not None:
        return RedisBoard(connected(redis_url(settings)), prefix_of(around.secret))
    assert place is not None, "who has no Redis is a worker"
    ports = enumerate(place.private_ports)
    siblings = [Member(me.gateway, n, _url(settings.cluster.host, p)) for n, p in ports if n != me.worker]
    board = Siblings(siblings, hops, around.trail)
    pages.update(board.pages)
    return board


def _tally(
    board: Board,
    peers: Peers,
    hops: Hops,
    counters: SharedCounters,
    pages: dict[str, Callable[[str], bytes]],
) -> LimitTally:
    if not isinstance(board, Siblings):
        assert isinstance(board, RedisBoard)
        me, members = peers.me.id, lambda: (member.id for member in peers.members)
        return RedisTally(board.redis, board.prefix, me, members)
    tally = SiblingTally(board.expected, hops, counters)
    pages.update(tally.pages)
    return tally


def results_of(settings: Settings, secret: bytes, running: AsyncExitStack) -> RedisResults | None:
    """Of tools, shared by gateways. None: there are no others."""
    if settings.cluster.redis is None:
        return None
    results = RedisResults(connected(redis_url(settings)), prefix_of(secret))
    running.push_async_callback(results.close)
    return results


def redis_url(settings: Settings) -> str:
    """With its password, if it has one. Raises ConfigError."""
    url = settings.cluster.redis or ""
    return loading.secret(url) if url.startswith(("env:", "file:")) else url


def prefix_of(secret: bytes) -> str:
    """Of all keys in Redis: gateways with another secret are strangers."""
    return "turngate:" + hmac.new(secret, b"turngate redis", hashlib.sha256).hexdigest()[:16]


def _front(settings: Settings, serve: Handler, peers: Peers, hops: Hops, around: MemberContext) -> Front:
    return Front(
        serve=serve,
        peers=peers,
        hops=hops,
        keys=around.keys,
        homes=around.homes,
        destination=around.destination,
        own_page=around.metrics.exposition,
        problems=lambda: {"exchange": peers.problem} if peers.problem else {},
        forwarded=Forwarded(around.metrics.registry),
        volatile=[re.compile(pattern) for pattern in settings.identity.volatile_patterns],
        settings=around.settings,
        max_file_bytes=settings.batches.file_bytes + 2**20,
        shares_batches=settings.batches.redis is not None,
        runs_tools=bool(settings.tools.use or settings.tools.mcp),
    )


def _gauges(registry: CollectorRegistry, peers: Peers) -> None:
    members = Gauge("turngate_cluster_members", "Processes that serve as one, as last heard", registry=registry)
    members.set_function(lambda: len(peers.members))
    heard = Gauge("turngate_cluster_heard", "Whether the last exchange between members worked", registry=registry)
    heard.set_function(lambda: not peers.problem)


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
