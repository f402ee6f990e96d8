"""One connection to an MCP server, below the SDK: whether it stands, and what the SDK is not to see."""

from __future__ import annotations

import asyncio
import os
import signal
from asyncio.subprocess import SubprocessStreamProtocol
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from types import TracebackType
from typing import Any, TypeAlias

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client.stdio import get_default_environment
from mcp.shared._stream_protocols import ReadStream, WriteStream
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCResponse, jsonrpc_message_adapter

Incoming: TypeAlias = SessionMessage | Exception
Streams: TypeAlias = tuple[ReadStream[Incoming], WriteStream[SessionMessage]]


class Link:
    """Shared by a transport, which tells of its end, and the task that owns it, which waits for news."""

    def __init__(self) -> None:
        self.news = asyncio.Event()
        """Set when the connection was lost, or the server says that its list has changed."""
        self.problem = ""
        """Why the connection is lost. Empty: it stands."""
        self.malformed: dict[str, str] = {}
        """Tools that were taken out of the server's list, and why."""

    def lose(self, problem: str) -> None:
        """The first reason is kept: later ones are its consequences."""
        self.problem = self.problem or problem
        self.news.set()


Transport: TypeAlias = Callable[[Link], AbstractAsyncContextManager[Streams]]


class MendedStream:
    """A read stream that takes tools whose schema breaks the protocol out of lists.

    The SDK refuses a whole list for one of them; here it costs the server that tool only.
    """

    def __init__(self, inner: ReadStream[Incoming], link: Link) -> None:
        self._inner = inner
        self._link = link

    @property
    def last_context(self) -> Any:
        """Of the SDK's own streams: who sent the message."""
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


# ---- runs an MCP server as a child process and speaks with it over its standard input and output

GRACE_S = 2.0
"""Between closing its input, SIGTERM and SIGKILL: the protocol's order of shutting down."""
_SETTLE_S = 0.5
"""The end of a process and the end of its output come together, unless a child of it still holds the output."""
_MAX_SAID_BYTES = 4096
_GONE = (anyio.BrokenResourceError, anyio.ClosedResourceError)
"""The session has ended before the process."""


@asynccontextmanager
async def running(
    command: Sequence[str], env: Mapping[str, str], cwd: str | None, max_message_bytes: int, link: Link
) -> AsyncIterator[Streams]:
    """Starts the process. Raises OSError if it cannot be. `env` is added to a minimal environment."""
    loop = asyncio.get_running_loop()
    with anyio.CancelScope(shield=True):  # asyncio cannot break off a start cleanly
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
        """A stream of it has ended."""
        self._news = asyncio.Event()
        """Either of these."""
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
        """Tells of the end, with the last words: they are for people, not for models."""
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
        """The process and its group are gone when this returns."""
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
        _signal(group, signal.SIGKILL)  # what it has started

    def _cut(self) -> None:
        self._is_cut.set()
        self._news.set()


def _signal(group: int, kill: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, kill)
