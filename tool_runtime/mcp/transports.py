"""Connections to MCP servers below the SDK, over a child's standard input and output or over HTTP."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from asyncio.subprocess import SubprocessStreamProtocol
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from types import TracebackType
from typing import Any, TypeAlias

import anyio
import httpx2
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client.stdio import get_default_environment
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._stream_protocols import ReadStream, WriteStream
from mcp.shared.message import SessionMessage
from mcp_types import CONNECTION_CLOSED, JSONRPCResponse, jsonrpc_message_adapter

Incoming: TypeAlias = SessionMessage | Exception
Streams: TypeAlias = tuple[ReadStream[Incoming], WriteStream[SessionMessage]]


class Link:
    """The state of one connection: the transport reports its end, and the task that owns it waits for news."""

    def __init__(self) -> None:
        self.news = asyncio.Event()
        """Set when the connection is lost, or the server says that its list has changed."""
        self.problem = ""
        """Why the connection is lost. Empty: it works."""
        self.malformed: dict[str, str] = {}
        """Tools that were removed from the server's list, with the reason."""

    def lose(self, problem: str) -> None:
        """Note the end of the connection. The first reason is kept: later ones are its consequences."""
        self.problem = self.problem or problem
        self.news.set()


Transport: TypeAlias = Callable[[Link], AbstractAsyncContextManager[Streams]]


class MendedStream:
    """A read stream that removes tools whose schema breaks the protocol from lists.

    The SDK refuses a whole list for one of them. Here the server loses that tool only.
    """

    def __init__(self, inner: ReadStream[Incoming], link: Link) -> None:
        self._inner = inner
        self._link = link

    @property
    def last_context(self) -> Any:
        """The sender of the message, as in the SDK's own streams."""
        return getattr(self._inner, "last_context", None)

    async def receive(self) -> Incoming:
        message = await self._inner.receive()
        if isinstance(message, SessionMessage) and isinstance(message.message, JSONRPCResponse):
            tools = message.message.result.get("tools")
            if isinstance(tools, list):
                message.message.result["tools"] = [tool for tool in tools if self._is_whole(tool)]
        return message

    def _is_whole(self, tool: Any) -> bool:
        if not isinstance(tool, dict) or not isinstance(name := tool.get("name"), str):
            self._link.malformed["?"] = "it has no name"
            return False
        schema = tool.get("inputSchema")
        if not isinstance(schema, dict) or schema.get("type") != "object":
            self._link.malformed[name] = "its inputSchema has no `type: object`"
            return False
        return True

    async def aclose(self) -> None:
        await self._inner.aclose()

    def __aiter__(self) -> MendedStream:
        return self

    async def __anext__(self) -> Incoming:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def __aenter__(self) -> MendedStream:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


# ---- a child process and its standard input and output

GRACE_S = 2.0
"""Time between closing its input, SIGTERM and SIGKILL, which is the protocol's order of shutting down."""
_SETTLE_S = 0.5
"""Longest time between the end of a process and that of its output, unless its child holds the output."""
_MAX_SAID_BYTES = 4096
_GONE = (anyio.BrokenResourceError, anyio.ClosedResourceError)
"""Errors of a session that ended before the process."""


@asynccontextmanager
async def running(
    command: Sequence[str], env: Mapping[str, str], cwd: str | None, max_message_bytes: int, link: Link
) -> AsyncIterator[Streams]:
    """Start the process with `env` added to a minimal environment. Raises OSError if that fails."""
    loop = asyncio.get_running_loop()
    with anyio.CancelScope(shield=True):  # asyncio cannot interrupt a start cleanly
        transport, child = await loop.subprocess_exec(
            lambda: _Child(loop, max_message_bytes, link),
            *command,
            env=get_default_environment() | dict(env),
            cwd=cwd,
            start_new_session=True,
        )
    to_session, incoming = anyio.create_memory_object_stream[Incoming](0)
    outgoing, from_session = anyio.create_memory_object_stream[SessionMessage](0)
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(child.read, to_session)
            group.start_soon(child.write, from_session)
            group.start_soon(child.listen)
            group.start_soon(child.watch, transport, to_session)
            try:
                yield MendedStream(incoming, link), outgoing
            finally:
                incoming.close()
                with anyio.CancelScope(shield=True):
                    await child.end(transport)
                group.cancel_scope.cancel()
    finally:
        transport.close()
        for stream in (to_session, incoming, outgoing, from_session):
            stream.close()


class _Child(SubprocessStreamProtocol):
    """The process and its three streams."""

    def __init__(self, loop: asyncio.AbstractEventLoop, max_message_bytes: int, link: Link) -> None:
        super().__init__(limit=max_message_bytes, loop=loop)
        self._link = link
        self._has_ended = asyncio.Event()
        self._is_cut = asyncio.Event()
        """Set when one of its streams has ended."""
        self._news = asyncio.Event()
        """Set with either of these."""
        self._problem = ""
        self._said = b""

    def process_exited(self) -> None:
        super().process_exited()
        self._has_ended.set()
        self._news.set()

    async def read(self, to_session: MemoryObjectSendStream[Incoming]) -> None:
        assert self.stdout is not None
        try:
            while line := await self.stdout.readline():
                with suppress(ValueError, *_GONE):  # a line that is no message
                    await to_session.send(SessionMessage(jsonrpc_message_adapter.validate_json(line)))
        except ValueError:
            self._problem = "it sent a message that is too long"
        self._cut()
        while await self.stdout.read(65_536):  # so that it can end
            pass

    async def write(self, from_session: MemoryObjectReceiveStream[SessionMessage]) -> None:
        assert self.stdin is not None
        with suppress(ConnectionError):
            async for message in from_session:
                text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                self.stdin.write(text.encode() + b"\n")
                await self.stdin.drain()
        self._cut()

    async def listen(self) -> None:
        assert self.stderr is not None
        while chunk := await self.stderr.read(65_536):
            self._said = (self._said + chunk)[-_MAX_SAID_BYTES:]

    async def watch(
        self, transport: asyncio.SubprocessTransport, to_session: MemoryObjectSendStream[Incoming]
    ) -> None:
        """Report the end with the last line of the error output, which is for people and not for models."""
        await self._news.wait()
        with suppress(TimeoutError):
            async with asyncio.timeout(_SETTLE_S):
                await self._has_ended.wait()
                await self._is_cut.wait()
        status = transport.get_returncode()
        ended = "it closed its input or output" if status is None else f"it ended with status {status}"
        said = self._said.decode(errors="replace").strip().rpartition("\n")[2]
        self._link.lose(self._problem or (f"{ended}: {said}" if said else ended))
        to_session.close()

    async def end(self, transport: asyncio.SubprocessTransport) -> None:
        """End the process and its group. Both are gone when this returns."""
        assert self.stdin is not None
        group = transport.get_pid()
        self.stdin.close()
        for kill in (None, signal.SIGTERM, signal.SIGKILL):
            if kill is not None:
                _signal(group, kill)
            with suppress(TimeoutError):
                async with asyncio.timeout(GRACE_S):
                    await self._has_ended.wait()
                break
        _signal(group, signal.SIGKILL)  # its own children

    def _cut(self) -> None:
        self._is_cut.set()
        self._news.set()


def _signal(group: int, kill: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, kill)


# ---- streamable HTTP, through the SDK's transport with a guard below it
#
# Without the guard one request whose connection breaks would end all others of the server, a server that is down
# would look like one whose connection broke, and an answer could have any size.

NOT_SENT = -32090
"""Error code for a request that did not reach the server."""
_CONNECT_S = 10.0
_SILENT_S = 300.0
"""Longest silence of a server that has accepted a request."""


@asynccontextmanager
async def connected(
    url: str, headers: Mapping[str, str], max_message_bytes: int, link: Link
) -> AsyncIterator[Streams]:
    """Prepare a connection, which the first request opens."""
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
    """Turns a fault of the network into an answer to the request that met it."""

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
            # The SDK bounds each event of a stream itself.
            stream=response.stream if is_stream else _Bounded(response.stream, self._max_bytes),
            extensions=response.extensions,
        )

    async def aclose(self) -> None:
        await self._inner.aclose()


class _Bounded(httpx2.AsyncByteStream):
    """A body of a limited size, whose faults end its own request only."""

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
    """Return an answer as a server reports the fault of one request. The SDK gives it the request's id."""
    body = {"jsonrpc": "2.0", "id": None, "error": {"code": code, "message": message}}
    return httpx2.Response(502, headers={"content-type": "application/json"}, content=json.dumps(body))
