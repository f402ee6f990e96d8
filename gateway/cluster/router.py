"""The public listener of a member: sends each request to its destination, and joins the pages of all members."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from re import Pattern
from typing import cast

import orjson
from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from gateway.access.keys import Keys
from gateway.cluster.destination import Destination, Join, Site
from gateway.cluster.membership import Member, Membership, by_preference
from gateway.cluster.peer_client import PAGES, PeerClient, ReadRequest
from gateway.config.live_settings import RequestSettings
from gateway.core.errors import Failure, Refused
from gateway.core.transport import BodyTooLarge, Handler, Request, Responder, UpstreamCut, UpstreamRefused
from gateway.dialects import dialect_of, stored_answer_id
from gateway.request.handler import failed
from gateway.request.incoming_bodies import IncomingBodies
from gateway.request.inprocess import Continuation, InProcessResponder
from gateway.request.stored_responses import Homes
from gateway.sessions.session_locations import origin_of

GONE = Failure(
    503,
    "server_error",
    "The worker that had this request is gone. Try again.",
    code="worker_gone",
    retry_after_s=1.0,
)
UPLOAD_WAIT_S = 600.0


class ForwardCounter:
    """Counts how requests ended that were sent to another member."""

    def __init__(self, registry: CollectorRegistry) -> None:
        text = "Requests sent to the member that is home to them"
        self._results = Counter("turngate_forwarded", text, ("result",), registry=registry)

    def __call__(self, result: str) -> None:
        """`relayed`, `refused` (the next member is tried), or `cut`."""
        self._results.labels(result).inc()


@dataclass(frozen=True, slots=True)
class MemberRouter:
    """Sends each request to its home, once. Requests at a private listener are at home and never come here."""

    serve: Handler
    """The handler of this process."""
    membership: Membership
    peer_client: PeerClient
    keys: Keys
    homes: Homes
    bodies: IncomingBodies
    destination: Callable[[str, str], Destination]
    """Returns the destination of a method and a path."""
    own_page: Callable[[], bytes]
    """Returns the metrics of this process."""
    problems: Callable[[], dict[str, str]]
    """Returns what is degraded, for /health."""
    forwarded: ForwardCounter
    volatile: Sequence[Pattern[str]]
    settings: Callable[[], RequestSettings]
    """Returns the settings of a request that begins now."""
    max_file_bytes: int
    shares_batches: bool
    """Whether any member serves files and batches."""
    runs_tools: bool
    """Whether a request that was cut may have run tools, so that it is not sent again."""
    is_admin: bool = False
    """Whether this is the router of the admin listener."""
    owned_bodies: IncomingBodies = field(default_factory=lambda: IncomingBodies(wait_s=UPLOAD_WAIT_S))
    """Files are long, and have room of their own."""

    async def handle(self, request: Request, responder: Responder) -> None:
        """A `transport.Handler`."""
        destination = self.destination(request.method, request.path)
        match destination.site:
            case Site.SESSION:
                await self._conversation(request, responder, self.settings())
            case Site.RESPONSE:
                settings = self.settings()
                holder = await self._holder(stored_answer_id(request.path) or "")
                homes = [holder] if holder is not None else [self.membership.me]
                await self._serve_owned(request, settings.limits.body_bytes, responder, homes, settings)
            case Site.FILES if not self.shares_batches:
                homes = [self._first_worker()]
                await self._serve_owned(request, self.max_file_bytes, responder, homes, self.settings())
            case Site.METRICS | Site.HEALTH | Site.ALL:
                await self._serve_joined(destination, request, responder)
            case _:
                await self.serve(request, responder)

    async def _conversation(self, request: Request, responder: Responder, settings: RequestSettings) -> None:
        try:
            caller = self.keys.at_once(request.headers) or await self.keys.known(request.headers)
        except Refused:
            await self.serve(request, responder)  # which refuses it in its own format
            return
        begun = Continuation(settings, caller)
        limits = settings.limits
        try:
            raw = await self.bodies.read(request, limits.body_bytes, limits.incoming_bytes, caller.id)
        except BodyTooLarge:
            await self.serve(ReadRequest(request, None, begun), responder)
            return
        except Refused as refused:
            await _refuse(request, responder, refused.failure)
            return
        read = ReadRequest(request, raw, begun)
        try:
            body = orjson.loads(raw)
        except orjson.JSONDecodeError:
            body = None
        if not isinstance(body, dict):
            await self.serve(read, responder)
            return
        origin = origin_of(caller.tenant, request.headers, body, self.volatile)
        homes = by_preference(self.membership.members, origin)
        if (stored_id := body.get("previous_response_id")) and isinstance(stored_id, str):
            holder = await self._holder(stored_id)
            homes = [holder] if holder is not None else homes
        await self._serve_at(homes, read, raw, responder, settings)

    async def _serve_owned(
        self,
        request: Request,
        limit_bytes: int,
        responder: Responder,
        homes: list[Member],
        settings: RequestSettings,
    ) -> None:
        """Serve a request that belongs to one certain member."""
        caller = await self.keys.caller(request.headers)
        if homes == [self.membership.me] or caller is None:
            await self.serve(request, responder)  # which refuses a request without a key
            return
        room_bytes, raw = max(limit_bytes, settings.limits.incoming_bytes), b""
        try:
            if request.method == "POST":
                raw = await self.owned_bodies.read(request, limit_bytes, room_bytes, caller.id)
        except BodyTooLarge:
            text = f"The body is longer than {limit_bytes} bytes."
            await _refuse(request, responder, Failure(413, "invalid_request_error", text))
            return
        except Refused as refused:
            await _refuse(request, responder, refused.failure)
            return
        await self._serve_at(homes, ReadRequest(request, raw), raw, responder, settings)

    async def _serve_at(
        self,
        homes: Sequence[Member],
        request: Request,
        raw: bytes,
        responder: Responder,
        settings: RequestSettings,
    ) -> None:
        """Serve a request at the first member that can be reached."""
        for member in homes:
            if member == self.membership.me:
                await self.serve(request, responder)
                return
            try:
                await self.peer_client.relay(member, request, raw, responder, settings.timeouts.idle_s)
            except UpstreamRefused:
                self.forwarded("refused")
                self.membership.lost(member)
            except UpstreamCut:
                self.forwarded("cut")
                self.membership.lost(member)
                if self.runs_tools or responder.has_started:
                    break
            else:
                self.forwarded("relayed")
                return
        await _refuse(request, responder, GONE)

    async def _holder(self, answer_id: str) -> Member | None:
        """Return the member that holds a stored answer; None when no other member is known to."""
        if self.homes.is_known(answer_id):
            return self.membership.me
        others = self._others()
        found = await asyncio.gather(*(self.peer_client.ask(one, f"{PAGES}holds/{answer_id}") for one in others))
        return next((one for one, (_, page) in zip(others, found, strict=True) if page == b"yes"), None)

    def _others(self, in_gateway: bool = False) -> list[Member]:
        me = self.membership.me
        return [m for m in self.membership.members if m != me and (m.gateway == me.gateway or not in_gateway)]

    def _first_worker(self) -> Member:
        """The member that has the files and batches of its gateway."""
        mine = [self.membership.me, *self._others(in_gateway=True)]
        return min(mine, key=lambda member: member.worker)

    # ---- pages of all members

    async def _serve_joined(self, destination: Destination, request: Request, responder: Responder) -> None:
        """Join the answer of this process with those of the others. Its refusals are final."""
        own = InProcessResponder()
        await self.serve(request, own)
        status, body = own.status, own.body
        if destination.join is not None and status in (200, 404):
            status, body = await self._join(destination.join, request, status, body)
        elif destination.site is Site.METRICS and status == 200:
            pages = await self._ask(f"{PAGES}metrics", self._others(in_gateway=True), None)
            body = summed(page.decode() for page in (self.own_page(), *pages))
        elif destination.site is Site.HEALTH and status == 200:
            health = orjson.loads(body)
            body = orjson.dumps(health | {"cluster": self._about()}) if "engines" in health else body
        headers = [
            (name, value) for name in ("Content-Type", "Retry-After") if (value := own.headers.get(name.lower()))
        ]
        await responder.reply(status, headers, body)

    async def _join(self, join: Join, request: Request, status: int, body: bytes) -> tuple[int, bytes]:
        """`status` and `body` are those of this process; a 404 stays where no member has a page."""
        path = f"{request.path}?{request.query}" if request.query else request.path
        pages = await self._ask(path, self._others(), request)
        if status == 200:
            pages = [body, *pages]
        if len(pages) > 1:
            return 200, orjson.dumps(join([orjson.loads(page) for page in pages]))
        return (200, pages[0]) if pages else (status, body)

    async def _ask(self, path: str, members: Sequence[Member], request: Request | None) -> list[bytes]:
        asks = (self.peer_client.ask(member, path, request, self.is_admin) for member in members)
        return [body for status, body in await asyncio.gather(*asks) if status == 200]

    def _about(self) -> dict[str, object]:
        return {
            "me": self.membership.me.id,
            "members": [member.id for member in self.membership.members],
            "shares": self.membership.shares,
            "problems": self.problems(),
        }


async def _refuse(request: Request, responder: Responder, failure: Failure) -> None:
    await responder.reply(*failed(dialect_of(request.path), failure, ()))


# ---- one metrics page of several: counters and histograms added up, gauges by their meaning

LARGEST = frozenset(
    ("engine_up", "replica_up", "build_info", "cluster_heard", "cluster_members", "kv_horizon_seconds")
)
"""Gauges, without `turngate_`, by which each process states the same fact."""
_SMALLEST = "process_start_time_seconds"
_STATED = ("turngate_residency_tokens", ("kind", "stated"))
"""The engine states it to every member; used, ceiling and capacity are each member's own."""

Key = tuple[str, tuple[tuple[str, str], ...]]


def summed(pages: Iterable[str]) -> bytes:
    """Return the sum in the text format of the pages. Raises ValueError for a page of another format."""
    metrics: dict[str, Metric] = {}
    values: dict[str, dict[Key, float]] = {}
    for page in pages:
        for family in text_string_to_metric_families(page):
            metrics.setdefault(family.name, Metric(family.name, family.documentation, family.type))
            sums = values.setdefault(family.name, {})
            for sample in family.samples:
                key = sample.name, tuple(sorted(sample.labels.items()))
                sums[key] = sample.value if key not in sums else _joined(key, sums[key], sample.value)
    for name, metric in metrics.items():
        for (sample_name, labels), value in values[name].items():
            metric.add_sample(sample_name, dict(labels), value)
    return generate_latest(cast(CollectorRegistry, _Collected(metrics.values())))


def _joined(key: Key, one: float, other: float) -> float:
    name, labels = key
    if name.removeprefix("turngate_") in LARGEST or (name == _STATED[0] and _STATED[1] in labels):
        return max(one, other)
    return min(one, other) if name == _SMALLEST else one + other


class _Collected:
    """The part of a registry that `generate_latest` uses."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        return iter(self._metrics)
