"""Calls between members: client requests on the way to their home, and pages that members ask each other for.

A member's private listener answers only calls with the members' secret, and never passes a request on.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import AsyncIterator, Callable, Mapping, Sequence

import orjson

from gateway.cluster.membership import Member, MemberState, decode_state, placed_of
from gateway.core.transport import (
    BodyTooLarge,
    Direct,
    Handler,
    HeaderList,
    Pushing,
    Request,
    Responder,
    Timeouts,
    Upstream,
    UpstreamCut,
    UpstreamRefused,
    UpstreamReply,
    sendable,
    taken,
)
from gateway.request.inprocess import Continuation, HandedOn
from gateway.request.upstream_request import end_to_end
from gateway.sessions.session_locations import Trail

HOP = "x-turngate-hop"
FOR_ADMIN = "x-turngate-hop-admin"
"""Marks a call whose request came to the admin listener."""
PAGES = "/cluster/"
CONNECT_S = 1.0
ANSWER_S = 660.0
"""Bound on the time to the status line. The home gives up before."""
PAGE = Timeouts(connect_s=0.5, first_byte_s=2.0, idle_s=2.0)
MAX_PAGE_BYTES = 32 * 2**20


class PeerClient:
    """Calls the private listeners of other members."""

    def __init__(self, upstream: Upstream, secret: str) -> None:
        self._upstream = upstream
        self._secret = secret

    async def relay(
        self, member: Member, request: Request, raw: bytes, responder: Responder, idle_s: float | None
    ) -> None:
        """Relay the member's answer byte for byte. If it breaks off, the client's connection is broken too.
        `idle_s`: bound on the silence within an answer.

        Raises UpstreamRefused when the member has not seen the request, UpstreamCut when it may have.
        """
        path = f"{request.path}?{request.query}" if request.query else request.path
        headers, body = self._headers(request), raw if request.method == "POST" else raw or None
        timeouts = Timeouts(CONNECT_S, ANSWER_S, idle_s)
        reply = await self._upstream.call(request.method, member.url + path, headers, body, timeouts)
        is_whole = False
        try:
            await responder.open_stream(reply.status, list(end_to_end(reply.header_list)))
            await _pump(reply, responder)
            await responder.end()
            is_whole = True
        except UpstreamCut:
            responder.reset()
        finally:
            reply.close(reuse=is_whole)

    async def ask(
        self, member: Member, path: str, request: Request | None = None, for_admin: bool = False
    ) -> tuple[int, bytes]:
        """Return status and body of a member's page, or of its answer to a client's GET. Status 0: the member
        cannot be reached."""
        headers = [(HOP, self._secret)] if request is None else self._headers(request)
        if for_admin:
            headers.append((FOR_ADMIN, "yes"))
        try:
            reply = await self._upstream.call("GET", member.url + path, headers, None, PAGE)
            return reply.status, await taken(reply, MAX_PAGE_BYTES)
        except (UpstreamRefused, UpstreamCut):
            return 0, b""

    def _headers(self, request: Request) -> list[tuple[str, str]]:
        kept = (pair for pair in end_to_end(request.header_list) if pair[0].lower() not in (HOP, FOR_ADMIN))
        return [*kept, (HOP, self._secret)]


async def _pump(reply: UpstreamReply, responder: Responder) -> None:
    """Relay all bytes, without waking this task for bytes that the client takes at once."""
    direct = responder if isinstance(responder, Direct) else None
    chunks = aiter(reply.chunks())

    def sink(chunks: list[bytes]) -> int:
        if direct is None or not direct.is_ready:
            return 0
        direct.write_now(b"".join(chunks))
        return len(chunks)

    while True:
        if direct is not None and isinstance(reply, Pushing):
            reply.push(sink)
        chunk = await anext(chunks, None)
        if chunk is None:
            return
        await responder.write(chunk)


def private(secret: str, pages: Mapping[str, Callable[[str], bytes]], home: Handler, admin: Handler) -> Handler:
    """Return the handler of a private listener: it serves `pages` by their first path segment, and requests that
    have come home. A page is called with the rest of its path."""

    async def handle(request: Request, responder: Responder) -> None:
        shown = sendable(request.headers.get(HOP, "")).encode()
        if not hmac.compare_digest(shown, secret.encode()):
            await responder.reply(403, [("Content-Type", "text/plain")], b"This is for other members only.\n")
            return
        if not request.path.startswith(PAGES):
            await (admin if FOR_ADMIN in request.headers else home)(request, responder)
            return
        name, _, rest = request.path.removeprefix(PAGES).partition("/")
        page = pages.get(name)
        status, body = (404, b"") if page is None else (200, page(rest))
        await responder.reply(status, [("Content-Type", "application/octet-stream")], body)

    return handle


class ReadRequest(HandedOn):
    """A `transport.Request` whose body has been read."""

    def __init__(self, request: Request, raw: bytes | None, begun: Continuation | None = None) -> None:
        """`raw` is None when the body is too long."""
        self.method, self.path, self.query = request.method, request.path, request.query
        self.headers: Mapping[str, str] = request.headers
        self.header_list: HeaderList = request.header_list
        self.remote = request.remote
        self._raw = raw
        self.begun = begun

    async def read(self, limit_bytes: int) -> bytes:
        if self._raw is None or len(self._raw) > limit_bytes:
            raise BodyTooLarge
        return self._raw

    async def chunks(self, limit_bytes: int) -> AsyncIterator[bytes]:
        yield await self.read(limit_bytes)


# ---- the board of one machine's workers: each asks the private listeners of the others


class SiblingBoard:
    """A `Board` without a server. `pages` serves the other workers."""

    def __init__(self, siblings: Sequence[Member], peer_client: PeerClient, trail: Trail) -> None:
        self.expected = siblings
        self._peer_client = peer_client
        self._trail = trail
        self._mine = b""
        self._heard: dict[Member, int] = {}
        """How many placements of each worker are known."""

    @property
    def pages(self) -> Mapping[str, Callable[[str], bytes]]:
        return {"state": lambda _: self._mine, "placed": self._placed}

    async def exchange(self, mine: MemberState, trail: Trail) -> list[MemberState]:
        self._mine = mine.encode()
        found = await asyncio.gather(*(self._ask(sibling, trail) for sibling in self.expected))
        return [state for state in found if state is not None]

    async def leave(self, me: Member) -> None:
        self._mine = b""

    async def close(self) -> None:
        """Does nothing: no connection is held."""

    async def _ask(self, sibling: Member, trail: Trail) -> MemberState | None:
        status, text = await self._peer_client.ask(sibling, PAGES + "state")
        if status != 200 or not text:
            self._heard.pop(sibling, None)  # another process may take its place, with placements of its own
            return None
        status, rows = await self._peer_client.ask(sibling, f"{PAGES}placed/{self._heard.get(sibling, 0)}")
        if status == 200:
            self._heard[sibling], placed = orjson.loads(rows)
            trail.learn(placed_of(placed))
        return decode_state(text)

    def _placed(self, heard: str) -> bytes:
        """`heard`: how many placements the caller knows. 0, or more than there are: it knows another process."""
        trail, since = self._trail, int(heard) if heard.isdigit() else 0
        is_new = not 0 < since <= trail.num_news
        return orjson.dumps([trail.num_news, trail.known() if is_new else trail.news(since)])
