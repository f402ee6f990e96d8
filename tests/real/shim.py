"""A test-only proxy that sits between an agent, the gateway and an engine: byte-true, with rewrites and a tap.

`async with shim(engine.base_url, scripted(script), anonymous()) as link:` relays everything sent to
`link.base_url`, applies the rewrites to each request in order, and records it in `link.exchanges`.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import aiohttp
from aiohttp import web
from multidict import CIMultiDict, CIMultiDictProxy

# Less `upgrade`, so that a refusal to upgrade can be seen through the shim.
HOP_BY_HOP = frozenset(
    {"connection", "keep-alive", "transfer-encoding", "te", "trailer", "expect"}
    | {"host", "content-length", "proxy-authorization", "proxy-authenticate"}
)
MAX_BODY_BYTES = 64 * 1024 * 1024

Headers = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    """With the query string."""
    headers: Headers
    body: bytes


Rewrite = Callable[[Request], Request]


@dataclass
class Exchange:
    """One relayed request, as received, as forwarded, and what came back when."""

    received: Request
    forwarded: Request
    started_s: float
    """Monotonic clock, as all times here."""
    status: int | None = None
    response_headers: Headers = ()
    chunks: list[tuple[float, bytes]] = field(default_factory=list)
    ended_s: float | None = None
    has_client_left: bool = False
    has_upstream_failed: bool = False

    @property
    def response_body(self) -> bytes:
        return b"".join(chunk for _, chunk in self.chunks)


@dataclass
class Shim:
    base_url: str
    upstream_url: str
    rewrites: Sequence[Rewrite]
    exchanges: list[Exchange] = field(default_factory=list)

    def to(self, path: str) -> list[Exchange]:
        """Exchanges in order of arrival whose path starts with `path`."""
        return [exchange for exchange in self.exchanges if exchange.received.path.startswith(path)]


class _Relay:
    def __init__(self, shim: Shim, session: aiohttp.ClientSession) -> None:
        self._shim = shim
        self._session = session

    async def relay(self, incoming: web.Request) -> web.StreamResponse:
        started_s = time.monotonic()
        headers = _end_to_end(incoming.headers)
        received = Request(incoming.method, incoming.path_qs, headers, await incoming.read())
        forwarded = received
        for rewrite in self._shim.rewrites:
            forwarded = rewrite(forwarded)
        exchange = Exchange(received, forwarded, started_s)
        self._shim.exchanges.append(exchange)
        try:
            return await self._exchange(incoming, exchange)
        except asyncio.CancelledError:
            exchange.has_client_left = True
            raise
        except aiohttp.ClientError as error:
            transport = incoming.transport
            exchange.has_client_left = transport is None or transport.is_closing()
            exchange.has_upstream_failed = not exchange.has_client_left
            if exchange.status is None:
                return web.Response(status=502, text=f"shim: {error!r}")
            if transport is not None:
                # A clean end would look like a complete answer.
                transport.abort()
            raise
        finally:
            exchange.ended_s = time.monotonic()

    async def _exchange(self, incoming: web.Request, exchange: Exchange) -> web.StreamResponse:
        forwarded = exchange.forwarded
        async with self._session.request(
            forwarded.method,
            self._shim.upstream_url + forwarded.path,
            headers=CIMultiDict(forwarded.headers),
            data=forwarded.body or None,
            allow_redirects=False,
            skip_auto_headers=("User-Agent", "Accept", "Content-Type", "Accept-Encoding"),
        ) as upstream:
            exchange.status = upstream.status
            exchange.response_headers = _end_to_end(upstream.headers)
            response = web.StreamResponse(status=upstream.status, reason=upstream.reason)
            response.headers.extend(exchange.response_headers)
            response.content_length = upstream.content_length
            await response.prepare(incoming)
            async for chunk in upstream.content.iter_any():
                exchange.chunks.append((time.monotonic(), chunk))
                await response.write(chunk)
            await response.write_eof()
            return response


def _end_to_end(headers: CIMultiDictProxy[str]) -> Headers:
    return tuple((name, value) for name, value in headers.items() if name.lower() not in HOP_BY_HOP)


@asynccontextmanager
async def shim(upstream_url: str, *rewrites: Rewrite) -> AsyncIterator[Shim]:
    """Serve on a free port until the block is left; `upstream_url` has no path."""
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=10)
    # Engines close idle connections (vLLM after 5 s): a kept one may be gone just when it is used, and unlike the
    # gateway this client does not try a POST again.
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, auto_decompress=False) as session:
        running = Shim("", upstream_url, rewrites)
        app = web.Application(client_max_size=MAX_BODY_BYTES)
        app.router.add_route("*", "/{path:.*}", _Relay(running, session).relay)
        # Without cancellation a client that leaves a silent engine would go unnoticed.
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=1)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            host, port = runner.addresses[0][:2]
            running.base_url = f"http://{host}:{port}"
            yield running
        finally:
            await runner.cleanup()
