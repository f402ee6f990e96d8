"""The HTTP client over aiohttp: pooled connections, raw bytes, and only the headers that the caller gives."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Mapping
from types import SimpleNamespace
from typing import Any

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from gateway.core.transport import (
    HOP_BY_HOP,
    SILENT,
    Body,
    HeaderList,
    Timeouts,
    UpstreamCut,
    UpstreamRefused,
    joined,
    sendable,
    whole,
)

# uvicorn, below vLLM and SGLang, closes idle connections after 5 s; a pool that forgets them first meets no
# closed one.
KEEPALIVE_S = 4.0

# A pooled connection that its peer had closed fails within a round trip. Later, the engine has worked on it.
STALE_WITHIN_S = 1.0

_LARGE_BYTES = 1024 * 1024  # aiohttp wants longer bodies as a file, which it sends in pieces
_OWN_HEADERS = HOP_BY_HOP | {"host", "content-length"}
_BROKEN = (aiohttp.ClientError, TimeoutError, OSError)


class AiohttpUpstream:
    """A `transport.Upstream`. Made inside a running event loop."""

    def __init__(self, stale_within_s: float = STALE_WITHIN_S) -> None:
        self._stale_within_s = stale_within_s
        reused = aiohttp.TraceConfig()
        reused.on_connection_reuseconn.append(_note_reuse)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_S),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
            max_field_size=64 * 1024,
            trace_configs=[reused],
        )

    async def call(
        self, method: str, url: str, headers: HeaderList, body: Body | None, timeouts: Timeouts
    ) -> AiohttpReply:
        """Send a call, as `transport.Upstream.call` says.

        A call is sent again only if it went out on a pooled connection that its peer closed at once, without a
        byte of answer: that peer had closed before it could read. Each try takes one dead connection out of the
        pool, and a new connection is never retried, so this ends.
        """
        loop = asyncio.get_running_loop()
        sent = None if body is None else whole(body)
        try:
            async with asyncio.timeout(timeouts.first_byte_s):
                while True:
                    attempt = SimpleNamespace(is_reused=False)
                    called_at = loop.time()
                    try:
                        response = await self._send(method, url, headers, sent, timeouts, attempt)
                        break
                    except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
                        if not attempt.is_reused or loop.time() - called_at > self._stale_within_s:
                            raise
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise UpstreamRefused(str(error)) from error
        except ValueError:  # its text quotes a header or an address
            raise UpstreamRefused("the call cannot be written as HTTP") from None
        except _BROKEN as error:
            raise UpstreamCut(_reason(error)) from error
        return AiohttpReply(response, timeouts.idle_s)

    async def _send(
        self,
        method: str,
        url: str,
        headers: HeaderList,
        body: bytes | None,
        timeouts: Timeouts,
        attempt: SimpleNamespace,
    ) -> aiohttp.ClientResponse:
        kept = CIMultiDict(
            (sendable(name), sendable(value)) for name, value in headers if name.lower() not in _OWN_HEADERS
        )
        return await self._session.request(
            method,
            URL(url, encoded=True),
            headers=kept,
            data=io.BytesIO(body) if body is not None and len(body) > _LARGE_BYTES else body,
            allow_redirects=False,
            timeout=aiohttp.ClientTimeout(connect=timeouts.connect_s),
            trace_request_ctx=attempt,
        )

    async def close(self) -> None:
        await self._session.close()


class AiohttpReply:
    """A `transport.UpstreamReply`."""

    def __init__(self, response: aiohttp.ClientResponse, idle_s: float | None) -> None:
        self._response = response
        self.status = response.status
        self.headers: Mapping[str, str] = response.headers
        self.header_list: HeaderList = tuple(response.headers.items())
        self._closed: asyncio.Future[None] | None = None
        if (connection := response.connection) is not None and connection.protocol is not None:
            connection.protocol.read_timeout = idle_s
            connection.protocol.start_timeout()
            if (closed := connection.protocol.closed) is not None:
                self._closed = closed
                closed.remove_done_callback(_heard)  # of the call before on this connection
                closed.add_done_callback(_heard)
                closed.add_done_callback(self._lost)

    def chunks(self) -> AsyncIterator[bytes]:
        return self

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        try:
            chunk = await self._response.content.readany()
        except _BROKEN as error:
            self.close(reuse=False)
            raise UpstreamCut(_reason(error)) from error
        if not chunk:
            self._leave()
            raise StopAsyncIteration
        return chunk

    async def read(self, limit_bytes: int) -> bytes:
        return await joined(self, limit_bytes)

    def close(self, *, reuse: bool) -> None:
        """Give the connection back. An unread body closes it in either case."""
        self._leave()
        if reuse:
            self._response.release()
            return
        if (connection := self._response.connection) is not None and connection.protocol is not None:
            connection.protocol.abort()
        self._response.close()

    def _leave(self) -> None:
        if self._closed is not None:
            self._closed.remove_done_callback(self._lost)
            self._closed = None

    def _lost(self, _closed: asyncio.Future[None]) -> None:
        """Fail a reader of the body: aiohttp would let it wait for ever when the rest cannot be parsed."""
        content = self._response.content
        if not content.is_eof() and content.exception() is None:
            content.set_exception(aiohttp.ClientPayloadError())


def _heard(closed: asyncio.Future[None]) -> None:
    """Read how a connection ended; otherwise asyncio logs that its exception was never retrieved."""
    if not closed.cancelled():
        closed.exception()


async def _note_reuse(_session: Any, context: SimpleNamespace, _params: Any) -> None:
    context.trace_request_ctx.is_reused = True


def _reason(error: BaseException) -> str:
    """Return why a call failed, without the text of an error that quotes an answer of a model."""
    if isinstance(error, TimeoutError):
        return SILENT
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return "the engine closed the connection before its answer began"
    if isinstance(error, aiohttp.ClientPayloadError):
        return "the engine closed the connection in its answer, or that is not valid HTTP"
    if isinstance(error, OSError):
        return str(error) or type(error).__name__
    return f"the engine's answer is not valid HTTP: {type(error).__name__}"
