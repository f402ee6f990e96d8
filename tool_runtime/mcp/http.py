"""Speaks with an MCP server over streamable HTTP, through the SDK's transport.

Below that lies a guard. Without it one request whose connection breaks would end all others of the server, a
server that is down would look like one that broke off, and an answer could have any size.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import httpx2
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CONNECTION_CLOSED

from tool_runtime.mcp.stdio import Link, MendedStream, Streams

NOT_SENT = -32090
"""Our code for a request that did not reach the server."""
_CONNECT_S = 10.0
_SILENT_S = 300.0
"""Longest silence of a server that has accepted a request."""


@asynccontextmanager
async def connected(
    url: str, headers: Mapping[str, str], max_message_bytes: int, link: Link
) -> AsyncIterator[Streams]:
    """Opens nothing by itself: the first request does."""
    network = httpx2.AsyncHTTPTransport(limits=httpx2.Limits(max_connections=None))
    guard = _Guard(network, max_message_bytes, link)
    timeout = httpx2.Timeout(_SILENT_S, connect=_CONNECT_S)
    async with (
        httpx2.AsyncClient(transport=guard, headers=dict(headers), timeout=timeout) as client,
        streamable_http_client(url, http_client=client, max_sse_event_size=max_message_bytes) as (
            incoming,
            outgoing,
        ),
    ):
        yield MendedStream(incoming, link), outgoing


class _Guard(httpx2.AsyncBaseTransport):
    """Gives faults of the network as answers to the request that met them."""

    def __init__(self, inner: httpx2.AsyncHTTPTransport, max_bytes: int, link: Link) -> None:
        self._inner = inner
        self._max_bytes = max_bytes
        self._link = link

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        try:
            response = await self._inner.handle_async_request(request)
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
            self._link.lose(f"it cannot be reached: {error or type(error).__name__}")
            return _fault(NOT_SENT, "the server cannot be reached")
        except httpx2.TransportError as error:
            return _fault(CONNECTION_CLOSED, f"the connection broke: {error or type(error).__name__}")
        is_stream = response.headers.get("content-type", "").lower().startswith("text/event-stream")
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        return httpx2.Response(
            response.status_code,
            headers=response.headers,
            # The SDK itself bounds each event of a stream.
            stream=response.stream if is_stream else _Bounded(response.stream, self._max_bytes),
            extensions=response.extensions,
        )

    async def aclose(self) -> None:
        await self._inner.aclose()


class _Bounded(httpx2.AsyncByteStream):
    """A body of a limited size, whose faults cost no more than its own request."""

    def __init__(self, inner: httpx2.AsyncByteStream, max_bytes: int) -> None:
        self._inner = inner
        self._max_bytes = max_bytes

    async def __aiter__(self) -> AsyncIterator[bytes]:
        num_bytes = 0
        try:
            async for chunk in self._inner:
                num_bytes += len(chunk)
                if num_bytes > self._max_bytes:
                    raise httpx2.StreamError(f"the answer is longer than {self._max_bytes} bytes")
                yield chunk
        except httpx2.TransportError as error:
            raise httpx2.StreamError(f"the connection broke: {error or type(error).__name__}") from error

    async def aclose(self) -> None:
        await self._inner.aclose()


def _fault(code: int, message: str) -> httpx2.Response:
    """As a server reports a fault of one request: the SDK gives it the request's id."""
    body = {"jsonrpc": "2.0", "id": None, "error": {"code": code, "message": message}}
    return httpx2.Response(502, headers={"content-type": "application/json"}, content=json.dumps(body))
